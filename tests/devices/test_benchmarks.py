"""What `benchmarks` counts and times is what it says: bytes, and decoded tokens behind a state."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks import language_models
from benchmarks.gpu_stages import decoding
from benchmarks.traffic import Traffic
from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM

A, B = torch.zeros(4, 8), torch.zeros(8, 4)


@pytest.mark.parametrize(
    ("operation", "numbers"),
    [
        (lambda: A @ B, 32 + 32 + 16),
        (lambda: torch.mm(A, B, out=torch.empty(4, 4)), 32 + 32 + 16),
        (lambda: torch.empty(4, 8).copy_(A), 32 + 32),
        (lambda: torch.empty(4, 8).zero_(), 32),
        (lambda: torch.empty(4, 8).add_(A), 3 * 32),
        (lambda: A * A, 2 * 32),
        (lambda: A + torch.ones(4, 1).expand(4, 8), 4 + (32 + 4 + 32)),  # making the column, which is read once
        (lambda: A.view(32).unflatten(0, (8, 4)).transpose(0, 1), 0),
    ],
)
def test_bytes(operation, numbers):
    with Traffic() as traffic:
        operation()
    assert sum(traffic.bytes.values()) == 4 * numbers


@pytest.fixture(params=["v1", "gpt2"])
def model(request):
    size = language_models.SIZE["vocab_size"]
    if request.param == "v1":
        config = MemoryMosaicConfig(vocab_size=size, hidden_size=8, num_layers=1, num_heads=1, num_persistent_slots=2)
        return MemoryMosaicForCausalLM(config)
    return GPT2LMHeadModel(GPT2Config(vocab_size=size, n_embd=8, n_layer=1, n_head=1))


@pytest.mark.parametrize("stage", ["make bench", "gpu"])
def test_decoding_is_timed_again(model, stage):
    lengths = []  # behind which each token is decoded
    ids = torch.zeros(1, 4, dtype=torch.long)
    run = decoding.generation(model, ids, 2) if stage == "gpu" else language_models.decoding(model, 4)
    model.register_forward_pre_hook(
        lambda model, inputs, keywords: lengths.append(keywords["past_key_values"].get_seq_length()), with_kwargs=True
    )
    run()
    first = list(lengths)
    assert first == list(range(3, 3 + len(first)))
    run()
    goes_on = stage == "make bench" and model.config.model_type == "memory_mosaic"
    assert lengths[len(first) :] == [length + len(first) * goes_on for length in first]
