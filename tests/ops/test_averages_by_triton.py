"""The Triton leaky and gated averages equal the float64 reference: values, state, all gradients; NaN and wide gates."""

import pytest
import torch

from tessera.ops.gated_average import GatedAverageState, gated_average
from tessera.ops.leaky_average import leaky_average
from tessera.ops.unit_norm import unit_norm
from tests.covering import some
from tests.refusals import refused
from tests.tolerances import assert_within

pytestmark = pytest.mark.grid  # a dry run of a GPU


def leaky(backend, dtype, device, steps, with_state, with_documents, width=3):
    """The output, the state behind it, and the gradients of all inputs."""
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


def gated(backend, dtype, device, steps, with_state, with_documents, width=3):
    generator = torch.Generator().manual_seed(steps)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.bfloat16).double()

    precise = torch.promote_types(dtype, torch.float32)
    x = normal(1, steps, 1, width).transpose(1, 2)
    gate, decay = 4 * normal(1, 1, steps), -4 * normal(1, 1, steps).abs()
    leaves = [x.to(device, dtype), gate.to(device, precise), decay.to(device, precise)]
    if with_state:
        leaves += [normal(1, 1, width).to(device, precise), normal(1, 1).to(device)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    documents = (torch.rand(1, steps, generator=generator) < 0.2).cumsum(1).to(device) if with_documents else None
    state = GatedAverageState(*leaves[3:]) if with_state else None
    y, last = gated_average(*leaves[:3], state, documents, backend=backend)
    outputs = (y, last.average, last.log_weight)
    loss = sum((output.double() * normal(*output.shape).to(device)).sum() for output in outputs)
    return [*outputs, *torch.autograd.grad(loss, leaves)]


# The interpreter takes blocks of 4 steps, chunks of 8 log-weights, two segments from 16 steps on and three from 24. The
# longest passes every border that the shorter ones end at; the shortest ends before the first.
LENGTHS = {leaky: (2, 4, 5, 17), gated: (2, 7, 8, 9, 17)}


@some(
    ("average", "steps", "with_state", "with_documents"),
    [(average, steps, both, both) for average in LENGTHS for steps in LENGTHS[average] for both in (True, False)],
    by_default=[(leaky, 5, False, False), (gated, 2, False, False), *((one, 17, True, True) for one in LENGTHS)],
)
def test_agrees_with_the_reference(triton_device, average, steps, with_state, with_documents):
    arguments = (triton_device, steps, with_state, with_documents)
    # Float32 sums of twenty terms, and log-weights of order ten.
    assert_within(average("triton", torch.float32, *arguments), average("reference", torch.float64, *arguments), 1e-5)


@pytest.mark.parametrize("average", LENGTHS)
@some("dtype", [torch.float16, torch.bfloat16], by_default=[torch.bfloat16], ids=str)
def test_half_precision(triton_device, average, dtype):
    actual = average("triton", dtype, triton_device, 9, True, True)
    state = [torch.float32] if average is leaky else [torch.float32, torch.float64]  # it is precise all the same
    assert [x.dtype for x in actual[: 1 + len(state)]] == [dtype, *state]
    # Outputs and dx are rounded once; d lambda, and twice as often the gates' gradients, sum rounded outputs.
    expected = average("reference", torch.float64, triton_device, 9, True, True)
    assert_within(actual, expected, (2 if average is leaky else 4) * torch.finfo(dtype).eps)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("average", "width", "single", "half"),
    # lambda = 1 sums up to 65,536 terms of order one in float32.
    [(leaky, 64, 1e-3, 2e-2), (gated, 128, 1e-4, 4e-2)],
)
@pytest.mark.parametrize("steps", [511, 4096, 65_536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_real_lengths(triton_device, average, width, single, half, steps, dtype):
    actual = average("triton", dtype, triton_device, steps, True, True, width=width)
    expected = average("chunked", torch.float64, triton_device, steps, True, True, width=width)
    assert_within(actual, expected, single if dtype == torch.float32 else half)


def test_three_segments_of_time(triton_device):
    """Without documents, so that what enters the first segment reaches the last."""
    actual = leaky("triton", torch.float32, triton_device, 25, True, False, width=2)
    assert_within(actual, leaky("reference", torch.float64, triton_device, 25, True, False, width=2), 1e-5)


def test_one_step_is_left_to_the_chunked_scan(triton_device):
    actual = leaky("triton", torch.float32, triton_device, 1, True, False)
    assert_within(actual, leaky("reference", torch.float64, triton_device, 1, True, False), 1e-6)


def test_an_empty_batch_is_left_to_others(triton_device):
    x, decay = torch.zeros(0, 2, 5, 3, device=triton_device), torch.ones(2, device=triton_device)
    refused("an empty tensor has nothing to compute", leaky_average, x, decay, backend="triton")
    assert leaky_average(x, decay)[0].shape == x.shape


@some("dtype", [torch.float32, torch.bfloat16], by_default=[torch.bfloat16], ids=str)
def test_gates_of_a_hundred_neither_overflow_nor_lose_the_direction(triton_device, dtype):
    x = torch.randn(1, 1, 17, 4, device=triton_device, dtype=dtype).requires_grad_()
    gate = (100 * torch.randn(1, 1, 17, device=triton_device).sign()).requires_grad_()
    decay = (-30 * torch.rand(1, 1, 17, device=triton_device) ** 4).requires_grad_()
    keys = unit_norm(gated_average(x, gate, decay, backend="triton")[0])
    keys.square().mul(torch.arange(4, device=triton_device)).sum().backward()
    for tensor in (keys, x.grad, gate.grad, decay.grad):
        assert tensor.isfinite().all()
    exact = gated_average(x.double(), gate.double(), decay.double(), backend="reference")[0]
    # A log-weight of 100 is known to 4e-6 in float32, the shares to as much; bfloat16 rounds the average.
    relative = 5e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(keys.double(), unit_norm(exact), rtol=0, atol=relative)


@some("step", [7, 9], by_default=[7])  # the last of a chunk of log-weights, and inside one
def test_a_nan_stays(triton_device, step):
    gate = torch.zeros(1, 1, 20, device=triton_device)
    gate[0, 0, step] = torch.nan
    y, state = gated_average(torch.ones_like(gate)[..., None], gate, torch.zeros_like(gate), backend="triton")
    assert torch.equal(y[0, 0, :, 0].isnan().cpu(), torch.arange(20) >= step)
    assert state.log_weight.isnan().all()
