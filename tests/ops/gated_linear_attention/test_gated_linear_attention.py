"""Chunks against the equation, step by step."""

import pytest
import torch
from torch import Tensor

from tessera.base.errors import TesseraError
from tessera.ops.gated_linear_attention import CHUNK, LinearAttentionState, gated_linear_attention
from tests.refusals import refused
from tests.tolerances import close

LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 63)


def reference(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: LinearAttentionState, documents: Tensor
) -> tuple[Tensor, LinearAttentionState]:
    """Step by step, as the equation reads; arguments and results as `gated_linear_attention`'s, all of them present."""
    matrix, document, answers = state.matrix, state.document, []
    for step in range(query.shape[2]):
        continues = documents[:, step : step + 1] == document
        matrix = matrix * continues[:, :, None, None]
        matrix = log_decay[:, :, step].exp()[..., None] * matrix + key[:, :, step, :, None] * value[:, :, step, None, :]
        answers.append(torch.einsum("bhk,bhkv->bhv", query[:, :, step], matrix))
        document = documents[:, step : step + 1]
    return torch.stack(answers, 2), LinearAttentionState(matrix, document)


def inputs(steps, decay, batch=3, heads=2, width=4, values=5):
    generator = torch.Generator().manual_seed(steps)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    query, key = draw(batch, heads, steps, width), draw(batch, heads, steps, width)
    return query, key, draw(batch, heads, steps, values), -decay * draw(batch, heads, steps, width).abs()


def documents_of(steps):
    """One document; several, some of them of one step; padding before and behind."""
    several = torch.arange(steps) // 5
    padded = torch.where((torch.arange(steps) < 2) | (torch.arange(steps) > steps - 2), -1, 7)
    return torch.stack([torch.zeros(steps, dtype=torch.long), several, padded])


@pytest.mark.parametrize("decay", [0.0, 0.1, 300.0])
@pytest.mark.parametrize("steps", LENGTHS)
def test_chunks_equal_the_equation(steps, decay):
    tensors, documents = inputs(steps, decay), documents_of(steps)
    answers, state = gated_linear_attention(*tensors, documents=documents)
    empty = LinearAttentionState(torch.zeros(3, 2, 4, 5, dtype=torch.float64), documents[:, :1])
    query, key, value, log_decay = tensors
    stored = key * (documents >= 0)[:, None, :, None]
    expected, last = reference(query, stored, value, log_decay, empty, documents)
    close(answers, expected)
    close(state.matrix, last.matrix)
    weight = torch.randn(answers.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = torch.autograd.grad((answers * weight).sum(), tensors[:3], retain_graph=True)
    theirs = torch.autograd.grad((expected * weight).sum(), tensors[:3])
    close(ours, theirs)


@pytest.mark.parametrize("reset", [-torch.inf, -1e9])
def test_what_forgets_everything_leaves_the_decays_behind_it_as_they_are(reset):
    """In float32 a sum with -1e9 has no digit left for them, and a difference of two infinite sums is NaN."""
    *tensors, log_decay = (tensor.detach() for tensor in inputs(20, 0.5))
    log_decay[:, :, [2, 5, 17]] = reset
    tensors = [*tensors, log_decay]
    empty = LinearAttentionState(torch.zeros(3, 2, 4, 5, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.long))
    expected, last = reference(*tensors, empty, torch.zeros(3, 20, dtype=torch.long))
    narrow = [tensor.float().requires_grad_() for tensor in tensors]
    answers, state = gated_linear_attention(*narrow)
    torch.testing.assert_close(answers.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state.matrix.double(), last.matrix, rtol=1e-4, atol=1e-4)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(answers.sum(), narrow))


def test_a_state_of_other_rows_is_refused_and_one_of_another_format_goes_on():
    tensors, documents = inputs(9, 0.2), documents_of(9)
    _, state = gated_linear_attention(*tensors, documents=documents)
    with pytest.raises(TesseraError, match=r"state must have a matrix \(3, 2, 4, 5\); got \(1, 2, 4, 5\)"):
        gated_linear_attention(*tensors, state.select_batch(torch.tensor([0])), documents)
    expected, _ = gated_linear_attention(*tensors, state, documents)
    actual, _ = gated_linear_attention(*(tensor.float() for tensor in tensors), state, documents)
    torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=1e-5)


def test_shapes_that_do_not_fit():
    query, key, value, _ = inputs(4, 0.0)
    refused("key must be", gated_linear_attention, query, key[:, :, :3], value)
    refused("documents must be", gated_linear_attention, query, key, value, documents=torch.zeros(3, 5))


@pytest.mark.parametrize("decay", [0.0, 0.001])
def test_long_sums_in_bfloat16_are_those_of_float64(decay):
    """Token by token, as in decoding: a sum that is rounded to bfloat16 at each step stops growing."""
    query, key, value = (torch.rand(1, 1, 600, width).bfloat16() for width in (4, 4, 3))
    log_decay = torch.tensor(-decay).bfloat16()
    expected, _ = gated_linear_attention(query.double(), key.double(), value.double(), log_decay.double())
    answers, state = [], None
    for step in range(600):
        now = slice(step, step + 1)
        answer, state = gated_linear_attention(query[:, :, now], key[:, :, now], value[:, :, now], log_decay, state)
        answers.append(answer)
    assert answer.dtype == torch.bfloat16
    for actual in (torch.cat(answers, 2), gated_linear_attention(query, key, value, log_decay)[0]):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=0)
