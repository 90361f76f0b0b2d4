"""Memory Mosaics v2 do what users of transformers expect of a model."""

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM

PADDING = 10


@pytest.fixture
def model():
    config = MemoryMosaicV2Config(
        vocab_size=12,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        intermediate_size=24,
        short_term_span=4,
        long_term_delay=3,
        pad_token_id=PADDING,
        bos_token_id=11,
        eos_token_id=PADDING,
    )
    model = MemoryMosaicV2ForCausalLM(config).eval()
    with torch.no_grad():  # sharp enough that greedy choices do not hang on rounding, and never the end of text
        model.lm_head.weight.mul_(20)
        model.lm_head.weight[PADDING] = 0
    return model


def prompt(batch=1, steps=7):
    return torch.randint(0, 10, (batch, steps))


def test_saves_and_loads_through_the_auto_classes(model, tmp_path):
    model.disable_long_term_memory()  # a matter of the moment: the weights are saved
    model.save_pretrained(tmp_path)
    model.enable_long_term_memory()
    ids = prompt()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, MemoryMosaicV2ForCausalLM)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    base = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(base(ids).last_hidden_state, model.model(ids).last_hidden_state)
    assert AutoConfig.from_pretrained(tmp_path).training_long_term_delay == [64, 256]
    assert {path.suffix for path in tmp_path.iterdir()} - {".md"} == {".json", ".safetensors"}


def test_samples(model):
    ids = prompt()
    arguments = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": True}
    actual = model.generate(ids, num_return_sequences=3, **arguments)
    assert actual.shape == (3, 11)
    assert actual[:, 7:].unique(dim=0).shape[0] > 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler itself warns about its deprecated parts and about graph breaks
def test_compiles(model):
    ids = prompt(2, 16)
    compiled = torch.compile(model)
    torch.testing.assert_close(compiled(ids, use_cache=False).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    model.train()
    torch.compile(model)(ids, labels=ids, use_cache=False).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
