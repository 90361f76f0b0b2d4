"""A memory of what followed each text: its formula, its gradient, and what a budget keeps."""

import pytest
import torch

from tessera.kernels import kernel_from_config
from tessera.recall import PairIndex, token_memory
from tessera.recall.token_memory import MIXING_WEIGHTS, SLOPES, Mixture, TokenMemory
from tests.defaults import expect_the_same_with_other_defaults


@pytest.fixture
def states():
    """Hidden states (T, D) near one another, and tokens (T,)."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(300, 8, generator=generator) + 1, torch.randint(0, 50, (300,), generator=generator)


def with_mixture(memory, slope, weight):
    losses = torch.ones(len(SLOPES), len(MIXING_WEIGHTS))
    losses[SLOPES.index(slope), MIXING_WEIGHTS.index(weight)] = 0.0
    return TokenMemory(memory.kernel, memory.budget, memory.eviction, Mixture(losses), memory.index, memory.ranks)


@pytest.mark.parametrize("kernel", ["gaussian", "sparsemax", "biweight", "relumax", "normalized_relu", "knn"])
@pytest.mark.parametrize("largest_scan", [10_000, 0])  # 0: through the index
def test_the_mixture_is_what_it_says(states, kernel, largest_scan, monkeypatch):
    hidden, tokens = states
    monkeypatch.setattr(token_memory, "LARGEST_SCAN", largest_scan)
    monkeypatch.setattr(token_memory, "AT_ONCE", 7 * 50)
    memory = with_mixture(TokenMemory.empty(kernel).remembered(hidden[:200], tokens[:200]), 8.0, 0.3)
    logits = torch.randn(2, 10, 50)
    keys = torch.nn.functional.normalize(hidden, dim=-1)
    slope, intercept = kernel_from_config(kernel).affine(torch.tensor(8.0))
    weights = kernel_from_config(kernel).weights(slope * keys[200:220] @ keys[:200].T + (intercept or 0.0))
    recalled = weights @ torch.nn.functional.one_hot(tokens[:200], 50).float()
    expected = 0.7 * logits.softmax(-1) + 0.3 * recalled.view(2, 10, 50)
    torch.testing.assert_close(memory.mixed(hidden[200:220].view(2, 10, 8), logits).softmax(-1), expected)
    right = recalled.gather(1, tokens[200:220, None])[:, 0]
    torch.testing.assert_close(memory.probability(hidden[200:220], tokens[200:220]), right)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # keys are compared as they are
        torch.testing.assert_close(memory.probability(hidden[200:220], tokens[200:220]), right)


def test_gradients_flow_through_the_memory(states):
    hidden, tokens = (part.clone() for part in states)
    memory = with_mixture(TokenMemory.empty("gaussian").remembered(hidden[:200], tokens[:200]), 8.0, 0.5)
    query, logits = hidden[200:201].clone().requires_grad_(), torch.zeros(1, 50)
    loss = -memory.mixed(query, logits).log_softmax(-1)[0, 3]
    (gradient,) = torch.autograd.grad(loss, query)
    direction = torch.randn_like(query)
    with torch.no_grad():
        ahead, back = (-memory.mixed(query + step * direction, logits).log_softmax(-1)[0, 3] for step in (0.01, -0.01))
    torch.testing.assert_close((gradient * direction).sum(), (ahead - back) / 0.02, rtol=0.02, atol=1e-4)


def test_where_memory_does_not_help_it_is_not_used(states):
    hidden, tokens = states
    memory = TokenMemory.empty("gaussian").remembered(hidden[:200], tokens[:200])
    sure = torch.full((100,), 0.9)
    logits = torch.randn(1, 100, 50)
    assert torch.equal(memory.fitted(hidden[200:], tokens[200:], sure).mixed(hidden[None, 200:], logits), logits)


def test_budgets(states):
    hidden, tokens = states

    def kept(eviction, sizes=(100, 150, 50)):
        memory = TokenMemory.empty("biweight", 120, eviction)
        for h, t in zip(hidden.split(sizes), tokens.split(sizes)):
            memory = memory.fitted(h, t, torch.full((len(t),), 0.01)).remembered(h, t)
        return memory

    oldest = kept("oldest")
    assert oldest.tokens.tolist() == tokens[-120:].tolist()
    assert torch.equal(oldest.index.pairs.keys[0, 0], torch.nn.functional.normalize(hidden[-120:], dim=-1))
    assert torch.equal(kept("random").tokens, kept("random", (10, 90, 200)).tokens)
    assert kept("random").tokens.tolist() != oldest.tokens.tolist()
    recalled = TokenMemory.empty("biweight", 120, "least_recalled").remembered(hidden[:120], tokens[:120])
    queries = hidden[:10].repeat(5, 1)
    recalled = recalled.fitted(queries, tokens[:10].repeat(5), torch.full((50,), 0.01))
    recalled = recalled.remembered(hidden[120:230], tokens[120:230])
    keys = recalled.index.pairs.keys[0, 0]
    assert torch.equal(keys[:10], torch.nn.functional.normalize(hidden[:10], dim=-1))  # they were recalled
    assert len(recalled) == 120


def test_a_full_memory_files_no_pairs_that_it_files_anew_after_the_next_tokens(states, monkeypatch):
    hidden, tokens = states
    monkeypatch.setattr(token_memory, "LARGEST_SCAN", 10)
    filed, made = [], PairIndex.append
    monkeypatch.setattr(PairIndex, "append", lambda index, *new: filed.append(len(index)) or made(index, *new))
    memory = TokenMemory.empty("biweight", 100).remembered(hidden[:60], tokens[:60])
    for first in (60, 80, 100, 120):
        memory = memory.remembered(hidden[first : first + 20], tokens[first : first + 20])
    assert filed == [60, 80]
    assert torch.equal(memory.tokens, tokens[40:140])


@pytest.mark.parametrize("eviction", ["oldest", "least_recalled", "random"])
def test_the_default_device_and_dtype_make_no_difference(states, eviction, monkeypatch):
    """Beside a model on the CPU; beside one on a GPU, losses and ranks stay on the CPU."""
    hidden, tokens = states
    logits, sure = torch.randn(300, 50), torch.full((300,), 0.01)
    monkeypatch.setattr(token_memory, "LARGEST_SCAN", 10)

    def mixed():
        memory = TokenMemory.empty("biweight", 120, eviction).remembered(hidden[:100], tokens[:100])
        return [memory.fitted(hidden, tokens, sure).remembered(hidden, tokens).mixed(hidden, logits)]

    expect_the_same_with_other_defaults(mixed)
