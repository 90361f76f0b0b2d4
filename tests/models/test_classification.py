"""Classifiers on every model: built, loaded from a causal model's folder, trained, saved, with padding."""

from itertools import product

import pytest
import torch
import transformers as hf
from torch.nn.functional import cross_entropy

from tests.covering import each_value, some
from tests.models.armt.bases import BASES, WRAPS
from tests.models.contract import CASES, SEGMENT, tokens, v2, without_dropout
from tests.refusals import refused

NAMES = ["v1 published", "v2 gaussian", "linear attention gla", "armt around gpt2", "rmt around gpt2"]
NAMES += ["prmt around gpt2", "lstm"]
TASKS = {"sequence": hf.AutoModelForSequenceClassification, "token": hf.AutoModelForTokenClassification}


def hidden_states(causal, ids):
    """What the head of a causal language model reads."""
    if causal.config.model_type != "lstm":
        return causal(ids, output_hidden_states=True).hidden_states[-1]
    seen = []
    hook = causal.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    causal(ids)
    hook.remove()
    return torch.cat(seen, 1)


def loaded(name, task, folder, **options):
    causal = CASES[name].build()
    causal.config.pad_token_id = 0
    causal.save_pretrained(folder / "causal")
    options = {"num_labels": 3, "dtype": torch.float64, **options}
    return causal, TASKS[task].from_pretrained(folder / "causal", **options).eval()


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_are_a_tuple_where_the_call_or_the_configuration_says_so(name):
    config = CASES[name].build().config
    ids = tokens(2, SEGMENT)
    for auto in (hf.AutoModel, hf.AutoModelForCausalLM):
        model = auto.from_config(config).eval()
        for in_config in (True, False):
            model.config.return_dict = in_config
            calls = ({}, {"return_dict": True}, {"return_dict": False})
            kinds = [isinstance(model(ids, **options), tuple) for options in calls]
            assert kinds == [not in_config, False, True]


