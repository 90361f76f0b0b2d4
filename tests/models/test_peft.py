"""PEFT's methods on our models, as its documentation writes them."""

from contextlib import nullcontext

import pytest
import torch
from transformers import DataCollatorWithFlattening

import tessera
from tessera.data.tokenizers import byte_tokenizer
from tessera.memory_files import Memory
from tests.covering import each_value
from tests.memory_files.models import make
from tests.models.contract import CASES, tokens
from tests.refusals import refused

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore")  # its and its friends' own
PAIRS = ["v1 published", "v1 compact", "v2 gaussian", "v2 no long-term memory"]
ALL = [*PAIRS, "linear attention gla", "armt around gpt2", "rmt around memory_mosaic"]


@pytest.mark.parametrize(
    ("name", "method"),
    [*((name, "LoraConfig") for name in ALL), ("v1 published", "LoHaConfig"), ("linear attention gla", "OFTConfig")],
)
def test_adapters_without_named_layers(name, method):
    model = CASES[name].build()
    adapted = peft.get_peft_model(model, getattr(peft, method)(task_type="CAUSAL_LM"))
    assert adapted.get_nb_trainable_parameters()[0] > 0
    ids = tokens(1, 15)
    adapted(input_ids=ids, labels=ids).loss.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in adapted.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["v1 published", "lstm", "armt around gpt2", "rmt around memory_mosaic"])
@torch.no_grad()
def test_trained_tokens_of_tied_embeddings_act_on_the_head(name):
    model, ids = CASES[name].build(), tokens(1, 15) % 50
    (embeddings,) = [name for name, module in model.named_modules() if module is model.get_input_embeddings()]
    expected = model(ids).logits
    config = peft.TrainableTokensConfig(target_modules=[embeddings], token_indices=[57])
    adapted = peft.get_peft_model(model, config).eval()
    next(p for key, p in adapted.named_parameters() if "trainable_tokens_delta" in key).add_(0.5)
    logits = adapted(ids).logits
    changes = (logits - expected).abs().amax((0, 1))
    assert (changes > 1e-9).nonzero().flatten().tolist() == [57]
    torch.testing.assert_close(adapted.merge_and_unload()(ids).logits, logits)


@pytest.mark.parametrize("name", ["v1 published", "armt around memory_mosaic"])
@torch.no_grad()
def test_a_trained_copy_of_tied_embeddings_is_merged_and_saved(name, tmp_path):
    model, ids = CASES[name].build(), tokens(1, 15)
    copied = {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **copied)).eval()
    next(p for key, p in adapted.named_parameters() if "embed_tokens.modules_to_save" in key).mul_(1.5)
    logits = adapted(ids).logits
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(merged(ids).logits, logits)
    merged.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    torch.testing.assert_close(again(ids).logits, logits)


def test_an_adapter_around_a_wrapped_linear_attention():
    model = tessera.wrap(
        CASES["linear attention gla"].build().float(), segment_size=6, num_memory_tokens=2, memory_dim=4
    )
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(task_type="CAUSAL_LM", modules_to_save=[*model.memory_modules])
    )
    ids = tokens(1, 15)
    output = adapted(input_ids=ids, labels=ids)
    output.loss.backward()
    assert sum("lora_" in name for name, p in adapted.named_parameters() if p.grad is not None) == 8
    assert output.logits.shape[:2] == ids.shape  # of a training step


