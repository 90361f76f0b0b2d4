"""The gated average: every backend against the step-by-step float64 recurrence, and the laws that make it usable."""

import pytest
import torch

from tessera.ops.gated_average import GatedAverageState, gated_average
from tessera.ops.unit_norm import unit_norm
from tests.refusals import refused_in_a_line

BATCH, HEADS, WIDTH = 2, 3, 4
FAST = ["chunked"]  # Triton's has tests of its own
RUNNABLE = [*FAST, "reference"]
# Both sides are float64; weights spread over exp(+-100) lose a few digits.
TOLERANCE = {"rtol": 0, "atol": 1e-9}


def inputs(steps, spread=30.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, HEADS, steps, WIDTH, generator=generator, dtype=dtype)
    gate = spread * torch.randn(BATCH, HEADS, steps, generator=generator, dtype=dtype)
    decay = -spread * torch.rand(BATCH, HEADS, steps, generator=generator, dtype=dtype) ** 4
    return [tensor.requires_grad_() for tensor in (x, gate, decay)]


def literal(x, log_gate, log_decay):
    """kbar itself, in float64 without any scaling."""
    kbar, result = torch.zeros_like(x[:, :, 0]), []
    for t in range(x.shape[2]):
        kbar = log_gate[:, :, t, None].exp() * x[:, :, t] + log_decay[:, :, t, None].exp() * kbar
        result.append(kbar)
    return torch.stack(result, dim=2)


@pytest.mark.parametrize("backend", RUNNABLE)
def test_direction_and_its_gradients_are_those_of_the_papers_recurrence(backend):
    x, gate, decay = inputs(70, spread=5.0)
    actual = unit_norm(gated_average(x, gate, decay, backend=backend)[0])
    expected = torch.nn.functional.normalize(literal(x, gate, decay), dim=-1)
    probe = torch.randn(actual.shape, dtype=actual.dtype, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(actual, expected, **TOLERANCE)
    grads = zip(
        torch.autograd.grad((actual * probe).sum(), (x, gate, decay)),
        torch.autograd.grad((expected * probe).sum(), (x, gate, decay)),
    )
    for ours, theirs in grads:
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("steps", [1, 2, 31, 32, 33, 63, 130, 1100])
def test_backends_equal_the_reference(backend, steps):
    x, gate, decay = inputs(steps)
    average = torch.randn(BATCH, HEADS, WIDTH, dtype=torch.float64).requires_grad_()
    weight = torch.randn(BATCH, HEADS, dtype=torch.float64).requires_grad_()
    state = GatedAverageState(average, weight)
    documents = (torch.rand(BATCH, steps, generator=torch.Generator().manual_seed(2)) < 0.05).long().cumsum(1)
    results = []
    for name in (backend, "reference"):
        y, last = gated_average(x, gate, decay, state, documents, backend=name)
        generator = torch.Generator().manual_seed(3)
        outputs = (y, last.average, last.log_weight)
        loss = sum((o * torch.randn(o.shape, dtype=o.dtype, generator=generator)).sum() for o in outputs)
        results.append([*outputs, *torch.autograd.grad(loss, (x, gate, decay, average, weight))])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, **TOLERANCE)


@pytest.mark.parametrize("backend", RUNNABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_of_a_hundred_neither_overflow_nor_lose_the_direction(backend, dtype):
    x, gate, decay = inputs(200, dtype=dtype)
    gate = (100 * torch.sign(gate.detach())).requires_grad_()
    decay = (decay.detach() * (torch.arange(200) % 3 == 0)).requires_grad_()
    keys = unit_norm(gated_average(x, gate, decay, backend=backend)[0])
    keys.square().mul(torch.arange(WIDTH)).sum().backward()
    for tensor in (keys, x.grad, gate.grad, decay.grad):
        assert tensor.isfinite().all()
    assert x.grad.abs().sum() > 0
    exact = gated_average(x.double(), gate.double(), decay.double(), backend="reference")[0]
    # Half an ulp of the dtype per key, plus what normalising a short average adds.
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(keys.double(), unit_norm(exact), rtol=0, atol=tolerance)


def test_an_emptied_state_forgets_only_the_chosen_sequences():
    x, gate, decay = inputs(6)
    _, state = gated_average(x, gate, decay)
    kept = gated_average(x, gate, decay, state.kept(torch.tensor([True, False])))[0]
    torch.testing.assert_close(kept[0], gated_average(x, gate, decay, state)[0][0], **TOLERANCE)
    torch.testing.assert_close(kept[1], gated_average(x, gate, decay)[0][1], **TOLERANCE)


def test_shifting_all_gates_changes_nothing():
    x, gate, decay = inputs(40)
    torch.testing.assert_close(
        gated_average(x, gate + 1e3, decay)[0], gated_average(x, gate, decay)[0], rtol=0, atol=1e-9
    )


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
def test_mistakes_are_explained(change, message):
    x, gate, decay = inputs(5)
    refused_in_a_line(message, gated_average, **({"x": x, "log_gate": gate, "log_decay": decay} | change))
