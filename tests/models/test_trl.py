"""TRL's supervised fine-tuning trains the mosaics, with texts padded and packed, and ARMT with texts padded."""

import importlib

import pytest
import torch
from transformers import AutoModelForCausalLM

from tessera.data.tokenizers import byte_tokenizer
from tests.covering import each_value, some
from tests.models.armt.bases import WRAPS, tiny
from tests.models.three_models import STACKS, make, tokens
from tests.refusals import refused
from tests.tolerances import close

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's and its friends' own

ROWS = {
    "SFT": [{"text": "Once upon a time. " * count} for count in (1, 2, 3, 4)],
    "DPO": [{"prompt": "Who?", "chosen": " Mary." * count, "rejected": " No."} for count in (1, 2, 3, 4)],
    "KTO": [{"prompt": "Who?", "completion": " Mary." * count, "label": count > 2} for count in (1, 2, 3, 4)],
}


def trl_trainer(kind, model, folder, settings=None, **options):
    """The trainer of `kind`, for two steps; `settings` are those of its configuration."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    module = importlib.import_module("trl.experimental.kto") if kind == "KTO" else trl
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_strategy": "no"}
    few = {"max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "max_length": 24}
    arguments = getattr(module, f"{kind}Config")(output_dir=str(folder), **{**quiet, **few, **(settings or {})})
    data = datasets.Dataset.from_list(ROWS[kind])
    trainer = getattr(module, f"{kind}Trainer")
    return trainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer, **options)


def losses(trainer):
    trainer.train()
    return [record["loss"] for record in trainer.state.log_history if "loss" in record]


@some(
    ("name", "packing"),
    [*((name, packed) for name in STACKS for packed in (0, 1)), ("armt", 0)],
    by_default=[*zip(STACKS, (0, 1)), ("armt", 0)],
)
def test_supervised_fine_tuning(name, packing, tmp_path):
    model = make(name).float()
    before = {key: weight.detach().clone() for key, weight in model.named_parameters()}
    trainer = trl_trainer("SFT", model, tmp_path, {"packing": bool(packing)})
    assert [4 < loss < 8 for loss in losses(trainer)] == [True, True]
    same = [key for key, weight in model.named_parameters() if torch.equal(weight.detach(), before[key])]
    assert not [key for key in same if "embed" in key or "wte" in key or "value" in key or "memory" in key]


@each_value(kind=["SFT", "DPO", "KTO"], name=["v1", "armt"])
def test_trainings_from_a_folder(name, kind, tmp_path):
    """Preferences need a second copy of the model, which TRL reads from the folder too."""
    make(name).float().save_pretrained(tmp_path / "model")
    (first,) = losses(trl_trainer(kind, str(tmp_path / "model"), tmp_path / "output", {"max_steps": 1}))
    assert 4 < first < 8 if kind == "SFT" else first == pytest.approx({"DPO": 0.6931, "KTO": 0.5}[kind], abs=1e-3)


def test_a_second_copy_is_loaded_with_the_attention_of_the_first(tmp_path):
    """DPO and KTO ask for it by name; a Mamba has none but its own."""
    WRAPS["armt"](tiny("mamba"), segment_size=8, num_memory_tokens=2).save_pretrained(tmp_path)
    first = AutoModelForCausalLM.from_pretrained(tmp_path)
    asked = first.config._attn_implementation
    second = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=asked)
    assert asked == first.base.config._attn_implementation == second.base.config._attn_implementation == "eager"


def test_packed_texts_of_armt_are_refused(tmp_path):
    trainer = trl_trainer("SFT", make("armt").float(), tmp_path, {"packing": True})
    refused(r"documents \(TRL's packing=True\) need a row each", trainer.train)


def test_the_loss_of_trl_is_that_of_the_model_with_its_memory(tmp_path):
    """It calls `base_model` and the head in place of `forward`."""
    model, ids, mask = make("armt"), tokens(2, 20), torch.ones(2, 20, dtype=torch.long)
    mask[1, 13:] = 0
    hidden = model.base_model(ids, attention_mask=mask, use_cache=False).last_hidden_state
    logits = model(ids, attention_mask=mask).logits
    close(model.get_output_embeddings()(hidden)[mask.bool()], logits[mask.bool()])
    assert model.base_model.config is model.base.config