def with_two_adapters(model):
    """Its adapters "default", which acts, and "other"."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    adapted.add_adapter("other", config)
    return adapted


@pytest.mark.parametrize("name", ["v1 published", "v2 gaussian", "linear attention gla", "armt around gpt2"])
@torch.no_grad()
def test_a_state_is_of_the_adapters_that_acted(name):
    """Or of none: one that was read before there were any goes on where all of them rest."""
    model, ids = CASES[name].build(), tokens(1, 15)
    begun = {"input_ids": ids[:, :9], "use_cache": True}
    of_none, without_any = model(ids).logits[:, 9:], model(**begun).past_key_values
    adapted = with_two_adapters(model)
    expected, acting = adapted(input_ids=ids).logits[:, 9:], adapted(**begun).past_key_values

    def goes_on(state):
        return adapted(input_ids=ids[:, 9:], past_key_values=state).logits

    message = "another configuration or adapter. Read the text again"
    refused(message, goes_on, without_any)
    adapted.set_adapter("other")
    refused(message, goes_on, acting)
    adapted.set_adapter("default")
    with adapted.disable_adapter():
        refused(message, goes_on, acting)
        for state in (without_any, adapted(**begun).past_key_values):
            torch.testing.assert_close(goes_on(state), of_none)
    torch.testing.assert_close(goes_on(acting), expected)


@pytest.mark.parametrize("name", ["v1 published", "armt around gpt2", "armt around memory_mosaic", "rmt around gpt2"])
@torch.no_grad()
def test_each_row_has_its_own_adapter(name):
    """PEFT's `adapter_names`: whatever rows are read together, and its states are of the same adapters alone."""
    adapted, ids = with_two_adapters(CASES[name].build()).double(), tokens(3, 21)
    names, mask = ["default", "other", "__base__"], torch.ones_like(ids)
    mask[0, 12:] = mask[1, :7] = 0  # in segments of 8: the first row ends, the second begins late

    def of(row, name, generate=False):
        adapted.set_adapter("default" if name == "__base__" else name)
        with adapted.disable_adapter() if name == "__base__" else nullcontext():
            return adapted.generate(input_ids=row, **made) if generate else adapted(input_ids=row).logits

    logits = adapted(input_ids=ids, attention_mask=mask, adapter_names=names).logits
    for row, name in enumerate(names):
        is_token = mask[row].bool()
        torch.testing.assert_close(logits[row, is_token], of(ids[row, is_token][None], name)[0])
    made = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    starts = [0, 7, 13]  # in two segments
    mask = torch.arange(21) >= torch.tensor(starts)[:, None]
    answers = adapted.generate(input_ids=ids, attention_mask=mask.long(), adapter_names=names, **made)[:, 21:]
    for row, (name, start) in enumerate(zip(names, starts)):
        assert answers[row].tolist() == of(ids[row, start:][None], name, generate=True)[0, 21 - start :].tolist()
    adapted.set_adapter("default")
    whole = adapted(input_ids=ids, adapter_names=names).logits
    state = adapted(input_ids=ids[:, :9], adapter_names=names, use_cache=True).past_key_values
    rest = {"input_ids": ids[:, 9:], "past_key_values": state}
    refused("another configuration or adapter", adapted, **rest)
    torch.testing.assert_close(adapted(**rest, adapter_names=names).logits, whole[:, 9:])
    refused("another configuration or adapter", adapted, **rest, adapter_names=names[::-1])


@pytest.mark.parametrize("name", ["v1 published", "armt around gpt2"])
@torch.no_grad()
def test_the_adapter_of_all_rows_need_not_be_the_active_one(name):
    adapted, ids = with_two_adapters(CASES[name].build()).double(), tokens(2, 21)
    others = {"adapter_names": ["other"] * 2}
    state = adapted(input_ids=ids[:, :9], **others, use_cache=True).past_key_values
    rest = {"input_ids": ids[:, 9:], "past_key_values": state}
    refused("another configuration or adapter", adapted, **rest)
    whole = adapted(input_ids=ids, **others).logits[:, 9:]
    torch.testing.assert_close(adapted(**rest, **others).logits, whole)
    adapted.set_adapter("other")
    torch.testing.assert_close(adapted(**rest).logits, whole)


@pytest.mark.parametrize("name", ["v1 published", "armt around gpt2"])
@torch.no_grad()
def test_names_of_a_call_that_raised_are_not_those_of_the_next_one(name):
    """PEFT leaves them on its modules, where those of a later call act in their place."""
    adapted, ids = with_two_adapters(CASES[name].build()).double(), tokens(2, 21)
    names = ["default", "other"]
    expected = adapted(input_ids=ids, adapter_names=names, use_cache=True)
    rest = {"input_ids": ids, "past_key_values": expected.past_key_values}
    refused("another configuration or adapter", adapted, **rest, adapter_names=names[::-1])
    torch.testing.assert_close(adapted(input_ids=ids, adapter_names=names).logits, expected.logits)
    adapted(**rest, adapter_names=names)


@torch.no_grad()
def test_rows_with_adapters_of_their_own_have_one_memory():
    """Where an adapter has a copy of the memory, all rows would be read with that of the active one."""
    model = CASES["armt around gpt2"].build()
    config = peft.LoraConfig(task_type="CAUSAL_LM", modules_to_save=[*model.memory_modules])
    adapted = peft.get_peft_model(model, config).eval()
    names = ["default", "__base__"]
    refused("adapter_names must be left out where adapters", adapted, input_ids=tokens(2, 9), adapter_names=names)
    adapted = with_two_adapters(CASES["armt around gpt2"].build())
    refused("adapter_names must be one for each of 3 rows; got 2", adapted, input_ids=tokens(3, 9), adapter_names=names)


