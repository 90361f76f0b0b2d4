"""The chunked leaky average is the step-by-step one: values, state, all gradients, at awkward lengths."""

import pytest
import torch

from tessera.ops.leaky_average import leaky_average
from tessera.ops.linear_recurrence import BACKENDS
from tessera.ops.linear_recurrence.chunked import CHUNK
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT64

B, H, K = 2, 3, 4
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3)


def call(backend, steps, with_state, with_documents, dtype=torch.float64):
    torch.manual_seed(steps)
    x = torch.randn(B, steps, H, K, dtype=dtype).transpose(1, 2).requires_grad_()
    decay = torch.tensor([0.3, 0.95, 1.0], dtype=torch.float64, requires_grad=True)
    state = torch.randn(B, H, K, dtype=dtype, requires_grad=True) if with_state else None
    documents = (torch.rand(B, steps) < 0.05).cumsum(dim=1) if with_documents else None
    y, last = leaky_average(x, decay, state, documents, backend=backend)
    loss = (y * torch.randn(y.shape, dtype=dtype)).sum() + (last**2).sum()
    leaves = [x, decay] + ([state] if with_state else [])
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    return y, last, *(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients))


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in ("reference", "triton")])
@pytest.mark.parametrize("steps", LENGTHS)
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize("with_documents", [False, True])
def test_agrees_with_the_reference(backend, steps, with_state, with_documents):
    expected = call("reference", steps, with_state, with_documents)
    actual = call(backend, steps, with_state, with_documents)
    for a, b in zip(actual, expected):
        scale = max(1.0, b.abs().max().item())
        torch.testing.assert_close(a, b, rtol=REORDERED_FLOAT64, atol=REORDERED_FLOAT64 * scale)


def test_long_sequences_recurse_over_chunks_of_chunks():
    steps = CHUNK * CHUNK + CHUNK + 1
    x = torch.randn(1, 2, steps, 1, dtype=torch.float64)
    decay = torch.tensor([0.999, 1.0], dtype=torch.float64)
    torch.testing.assert_close(leaky_average(x, decay)[0], leaky_average(x, decay, backend="reference")[0])


def test_bfloat16_stays_close():
    x, decay = torch.randn(B, H, 200, K), torch.tensor([0.3, 0.9, 0.99], dtype=torch.float64)
    actual, _ = leaky_average(x.bfloat16(), decay)
    expected, _ = leaky_average(x.double(), decay)
    # bfloat16 keeps eight bits; sums of a hundred terms lose about one more.
    assert (actual.double() - expected).abs().max() < 2**-6 * expected.abs().max()


@pytest.mark.parametrize("steps", [1, 5])  # one step has a path of its own
def test_mistakes_are_explained(steps):
    x, decay = torch.zeros(B, H, steps, K), torch.ones(H)
    refused(r"decay must have shape \(3,\); got \(2,\)", leaky_average, x, decay[:2])
    refused("unknown linear recurrence backend 'chunk'", leaky_average, x, decay, backend="chunk")
    refused("leaky_average: initial_state must have shape", leaky_average, x, decay, torch.zeros(B, H, K + 1))
    documents = torch.zeros(B, 4, dtype=torch.long)
    message = rf"leaky_average: documents must have shape \(2, {steps}\); got \(2, 4\)"
    refused(message, leaky_average, x, decay, documents=documents)


@pytest.mark.parametrize("name", BACKENDS)
def test_an_empty_batch(name):
    if name == "triton":
        pytest.skip("its own tests say that it leaves empty batches to others")
    y, last = leaky_average(torch.zeros(0, H, 5, K), torch.ones(H), backend=name)
    assert (y.shape, last.shape) == ((0, H, 5, K), (0, H, K))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_step_by_step_a_slow_average_is_as_precise_as_at_once(dtype):
    """The state is float32: rounded to the inputs' type at each step, keys of this length were 2 % off."""
    x = (torch.randn(1, 1, 1000, 16, generator=torch.Generator().manual_seed(0)) + 0.5).to(dtype)
    decay = torch.tensor([0.995], dtype=torch.float64)
    exact, _ = leaky_average(x.double(), decay)
    state, steps = None, []
    for step in x.split(1, dim=2):
        y, state = leaky_average(step, decay, state)
        steps.append(y)
    assert (state.dtype, steps[-1].dtype) == (torch.float32, dtype)
    at_once, last = leaky_average(x, decay)
    for answer in (torch.cat(steps, 2), at_once):
        torch.testing.assert_close(answer.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-2)
    torch.testing.assert_close(last, state, rtol=1e-4, atol=1e-4)
    for length in (1, 2):  # a state of an earlier version, in the type of the model
        assert leaky_average(x[:, :, :length], decay, state.to(dtype))[1].dtype == torch.float32
