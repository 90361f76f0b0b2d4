"""Adapters of PEFT and trainings of TRL around a model with a memory."""

import pytest
import torch

from tests.models.armt.bases import BASES, WRAPS, make, tokens
from tests.models.test_trl import losses, trl_trainer
from tests.refusals import refused

pytestmark = pytest.mark.filterwarnings("ignore")  # peft's and trl's own
peft = pytest.importorskip("peft")


def fresh(kind="armt", **changes):
    """A wrapped Llama whose memory adds nothing yet, always the same."""
    torch.manual_seed(3)
    return WRAPS[kind](BASES["llama"](**changes), segment_size=8, num_memory_tokens=3)


def lora(model=None, **options):
    saved = {} if model is None else {"modules_to_save": list(model.memory_modules)}
    return peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2, task_type="CAUSAL_LM", **saved, **options)


def trained(model, ids):
    """`model` after three steps with all that learns; the names of what has a gradient."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    model.eval()
    return {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}


@pytest.mark.parametrize("kind", WRAPS)
def test_the_memory_is_trained_saved_and_loaded_with_the_adapter(kind, tmp_path):
    ids = tokens(2, 20)
    model = fresh(kind)
    adapted = peft.get_peft_model(model, lora(model))
    before = adapted(input_ids=ids).logits.detach()
    learned = trained(adapted, ids)
    for name in model.memory_modules:
        assert any(name in key for key in learned), name
    expected = adapted(input_ids=ids).logits
    assert (expected - before).abs().max() > 1e-2
    adapted.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(fresh(kind), tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=ids).logits, expected)
    with adapted.disable_adapter():
        torch.testing.assert_close(adapted(input_ids=ids).logits, before)


@pytest.mark.parametrize("kind", WRAPS)
def test_add_adapter_takes_the_memory_along(kind, tmp_path):
    ids = tokens(2, 20)
    model = fresh(kind)
    model.add_adapter(lora())
    assert any("memory_tokens" in name for name in trained(model, ids))
    expected = model(ids).logits
    model.save_pretrained(tmp_path)
    loaded = fresh(kind)
    loaded.load_adapter(str(tmp_path))
    torch.testing.assert_close(loaded.eval()(ids).logits, expected)


def test_a_memory_frozen_where_it_adds_nothing_is_refused():
    adapted = peft.get_peft_model(fresh(), lora()).train()
    ids = tokens(2, 20)
    refused(r"modules_to_save=\['memories', 'memory_tokens'\]", adapted, input_ids=ids, labels=ids)
    with torch.no_grad():
        adapted.eval()(input_ids=ids)
    taught = make(family="llama")  # a memory that has learned may stay as it is
    assert peft.get_peft_model(taught, lora()).train()(input_ids=ids, labels=ids).loss.requires_grad


@pytest.mark.parametrize("kind", ["SFT", "DPO"])
def test_an_adapter_and_the_memory_are_trained_by_trl(kind, tmp_path):
    model = fresh(vocab_size=300)  # for bytes
    trainer = trl_trainer(kind, model, tmp_path, {"learning_rate": 0.05}, peft_config=lora(model))
    first, _ = losses(trainer)
    assert first == pytest.approx(0.693, abs=1e-3) if kind == "DPO" else 4 < first < 8
    memories = trainer.model.get_base_model().memories
    assert all(bool(memory.value.weight.any()) for memory in memories.in_order()), "it began as 0"
