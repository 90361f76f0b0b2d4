"""The Triton gated average equals the float64 reference: values, state, all gradients; and gates of 100 do no harm."""

import pytest
import torch

from tessera.ops.gated_average import GatedAverageState, gated_average
from tessera.ops.unit_norm import unit_norm
from tests.covering import some
from tests.tolerances import assert_within

pytestmark = pytest.mark.grid  # a dry run of a GPU

# The interpreter takes blocks of 4 steps, chunks of 8 log-weights, two segments from 16 steps on.
LENGTHS = (2, 7, 8, 9, 17)


def call(backend, dtype, device, steps, with_state, with_documents, width=3, spread=4.0):
    generator = torch.Generator().manual_seed(steps)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.bfloat16).double()

    precise = torch.promote_types(dtype, torch.float32)
    x = normal(1, steps, 1, width).transpose(1, 2)
    gate, decay = spread * normal(1, 1, steps), -spread * normal(1, 1, steps).abs()
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


@some(
    ("steps", "with_state", "with_documents"),
    [(steps, both, both) for steps in LENGTHS for both in (True, False)],
    # The longest passes every border that the shorter ones end at; the shortest ends before the first.
    by_default=[(2, False, False), (17, True, True)],
)
def test_agrees_with_the_reference(triton_device, steps, with_state, with_documents):
    arguments = (triton_device, steps, with_state, with_documents)
    # Float32 log-weights of order ten, and sums of a few terms of order one.
    assert_within(call("triton", torch.float32, *arguments), call("reference", torch.float64, *arguments), 1e-5)


@some("dtype", [torch.float16, torch.bfloat16], by_default=[torch.bfloat16], ids=str)
def test_half_precision(triton_device, dtype):
    actual = call("triton", dtype, triton_device, 9, True, True)
    assert [x.dtype for x in actual[:3]] == [dtype, torch.float32, torch.float64]  # the state is precise all the same
    # Outputs and dx are rounded once; the gates' gradients sum products with rounded outputs.
    expected = call("reference", torch.float64, triton_device, 9, True, True)
    assert_within(actual, expected, 4 * torch.finfo(dtype).eps)


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


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [511, 4096, 65_536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_real_lengths(triton_device, steps, dtype):
    actual = call("triton", dtype, triton_device, steps, True, True, width=128)
    expected = call("chunked", torch.float64, triton_device, steps, True, True, width=128)
    assert_within(actual, expected, 1e-4 if dtype == torch.float32 else 4e-2)


@some("step", [7, 9], by_default=[7])  # the last of a chunk of log-weights, and inside one
def test_a_nan_stays(triton_device, step):
    gate = torch.zeros(1, 1, 20, device=triton_device)
    gate[0, 0, step] = torch.nan
    y, state = gated_average(torch.ones_like(gate)[..., None], gate, torch.zeros_like(gate), backend="triton")
    assert torch.equal(y[0, 0, :, 0].isnan().cpu(), torch.arange(20) >= step)
    assert state.log_weight.isnan().all()
