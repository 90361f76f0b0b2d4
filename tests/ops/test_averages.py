"""Leaky and gated averages: every backend equals the float64 reference; wide gates, NaN, slow averages, mistakes."""

from functools import partial

import pytest
import torch
from torch import Tensor

from tessera.ops.gated_average import GatedAverageState, gated_average
from tessera.ops.leaky_average import leaky_average
from tessera.ops.linear_recurrence.chunked import CHUNK
from tessera.ops.unit_norm import unit_norm
from tests.covering import some
from tests.refusals import refused, refused_in_a_line
from tests.tolerances import REORDERED_FLOAT64, assert_within

GRID = pytest.mark.grid  # a dry run of a GPU
BATCH, HEADS, WIDTH = 2, 3, 4
# Both sides are float64; weights spread over exp(+-100) lose a few digits.
TOLERANCE = {"rtol": 0, "atol": 1e-9}


def drawn(generator: torch.Generator, *shape: int) -> Tensor:
    """In float64, of so few digits that bfloat16 has them."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.bfloat16).double()


def documents_of(generator, batch, steps, device):
    return (torch.rand(batch, steps, generator=generator) < 0.1).cumsum(1).to(device)


def leaky(backend, dtype, device, steps, with_state, with_documents, shape=(1, 2, 3)):
    """The output, the state behind it, and the gradients of all inputs; `shape`: sequences, heads and width."""
    generator, (batch, heads, width) = torch.Generator().manual_seed(steps), shape
    x = drawn(generator, batch, steps, heads, width).transpose(1, 2)
    leaves = [x.to(device, dtype), torch.tensor([0.7, 1.0, 0.3][:heads])]
    if with_state:
        leaves.append(drawn(generator, batch, heads, width))
    precise = torch.promote_types(dtype, torch.float32)
    leaves = [leaves[0].requires_grad_(), *(leaf.to(device, precise).requires_grad_() for leaf in leaves[1:])]
    documents = documents_of(generator, batch, steps, device) if with_documents else None
    y, last = leaky_average(*leaves[:2], leaves[2] if with_state else None, documents, backend=backend)
    loss = (y.double() * drawn(generator, *y.shape).to(device)).sum() + (last.double() ** 2).sum()
    return [y, last, *torch.autograd.grad(loss, leaves, materialize_grads=True)]


def gated(backend, dtype, device, steps, with_state, with_documents, shape=(1, 1, 3), spread=4.0):
    generator, (batch, heads, width) = torch.Generator().manual_seed(steps), shape
    precise = torch.promote_types(dtype, torch.float32)
    leaves = [drawn(generator, batch, steps, heads, width).transpose(1, 2).to(device, dtype)]
    gate, decay = spread * drawn(generator, batch, heads, steps), drawn(generator, batch, heads, steps)
    leaves += [part.to(device, precise) for part in (gate, -spread * decay.abs())]
    if with_state:
        leaves += [drawn(generator, batch, heads, width).to(device, precise), drawn(generator, batch, heads).to(device)]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    documents = documents_of(generator, batch, steps, device) if with_documents else None
    state = GatedAverageState(*leaves[3:]) if with_state else None
    y, last = gated_average(*leaves[:3], state, documents, backend=backend)
    outputs = (y, last.average, last.log_weight)
    loss = sum((output.double() * drawn(generator, *output.shape).to(device)).sum() for output in outputs)
    return [*outputs, *torch.autograd.grad(loss, leaves)]


# Lengths of a chunk, one more and one less, of several chunks, and of chunks of chunks.
@pytest.mark.parametrize("steps", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 63, 130, 1100])
@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize("with_state", [False, True])
@pytest.mark.parametrize(
    ("average", "relative"), [(leaky, REORDERED_FLOAT64), (partial(gated, spread=30.0), 1e-9)], ids=["leaky", "gated"]
)
def test_chunks_equal_the_reference(average, relative, with_state, with_documents, steps):
    arguments = (torch.float64, "cpu", steps, with_state, with_documents, (BATCH, HEADS, WIDTH))
    assert_within(average("chunked", *arguments), average("reference", *arguments), relative)


# The interpreter takes blocks of 4 steps, chunks of 8 log-weights, two segments from 16 steps on and three from 24. The
# longest passes every border that the shorter ones end at; the shortest ends before the first.
LENGTHS = {leaky: (2, 4, 5, 17), gated: (2, 7, 8, 9, 17)}


@GRID
@some(
    ("average", "steps", "with_state", "with_documents"),
    [(average, steps, both, both) for average in LENGTHS for steps in LENGTHS[average] for both in (True, False)],
    by_default=[(leaky, 5, False, False), (gated, 2, False, False), *((one, 17, True, True) for one in LENGTHS)],
)
def test_triton_agrees_with_the_reference(triton_device, average, steps, with_state, with_documents):
    arguments = (triton_device, steps, with_state, with_documents)
    # Float32 sums of twenty terms, and log-weights of order ten.
    assert_within(average("triton", torch.float32, *arguments), average("reference", torch.float64, *arguments), 1e-5)


@GRID
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
    ("average", "shape", "single", "half"),
    # lambda = 1 sums up to 65,536 terms of order one in float32.
    [(leaky, (1, 2, 64), 1e-3, 2e-2), (gated, (1, 1, 128), 1e-4, 4e-2)],
)
@pytest.mark.parametrize("steps", [511, 4096, 65_536])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_real_lengths(triton_device, average, shape, single, half, steps, dtype):
    actual = average("triton", dtype, triton_device, steps, True, True, shape)
    expected = average("chunked", torch.float64, triton_device, steps, True, True, shape)
    assert_within(actual, expected, single if dtype == torch.float32 else half)


@GRID
@pytest.mark.parametrize("steps", [25, 1])
def test_three_segments_of_time_and_one_step_that_is_left_to_the_chunked_scan(triton_device, steps):
    """Without documents, so that what enters the first segment reaches the last."""
    actual = leaky("triton", torch.float32, triton_device, steps, True, False)
    assert_within(actual, leaky("reference", torch.float64, triton_device, steps, True, False), 1e-5)


@GRID
def test_an_empty_batch_is_left_to_others(triton_device):
    x, decay = torch.zeros(0, 2, 5, 3, device=triton_device), torch.ones(2, device=triton_device)
    refused("an empty tensor has nothing to compute", leaky_average, x, decay, backend="triton")
    for backend in (None, "chunked", "reference"):
        y, last = leaky_average(x, decay, backend=backend)
        assert (y.shape, last.shape) == (x.shape, (0, 2, 3))


@pytest.mark.parametrize("backend", ["chunked", "reference", pytest.param("triton", marks=GRID)])
@some("dtype", [torch.float32, torch.bfloat16], by_default=[torch.bfloat16], ids=str)
def test_gates_of_a_hundred_neither_overflow_nor_lose_the_direction(request, backend, dtype):
    device, steps = (request.getfixturevalue("triton_device"), 17) if backend == "triton" else ("cpu", 200)
    x = torch.randn(2, 1, steps, 4, device=device, dtype=dtype).requires_grad_()
    gate = (100 * torch.randn(2, 1, steps, device=device).sign()).requires_grad_()
    decay = (
        -30 * torch.rand(2, 1, steps, device=device) ** 4 * (torch.arange(steps, device=device) % 3 == 0)
    ).requires_grad_()
    keys = unit_norm(gated_average(x, gate, decay, backend=backend)[0])
    keys.square().mul(torch.arange(4, device=device)).sum().backward()
    for tensor in (keys, x.grad, gate.grad, decay.grad):
        assert tensor.isfinite().all()
    assert x.grad.any()
    exact = gated_average(x.double(), gate.double(), decay.double(), backend="reference")[0]
    # A log-weight of 100 is known to 4e-6 in float32, the shares to as much; bfloat16 rounds the average.
    relative = 5e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(keys.double(), unit_norm(exact), rtol=0, atol=relative)


@GRID
@some("step", [7, 9], by_default=[7])  # the last of a chunk of log-weights, and inside one
def test_a_nan_stays(triton_device, step):
    gate = torch.zeros(1, 1, 20, device=triton_device)
    gate[0, 0, step] = torch.nan
    y, state = gated_average(torch.ones_like(gate)[..., None], gate, torch.zeros_like(gate), backend="triton")
    assert torch.equal(y[0, 0, :, 0].isnan().cpu(), torch.arange(20) >= step)
    assert state.log_weight.isnan().all()


def inputs(steps, spread=30.0, dtype=torch.float64):
    x, gate = (
        torch.randn(BATCH, HEADS, steps, WIDTH, dtype=dtype),
        spread * torch.randn(BATCH, HEADS, steps, dtype=dtype),
    )
    decay = -spread * torch.rand(BATCH, HEADS, steps, dtype=dtype) ** 4
    return [tensor.requires_grad_() for tensor in (x, gate, decay)]


def literal(x, log_gate, log_decay):
    """kbar itself, in float64 without any scaling."""
    kbar, result = torch.zeros_like(x[:, :, 0]), []
    for t in range(x.shape[2]):
        kbar = log_gate[:, :, t, None].exp() * x[:, :, t] + log_decay[:, :, t, None].exp() * kbar
        result.append(kbar)
    return torch.stack(result, dim=2)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_direction_and_its_gradients_are_those_of_the_papers_recurrence(backend):
    leaves = inputs(70, spread=5.0)
    actual = unit_norm(gated_average(*leaves, backend=backend)[0])
    expected = torch.nn.functional.normalize(literal(*leaves), dim=-1)
    probe = torch.randn_like(actual)
    torch.testing.assert_close(actual, expected, **TOLERANCE)
    torch.testing.assert_close(
        *(torch.autograd.grad((keys * probe).sum(), leaves) for keys in (actual, expected)), **TOLERANCE
    )


def test_shifting_all_gates_changes_nothing():
    x, gate, decay = inputs(40)
    torch.testing.assert_close(gated_average(x, gate + 1e3, decay)[0], gated_average(x, gate, decay)[0], **TOLERANCE)


def test_nothing_but_the_inputs_and_the_result_is_kept_for_the_gradient():
    x, gate, decay = inputs(512, dtype=torch.float32)
    kept = {}  # by address: a tensor that two functions keep counts once

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        gated_average(x, gate, decay)
    assert sum(kept.values()) <= 3 * x.numel()  # a (T, T) matrix would be 32 times that


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"log_gate": torch.zeros(1, 2)}, "gated_average: log_gate must have shape (2, 3, 5); got (1, 2)."),
        ({"x": torch.zeros(2, 3, 4)}, "gated_average: x must be (B, H, T, K) with T >= 1; got (2, 3, 4)."),
        ({"backend": "chunky"}, "unknown gated average backend 'chunky'. Did you mean 'chunked'?"),
    ],
)
def test_mistakes_of_gated_averages(change, message):
    x, gate, decay = inputs(5)
    refused_in_a_line(message, gated_average, **({"x": x, "log_gate": gate, "log_decay": decay} | change))


@pytest.mark.parametrize("steps", [1, 5])  # one step has a path of its own
def test_mistakes_of_leaky_averages(steps):
    x, decay = torch.zeros(BATCH, HEADS, steps, WIDTH), torch.ones(HEADS)
    for message, changes in [
        (r"decay must have shape \(3,\); got \(2,\)", {"decay": decay[:2]}),
        ("unknown linear recurrence backend 'chunk'", {"backend": "chunk"}),
        ("leaky_average: initial_state must have shape", {"initial_state": torch.zeros(BATCH, HEADS, WIDTH + 1)}),
        (rf"documents must have shape \(2, {steps}\); got \(2, 4\)", {"documents": torch.zeros(BATCH, 4).long()}),
    ]:
        refused(message, leaky_average, **{"x": x, "decay": decay, **changes})


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_gated_average_goes_on_behind_a_state_in_half_precision(dtype):
    """Its weight of e^64 became e^63.75 or e^64.25, and behind 200 steps its average stood still."""
    gate, decay = torch.full((1, 1, 1), 63.9), torch.zeros(1, 1, 1)
    _, state = gated_average(torch.zeros(1, 1, 1, 2), gate, decay)
    half = state.to(dtype)
    assert half.average.dtype == dtype
    assert half.log_weight.dtype == torch.float64
    for _ in range(600):
        _, state = gated_average(torch.ones(1, 1, 1, 2), gate, decay, state)
        _, half = gated_average(torch.ones(1, 1, 1, 2, dtype=dtype), gate.to(dtype).float(), decay, half)
    torch.testing.assert_close(half.average, state.average, rtol=0, atol=1e-3)
