"""The recurrent baselines: against the formulas that define them, and as parts of a model."""

import pytest
import torch

from tessera.memories.linear_attention import VARIANTS, LinearAttentionMemory
from tests.models.contract import linear
from tests.tolerances import close


def memory_of(variant):
    torch.manual_seed(1)
    memory = LinearAttentionMemory(16, 2, variant).double()
    return memory, torch.randn(2, 9, 16, dtype=torch.float64)


def heads(x):
    return x.unflatten(-1, (2, -1)).transpose(1, 2)


def test_linear_transformer_is_attention_without_softmax():
    memory, x = memory_of("linear_transformer")
    query, key = (torch.nn.functional.elu(heads(part(x))) + 1 for part in (memory.query, memory.key))
    weights = (query @ key.transpose(2, 3)).tril()
    expected = (weights / weights.sum(-1, keepdim=True)) @ heads(memory.value(x))
    close(memory(x)[0], memory.output(expected.transpose(1, 2).flatten(2)))


def test_retnet_decays_by_distance_and_knows_relative_positions_only():
    memory, x = memory_of("retnet")
    key_width = 8
    query, key = heads(memory.query(x)), heads(memory.key(x))
    place = torch.arange(9, dtype=torch.float64)
    frequencies = 10000.0 ** -(torch.arange(0, key_width, 2).double() / key_width)
    turn = torch.polar(torch.ones(9, 4, dtype=torch.float64), place[:, None] * frequencies)
    query, key = (torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) * turn for part in (query, key))
    scores = (query @ key.conj().transpose(2, 3)).real / key_width**0.5
    gamma = 1 - 2.0 ** -(5 + torch.arange(2, dtype=torch.float64))
    distance = place[:, None] - place
    decay = (gamma[:, None, None] ** distance.clamp(min=0)).tril()
    answers = torch.nn.functional.layer_norm((scores * decay) @ heads(memory.value(x)), (16,))
    gated = answers.transpose(1, 2).flatten(2) * torch.nn.functional.silu(memory.gate(x))
    close(memory(x)[0], memory.output(gated))


def test_gla_decays_each_key_dimension_by_its_gate():
    memory, x = memory_of("gla")
    query, key, value = (heads(part(x)) for part in (memory.query, memory.key, memory.value))
    decay = heads(torch.sigmoid(memory.decay(x)) ** (1 / 16))
    matrix, answers = torch.zeros(2, 2, 4, 8, dtype=torch.float64), []
    for step in range(9):
        matrix = decay[:, :, step, :, None] * matrix + key[:, :, step, :, None] * value[:, :, step, None]
        answers.append((query[:, :, step, None] @ matrix)[:, :, 0] / 4**0.5)
    answers = torch.nn.functional.layer_norm(torch.stack(answers, 2), (8,))
    gated = answers.transpose(1, 2).flatten(2) * torch.nn.functional.silu(memory.gate(x))
    close(memory(x)[0], memory.output(gated))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_layer_is_as_large_as_a_transformers(variant):
    layers = linear(variant, hidden_size=32, num_layers=2, num_heads=2).model.layers
    size = sum(parameter.numel() for name, parameter in layers.named_parameters() if "norm" not in name)
    assert abs(size - 12 * 2 * 32**2) < 0.02 * size