@pytest.mark.filterwarnings("ignore")  # transformers' words on the new head
@each_value(name=NAMES, task=TASKS.keys())
def test_a_classifier_of_a_language_model(name, task, tmp_path):
    causal, model = loaded(name, task, tmp_path)
    ids = tokens(2, 3 * SEGMENT)
    mask = torch.ones_like(ids)
    mask[1, 15:] = 0
    padded = ids.masked_fill(mask == 0, 0)
    with torch.no_grad():
        hidden = [hidden_states(causal, row) for row in (ids[:1], ids[1:, :15])]
        logits = model(padded, attention_mask=mask).logits
        expected = [model.score(states) for states in hidden]
    if task == "sequence":
        torch.testing.assert_close(logits, torch.cat([rows[:, -1] for rows in expected]), rtol=1e-6, atol=1e-6)
    else:
        torch.testing.assert_close(logits[:1], expected[0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(logits[1:, :15], expected[1], rtol=1e-6, atol=1e-6)
    labels = torch.tensor([2, 0]) if task == "sequence" else torch.randint(3, ids.shape)
    output = model(padded, attention_mask=mask, labels=labels)
    torch.testing.assert_close(output.loss.double(), cross_entropy(logits.flatten(0, -2), labels.flatten()))
    output.loss.backward()
    assert model.get_input_embeddings().weight.grad.abs().max() > 0
    model.save_pretrained(tmp_path / "classifier")
    again = TASKS[task].from_pretrained(tmp_path / "classifier", dtype=torch.float64).eval()
    assert again.config.num_labels == 3
    torch.testing.assert_close(again(padded, attention_mask=mask).logits, logits, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore")  # transformers' words on the new head
@each_value(kind=WRAPS.keys(), base={**{name: BASES[name] for name in ("memory_mosaic", "llama", "gpt2")}, "v2": v2})
@torch.no_grad()
def test_a_classifier_has_the_weights_of_its_causal_model(kind, base, tmp_path):
    causal = WRAPS[kind](base(), segment_size=SEGMENT, num_memory_tokens=2).double().eval()
    causal.save_pretrained(tmp_path / "causal")
    classifier = TASKS["sequence"].from_pretrained(tmp_path / "causal", num_labels=3, dtype=torch.float64)
    classifier.save_pretrained(tmp_path / "classifier")
    options = {"dtype": torch.float64, "output_loading_info": True}
    again, report = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "classifier", **options)
    assert not report["missing_keys"]
    assert report["unexpected_keys"] == {"score.weight"}
    ids = tokens(2, 3 * SEGMENT)
    torch.testing.assert_close(again.eval()(ids).logits, causal(ids).logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_hidden_states_alone(name, tmp_path):
    causal = CASES[name].build()
    causal.save_pretrained(tmp_path)
    model = hf.AutoModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    ids = tokens()
    with torch.no_grad():
        expected = hidden_states(causal, ids)
        torch.testing.assert_close(model(ids).last_hidden_state, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(model(ids, return_dict=False)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_classifier_is_saved_with_its_code(tmp_path):
    _, model = loaded("v1 published", "sequence", tmp_path)
    model.save_pretrained(tmp_path / "code", with_code=True)
    text = (tmp_path / "code" / "modeling_tessera.py").read_text()
    exec(compile(text, "modeling_tessera", "exec"), {})
    assert "AutoModelForSequenceClassification" in (tmp_path / "code" / "README.md").read_text()


@pytest.mark.filterwarnings("ignore")
@each_value(name=["v1 published", "armt around gpt2", "rmt around gpt2"], side=["left", "right"], grad=[True, False])
def test_padding_that_all_rows_have_keeps_its_place(name, side, grad, tmp_path):
    """Logits, hidden states and classes stand where the tokens stand: a batch of one row, padded to a length."""
    causal, model = loaded(name, "sequence", tmp_path)
    ids, padding = tokens(2, 2 * SEGMENT + 1).clamp(min=1), torch.zeros(2, 3, dtype=torch.long)
    pieces = (padding, ids) if side == "left" else (ids, padding)
    mask = torch.cat([torch.full_like(x, int(x is ids)) for x in pieces], 1)
    text = slice(3, None) if side == "left" else slice(0, ids.shape[1])
    with torch.set_grad_enabled(grad):
        padded = causal(torch.cat(pieces, 1), attention_mask=mask, output_hidden_states=True)
        alone = causal(ids, output_hidden_states=True)
        for ours, theirs in zip((padded.logits, *padded.hidden_states), (alone.logits, *alone.hidden_states)):
            assert ours.shape[1] == mask.shape[1]
            torch.testing.assert_close(ours[:, text], theirs, rtol=0, atol=1e-9)
        classes = model(torch.cat(pieces, 1), attention_mask=mask).logits
        torch.testing.assert_close(classes, model(ids).logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["armt around gpt2", "rmt around gpt2"])
def test_logits_of_nothing_but_padding_are_refused(name):
    model, ids = CASES[name].build(), tokens(2, SEGMENT)
    mask = torch.ones_like(ids)
    mask[:, -2:] = 0
    message = "logits_to_keep must be more than the 2 positions of padding"
    refused(message, model, ids, attention_mask=mask, logits_to_keep=1)


TRAINED = ["v1 published", "linear attention gla", "armt around memory_mosaic", "lstm"]


@some(
    ("name", "task"),
    product(TRAINED, TASKS),
    by_default=[("v1 published", "sequence"), ("armt around memory_mosaic", "token")],
)
def test_the_trainer_trains_a_classifier_by_the_mean_in_however_many_parts(name, task, tmp_path):
    ids = tokens(8, 10)
    labels = torch.arange(8) % 3 if task == "sequence" else ids % 3
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels)]
    steps = []
    for parts in (1, 4):
        torch.manual_seed(0)
        config = CASES[name].build().config
        config.num_labels, config.pad_token_id = 3, 0
        model = without_dropout(TASKS[task].from_config(config).double())  # transformers' head of tokens has its own
        expected = model(ids, labels=labels).loss.item()
        arguments = hf.TrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=8 // parts, gradient_accumulation_steps=parts,
            logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        run = hf.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
        assert run.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)
        assert run.predict(rows).predictions.shape[-1] == 3
        run.train()
        assert run.state.log_history[-2]["loss"] == pytest.approx(expected, rel=1e-5)
        steps.append(run.state.log_history[-2]["grad_norm"])
    assert steps[0] == pytest.approx(steps[1], rel=1e-4)