@pytest.mark.parametrize("kind", ["v1", "llama"])
def test_a_memory_file_is_of_the_adapters_that_acted(kind, tmp_path):
    """Or of none, as a state."""
    model, without_any, acting = make(kind), tmp_path / "without any", tmp_path / "acting"

    def memory():
        return Memory(model, byte_tokenizer())

    memory().read("A king lived here.").save(without_any)
    expected = memory().load(without_any).ask("Who?")
    adapted = with_two_adapters(model)
    memory().read("A king lived here.").save(acting)
    assert memory().load(acting).names
    refused("of other weights", memory().load, without_any)
    with adapted.disable_adapter():
        assert memory().load(without_any).ask("Who?").probability == expected.probability
    adapted.set_adapter("other")
    refused("of other weights. Read the text again", memory().load, acting)


@pytest.mark.parametrize("kind", ["v1", "llama"])
def test_a_memory_in_use_is_of_the_adapters_that_acted(kind, tmp_path):
    adapted = with_two_adapters(make(kind))
    memory = Memory(adapted.get_base_model(), byte_tokenizer()).read("A king lived here.")
    adapted.set_adapter("other")
    for use in (lambda: memory.ask("Who?"), lambda: memory.read("Two sons."), lambda: memory.save(tmp_path / "file")):
        refused("another configuration or adapter", use)
    adapted.set_adapter("default")
    assert memory.ask("Who?").text
    for weight in adapted.parameters():
        weight.data.mul_(1.5)  # PyTorch counts nothing of this
    refused("the model must be as it was when it read the documents; got one of other weights", memory.ask, "Who?")


def prefixed(model, kind="PrefixTuningConfig"):
    torch.manual_seed(3)
    return peft.get_peft_model(model, getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=5)).double()


