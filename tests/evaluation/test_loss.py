"""Losses by position against the definition, and what is derived from them."""

import math

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from tessera.evaluation.loss import bits_per_byte, loss_by_position, perplexity

VOCABULARY = 7


class Bigram(nn.Module):
    """Predicts from the current token alone, with a table of logits."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, dtype=torch.float64))
        self.batches = []

    def forward(self, input_ids, use_cache):
        self.batches.append(len(input_ids))
        return CausalLMOutput(logits=self.table[input_ids])


def windows(count, length=5):
    tokens = torch.randint(0, VOCABULARY, (count, length))
    items = [{"input_ids": row, "labels": row.clone()} for row in tokens]
    items[0]["labels"][2] = -100
    return items


def by_definition(model, items):
    """-log p(x_{t+1} | x_t), averaged over sequences, position by position."""
    probability = torch.softmax(model.table.detach(), -1)
    rows = []
    for place in range(len(items[0]["input_ids"]) - 1):
        values = [
            -math.log(probability[item["input_ids"][place], item["input_ids"][place + 1]])
            for item in items
            if item["labels"][place + 1] != -100
        ]
        rows.append(sum(values) / len(values))
    return rows


@pytest.mark.parametrize("batch_size", [1, 3, 7, 20])
def test_loss_by_position_is_the_definition(batch_size):
    model, items = Bigram(), windows(7)
    result = loss_by_position(model, items, batch_size)
    # losses are taken in float32: 24 bits, values of order one
    assert result.by_position().tolist() == pytest.approx(by_definition(model, items), rel=1e-6)
    assert result.count.tolist() == [7, 6, 7, 7]
    assert result.mean == pytest.approx(float(result.total.sum()) / 27)


@pytest.mark.parametrize("world_size", [2, 3, 9])
def test_processes_share_the_windows_and_call_the_model_equally_often(world_size):
    items, models = windows(7), [Bigram() for _ in range(world_size)]
    for model in models:
        model.load_state_dict(models[0].state_dict())
    parts = [loss_by_position(m, items, 2, rank=rank, world_size=world_size) for rank, m in enumerate(models)]
    at_once = loss_by_position(models[0], items, 2)
    assert sum(part.count for part in parts).tolist() == at_once.count.tolist()
    # float64 sums in another order
    assert sum(part.total for part in parts).tolist() == pytest.approx(at_once.total.tolist(), rel=1e-12)
    assert len({len(model.batches) for model in models[1:]}) == 1


def test_evaluation_draws_no_random_numbers_and_restores_the_mode():
    model = Bigram().train()
    before = torch.get_rng_state()
    loss_by_position(model, windows(1), 1)
    torch.set_rng_state(before)
    items = windows(3)
    state = torch.get_rng_state()
    loss_by_position(model, items, 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training


def test_uniform_bytes_have_eight_bits():
    assert bits_per_byte(math.log(256), 1.0) == pytest.approx(8)
    assert bits_per_byte(math.log(2) * 6, 0.25) == pytest.approx(1.5)
    assert perplexity(math.log(50.0)) == pytest.approx(50)
    assert perplexity(1e4) == math.inf
