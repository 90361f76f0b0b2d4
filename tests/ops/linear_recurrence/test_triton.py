"""The Triton leaky average equals the float64 reference: values, state, all gradients; in segments and in one piece."""

import pytest
import torch

from tessera.ops.leaky_average import leaky_average
from tests.covering import some
from tests.refusals import refused
from tests.tolerances import assert_within

pytestmark = pytest.mark.grid  # a dry run of a GPU

# The interpreter takes blocks of 4 steps, two segments from 16 steps on and three from 24.
LENGTHS = (2, 4, 5, 17)


def call(backend, dtype, device, steps, with_state, with_documents, width=3):
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(1, steps, 2, width, generator=generator, dtype=torch.float64).to(torch.bfloat16).transpose(1, 2)
    state = torch.randn(1, 2, width, generator=generator, dtype=torch.float64) if with_state else None
    documents = (torch.rand(1, steps, generator=generator) < 0.2).cumsum(1).to(device) if with_documents else None
    above = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(torch.bfloat16)
    precise = torch.promote_types(dtype, torch.float32)
    leaves = [x.to(device, dtype).requires_grad_()]
    leaves.append(torch.tensor([0.7, 1.0], dtype=precise, device=device).requires_grad_())
    if with_state:
        leaves.append(state.to(device, precise).requires_grad_())
    y, last = leaky_average(*leaves[:2], leaves[2] if with_state else None, documents, backend=backend)
    loss = (y.double() * above.to(device)).sum() + (last.double() ** 2).sum()
    return [y, last, *torch.autograd.grad(loss, leaves)]


@some(
    ("steps", "with_state", "with_documents"),
    [(steps, both, both) for steps in LENGTHS for both in (True, False)],
    by_default=[(5, False, False), (17, True, True)],
)
def test_agrees_with_the_reference(triton_device, steps, with_state, with_documents):
    arguments = (triton_device, steps, with_state, with_documents)
    actual = call("triton", torch.float32, *arguments)
    # Float32 sums of twenty terms of order one.
    assert_within(actual, call("reference", torch.float64, *arguments), 1e-5)


@pytest.mark.grid
def test_three_segments_of_time(triton_device):
    """Without documents, so that what enters the first segment reaches the last."""
    actual = call("triton", torch.float32, triton_device, 25, True, False, width=2)
    assert_within(actual, call("reference", torch.float64, triton_device, 25, True, False, width=2), 1e-5)


@some("dtype", [torch.float16, torch.bfloat16], by_default=[torch.bfloat16], ids=str)
def test_half_precision(triton_device, dtype):
    actual = call("triton", dtype, triton_device, 9, True, True)
    assert actual[0].dtype == dtype
    # The state stays in float32: the output and dx are rounded once, and d lambda sums rounded outputs.
    expected = call("reference", torch.float64, triton_device, 9, True, True)
    assert_within(actual, expected, 2 * torch.finfo(dtype).eps)


def test_one_step_is_left_to_the_chunked_scan(triton_device):
    actual = call("triton", torch.float32, triton_device, 1, True, False)
    assert_within(actual, call("reference", torch.float64, triton_device, 1, True, False), 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [511, 4096, 65_536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_real_lengths(triton_device, steps, dtype):
    actual = call("triton", dtype, triton_device, steps, True, True, width=64)
    expected = call("chunked", torch.float64, triton_device, steps, True, True, width=64)
    # lambda = 1 sums up to 65,536 terms of order one in float32.
    assert_within(actual, expected, 1e-3 if dtype == torch.float32 else 2e-2)


def test_an_empty_batch_is_left_to_others(triton_device):
    x, decay = torch.zeros(0, 2, 5, 3, device=triton_device), torch.ones(2, device=triton_device)
    refused("an empty tensor has nothing to compute", leaky_average, x, decay, backend="triton")
    assert leaky_average(x, decay)[0].shape == x.shape