@each_value(kind=["PrefixTuningConfig", "CartridgeConfig"], name=PAIRS)
def test_a_prefix_acts_and_learns(name, kind, tmp_path):
    model, ids = CASES[name].build(), tokens(2, 9)
    with torch.no_grad():
        alone = model(ids).logits
    tuned = prefixed(model, kind)
    optimizer = torch.optim.Adam([p for p in tuned.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(4):
        loss = tuned(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    tuned.eval()
    with torch.no_grad():
        logits = tuned(input_ids=ids).logits
        assert (logits - alone).abs().max() > 1e-3
        with tuned.disable_adapter():
            torch.testing.assert_close(tuned(input_ids=ids).logits, alone)
    tuned.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(CASES[name].build(), tmp_path).double().eval()
    torch.testing.assert_close(again(input_ids=ids).logits, logits)


@pytest.mark.parametrize("name", PAIRS)
def test_a_prefix_of_rows_of_unequal_length(name):
    tuned, ids = prefixed(CASES[name].build()).eval(), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with torch.no_grad():
        together = tuned(input_ids=ids, attention_mask=mask).logits
        torch.testing.assert_close(together[:1], tuned(input_ids=ids[:1]).logits)
        torch.testing.assert_close(together[1:, 4:], tuned(input_ids=ids[1:, 4:]).logits)
        positions = torch.arange(9)[None]  # of the text, which begins behind the prefix
        torch.testing.assert_close(
            tuned.base_model(ids[:1], position_ids=positions, past_key_values=tuned.get_prompt(1)).logits, together[:1]
        )


@pytest.mark.parametrize("name", ["v1 published", "v1 training code", "v2 gaussian", "v2 no long-term memory"])
@torch.no_grad()
def test_each_document_begins_behind_the_prefix(name):
    """Whatever its number is, wherever it stands in its row, and also behind a state of another."""
    tuned, ids = prefixed(CASES[name].build()).eval(), tokens(3, 15)

    def alone(*parts):
        return tuned(input_ids=torch.cat(parts, -1)[None]).logits[0]

    for number in (0, 7):
        logits = tuned(input_ids=ids, document_ids=torch.full_like(ids, number)).logits
        torch.testing.assert_close(logits[0], alone(ids[0]))
    documents = torch.tensor([[3] * 4 + [1] * 5 + [2] * 6, [-1] * 3 + [0] * 8 + [5] + [-1] * 3, [-1] * 15])
    packed = {"input_ids": ids, "document_ids": documents}
    first = tuned(**packed, use_cache=True)
    torch.testing.assert_close(tuned(**packed).logits, first.logits)
    for row, begin, end in ((0, 0, 4), (0, 4, 9), (0, 9, 15), (1, 3, 11), (1, 11, 12)):
        torch.testing.assert_close(first.logits[row, begin:end], alone(ids[row, begin:end]))
    rest, documents = tokens(3, 5, seed=1), torch.tensor([[2, 2, 8, 8, 8], [-1, 5, 5, 5, 9], [4] * 5])
    model, state = tuned.get_base_model(), first.past_key_values
    second = model(rest, document_ids=documents, past_key_values=state, use_cache=True)
    torch.testing.assert_close(second.logits[0], torch.cat([alone(ids[0, 9:], rest[0, :2])[6:], alone(rest[0, 2:])]))
    torch.testing.assert_close(second.logits[1, 1:4], alone(ids[1, 11:12], rest[1, 1:4])[1:])
    torch.testing.assert_close(second.logits[1, 4:], alone(rest[1, 4:]))
    torch.testing.assert_close(second.logits[2], alone(rest[2]))
    decoded = model(ids[:, :1], past_key_values=second.past_key_values).logits
    torch.testing.assert_close(decoded[0], alone(rest[0, 2:], ids[0, :1])[-1:])
    refused("output_attentions must be False where a prefix has several", tuned, **packed, output_attentions=True)


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@torch.no_grad()
def test_a_compiled_program_has_the_prefix_before_a_document_of_any_number():
    tuned, ids = prefixed(CASES["v1 published"].build()).eval(), tokens(3, 15)
    torch._dynamo.reset()
    compiled = torch.compile(tuned, backend="eager")(input_ids=ids, document_ids=torch.full_like(ids, 7))
    torch.testing.assert_close(compiled.logits, tuned(input_ids=ids).logits)


@pytest.mark.parametrize("name", ["v1 published", "v2 gaussian"])
def test_a_prefix_learns_from_packed_rows(name):
    """Of transformers' collator, as from each text alone; v2 is read with the delay of inference."""
    tuned = prefixed(CASES[name].build()).eval()
    (learned,) = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
    texts = [row[:length] for row, length in zip(tokens(3, 9), (4, 9, 6))]
    gradients = [
        torch.autograd.grad(tuned(input_ids=x[None], labels=x[None]).loss * (len(x) - 1), learned) for x in texts
    ]
    packed = DataCollatorWithFlattening()([{"input_ids": text.tolist()} for text in texts])
    (together,) = torch.autograd.grad(tuned(**packed).loss * sum(len(text) - 1 for text in texts), learned)
    torch.testing.assert_close(together, sum(gradient for (gradient,) in gradients))


@pytest.mark.parametrize("name", PAIRS)
def test_generation_from_a_prefix(name):
    tuned, ids = prefixed(CASES[name].build()).eval(), tokens(1, 9)
    made = tuned.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    text = ids
    with torch.no_grad():
        for _ in range(5):
            text = torch.cat([text, tuned(input_ids=text).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(made, text)


@torch.no_grad()
def test_a_cartridge_begins_as_a_text():
    """Its pairs are those that the model stored while it read."""
    from peft.tuners.cartridge.utils import initialize_kv_prefix_from_past_key_values

    model, ids = CASES["v1 contextual only"].build(), tokens(1, 9)
    state = model(ids, use_cache=True).past_key_values
    tuned = prefixed(model, "CartridgeConfig").eval()
    initialize_kv_prefix_from_past_key_values(tuned, past_key_values=state)
    begun = tuned.get_prompt(1).state("", model.model.layers)
    for layer, other in zip(state.layers, begun.layers):
        torch.testing.assert_close(other[0].pairs.keys, layer[0].pairs.keys[:, :, :5])
        torch.testing.assert_close(other[0].pairs.values, layer[0].pairs.values[:, :, :5])
    tuned(input_ids=tokens(1, 4))


def test_a_prefix_needs_pairs():
    tuned = prefixed(CASES["linear attention gla"].build())
    with pytest.raises(ValueError, match="Its memories are matrices, which hold no pairs"):
        tuned(input_ids=tokens())
