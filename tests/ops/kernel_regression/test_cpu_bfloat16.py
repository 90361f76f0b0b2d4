"""The bfloat16 blocks against the float64 reference: every window, documents, gradients, queries that see nothing."""

import pytest
import torch

from tessera.base.errors import TesseraError
from tessera.kernels import Gaussian
from tessera.ops.kernel_regression import Window, choose_backend, cpu_bfloat16, kernel_regression
from tessera.ops.kernel_regression.call import Call
from tessera.ops.unit_norm import unit_norm
from tests.ops.kernel_regression.cases import regress
from tests.tolerances import assert_within

B, H, K = 2, 3, 16
# Centred scores of inverse bandwidth 8 lie in [-16, 0], where bfloat16 rounds by up to 16 * 2^-9 = 3 % of a weight; a
# gradient multiplies two such. Gradients that vanish in exact arithmetic come out as rounding of entries of order one.
VALUE, GRADIENT, SMALLEST = 0.04, 0.08, 1e-3
WINDOWS = {"past": Window(), "everything": None, "span": Window(1, 20), "delayed": Window(30)}
WINDOWS["delayed per sequence"] = Window(torch.tensor([2, 70]))


def results(backend, dtype, steps, window, documents=None):
    torch.manual_seed(steps)
    tensors = {name: unit_norm(torch.randn(B, H, steps, K)).bfloat16() for name in ("query", "key")}
    tensors |= {"value": torch.randn(B, H, steps, K).bfloat16(), "slope": torch.full((H, 1), 8.0)}
    tensors["above"] = torch.randn(B, H, steps, K).bfloat16()
    packing = {} if documents is None else {"query_documents": documents, "pair_documents": documents}
    return regress(tensors, Gaussian(), backend, dtype, window=window, **packing)


def expect_close(actual, expected):
    actual, expected = dict(actual), dict(expected)
    assert_within([actual.pop("output")], [expected.pop("output")], VALUE, SMALLEST)
    assert_within(actual, expected, GRADIENT, SMALLEST)


DOCUMENTS = torch.tensor([[0] * 40 + [1] * 50, [-1] * 10 + [0] * 80])


@pytest.mark.parametrize(
    ("window", "steps", "documents"),
    [*((window, steps, None) for window in WINDOWS for steps in (2, 63, 130)), ("past", 90, DOCUMENTS)],
)
def test_agrees_with_float64(window, steps, documents):
    expect_close(
        results("cpu_bfloat16", torch.bfloat16, steps, WINDOWS[window], documents),
        results("reference", torch.float64, steps, WINDOWS[window], documents),
    )


@pytest.mark.parametrize("window", ["past", "everything", "delayed per sequence"])
def test_kept_weights_give_the_gradients_of_weights_computed_again(window, monkeypatch):
    """Bit for bit: they are the same numbers."""
    kept = results("cpu_bfloat16", torch.bfloat16, 130, WINDOWS[window])
    monkeypatch.setattr(cpu_bfloat16, "KEPT_BYTES", 0)
    again = results("cpu_bfloat16", torch.bfloat16, 130, WINDOWS[window])
    assert all(torch.equal(kept[name], other) for name, other in again.items())


def test_all_weights_of_a_call_are_kept_or_none(monkeypatch):
    tensors = [torch.randn(B, H, 130, K).bfloat16().requires_grad_() for _ in range(3)]
    inputs_and_output, blocks, weights = 5, 2, B * H * (128 * 127 + 2 * 129) * 2  # what the last block sees, and so on

    def saved():
        output = kernel_regression(
            *tensors, kernel=Gaussian(), slope=torch.tensor(1.0), window=Window(), backend="cpu_bfloat16"
        )
        return len(output.grad_fn.saved_tensors)

    for limit, number in ((weights, blocks), (weights - 1, 0), (0, 0)):
        monkeypatch.setattr(cpu_bfloat16, "KEPT_BYTES", limit)
        assert saved() == inputs_and_output + number


def test_slots_shared_by_all_sequences_get_their_gradients_summed():
    keys, values = (torch.randn(H, 7, K).bfloat16().requires_grad_() for _ in range(2))
    query, slope = unit_norm(torch.randn(B, H, 40, K)).bfloat16(), torch.full((H, 1), 3.0)
    actual = {}
    for backend, dtype in (("cpu_bfloat16", torch.bfloat16), ("reference", torch.float64)):
        shared = [t.to(dtype).expand(B, -1, -1, -1) for t in (keys, values)]
        output = kernel_regression(query.to(dtype), *shared, kernel=Gaussian(), slope=slope, backend=backend)
        grads = torch.autograd.grad(output.sum(), (keys, values))
        actual[backend] = {"output": output, "key": grads[0].double(), "value": grads[1].double()}
    expect_close(actual["cpu_bfloat16"], actual["reference"])


def test_what_it_is_not_for_it_refuses_with_the_reason():
    query = torch.zeros(B, H, 5, K, dtype=torch.bfloat16)

    def reason(dtype=torch.bfloat16, slope=3.0, **changes):
        tensors = [query.to(dtype)] * 3
        return cpu_bfloat16.unsupported_reason(
            Call(*tensors, Gaussian(), torch.tensor(slope), window=Window(), **changes)
        )

    assert reason() is None
    assert "bfloat16 on a CPU" in reason(torch.float32)
    assert "above 64" in reason(slope=65.0)
    assert "dropout" in reason(dropout=0.1)
    sharp = Call(query, query, query, Gaussian(), torch.tensor(65.0), window=Window())
    assert choose_backend(sharp) is not cpu_bfloat16
    with pytest.raises(TesseraError, match="backend 'cpu_bfloat16' cannot run this call: it is for bfloat16"):
        kernel_regression(*[query.float()] * 3, kernel=Gaussian(), slope=torch.tensor(3.0), backend="cpu_bfloat16")


def test_keys_far_longer_than_1_are_left_to_others():
    """Keys of a transformer are long, and most of their length may be one direction that no query looks at."""
    query, key = (unit_norm(torch.randn(B, H, 90, K)) for _ in range(2))
    query[..., 0], key[..., 0] = 0.0, 100.0
    tensors = [query.bfloat16(), key.bfloat16(), torch.randn(B, H, 90, K).bfloat16()]
    answer = kernel_regression(*tensors, kernel=Gaussian(), slope=1.0, window=Window())
    exact = kernel_regression(*[t.double() for t in tensors], kernel=Gaussian(), slope=1.0, window=Window())
    torch.testing.assert_close(answer.double(), exact, rtol=VALUE, atol=VALUE)


def test_a_negative_slope_is_as_precise_as_a_positive_one():
    query, key, value = (unit_norm(torch.randn(B, H, 90, K)).bfloat16() for _ in range(3))
    negative = kernel_regression(query, key, value, kernel=Gaussian(), slope=-30.0, window=Window())
    assert torch.equal(negative, kernel_regression(-query, key, value, kernel=Gaussian(), slope=30.0, window=Window()))
    sharp = Call(query, key, value, Gaussian(), torch.full((B, H, 90), -100.0), window=Window())
    assert "scores above 64" in cpu_bfloat16.unsupported_reason(sharp)
