"""Pairs that all sequences share are those pairs given to each: output and all gradients."""

import math

import pytest
import torch

from tessera.base import devices
from tessera.base.errors import TesseraError
from tessera.kernels import EntmaxOfRows, Gaussian, NormalizedReLU
from tessera.ops.kernel_regression import Call, Window, intercepted, kernel_regression, shared_pairs
from tests.kernels.contract import all_kernels, identifier
from tests.ops.kernel_regression.cases import regress
from tests.tolerances import REORDERED_FLOAT32, REORDERED_FLOAT64, assert_within

B, H, N, K, V = 3, 4, 20, 6, 5


def tensors(steps, dtype=torch.float64):
    query, key = torch.randn(B, H, steps, K, dtype=dtype), torch.randn(1, H, N, K, dtype=dtype)
    query, key = (torch.nn.functional.normalize(one, dim=-1) for one in (query, key))
    value, above = torch.randn(1, H, N, V, dtype=dtype), torch.randn(B, H, steps, V, dtype=dtype)
    return {"query": query, "key": key, "value": value, "slope": torch.rand(H, 1, dtype=dtype) + 2.0, "above": above}


def shared(parts, kernel, dtype=torch.float64, **options):
    return regress(parts, kernel, dtype=dtype, **{"intercept": 0.0, **options})


def given_to_each(parts, kernel, **options):
    """Gradients of shared pairs are the sums of those of each."""
    each = {**parts, **{name: parts[name].repeat(B, 1, 1, 1) for name in ("key", "value")}}
    results = shared(each, kernel, **options)
    return {**results, **{name: results[name].sum(0, keepdim=True) for name in ("key", "value")}}


@pytest.mark.parametrize("steps", [1, 5, shared_pairs.SHORT + 1])
@pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)
def test_equal_to_pairs_for_each(kernel, steps):
    parts = tensors(steps)
    # The normalised ReLU divides by a sum that may be as small as 1e-3 here.
    relative = 1e-8 if isinstance(kernel, NormalizedReLU) else REORDERED_FLOAT64
    assert_within(shared(parts, kernel), given_to_each(parts, kernel), relative)


@pytest.mark.parametrize("steps", [5, 40])
def test_fused_attention(steps):
    """Float32, which PyTorch's fused attention takes."""
    parts = tensors(steps, torch.float32)
    actual = shared(parts, "gaussian", torch.float32)
    assert_within(actual, given_to_each(parts, "gaussian"), 10 * REORDERED_FLOAT32)


def test_what_differs_between_sequences_or_steps_is_kept():
    parts = tensors(5)
    documents = {
        "query_documents": torch.tensor([[0] * 5, [1] * 5, [0, 0, 1, 1, 1]]),
        "pair_documents": torch.arange(N).expand(B, -1) % 2,
    }
    for options in ({"window": Window()}, documents, {"intercept": torch.rand(B, H, 1).double()}):
        actual, expected = (answers(parts, "epanechnikov", **options) for answers in (shared, given_to_each))
        assert_within(actual, expected, REORDERED_FLOAT64)


@pytest.mark.parametrize("shape", [(H, 1, 1), (B, 1, 1, 1), (B, H, 1, 1), (B, H, 5, 1), (5, 1)], ids=str)
@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_alphas_may_differ_between_sequences_and_steps(shape, backend):
    """Those of the first sequence answered for all where the reference was asked, and others were a traceback."""
    query, key, value, slope, above = tensors(5).values()
    results = []
    for pairs in ((key, value), (key.repeat(B, 1, 1, 1), value.repeat(B, 1, 1, 1))):
        alpha = torch.linspace(1.2, 1.9, math.prod(shape), dtype=torch.float64).view(shape).requires_grad_()
        answer = kernel_regression(query, *pairs, kernel=EntmaxOfRows(alpha), slope=slope, backend=backend)
        results.append([answer, *torch.autograd.grad((answer * above).sum(), alpha)])
    assert_within(*results, REORDERED_FLOAT64)


def test_it_is_asked_as_one_sequence_where_that_is_cheaper(monkeypatch):
    """Not for few heads on many threads, and not for kernels whose blocks are full with each sequence alone."""
    asked = []
    run = shared_pairs.run
    monkeypatch.setattr(shared_pairs, "run", lambda call, answers: asked.append(call.query.shape) or run(call, answers))
    shared(tensors(40), "gaussian")
    shared(tensors(5), "epanechnikov")
    assert len(asked) == 2
    shared(tensors(40), "epanechnikov")
    monkeypatch.setattr(torch, "get_num_threads", lambda: H + 1)
    shared(tensors(40), "gaussian")
    assert len(asked) == 2


def test_copies_without_storage_of_their_own_are_not_taken_for_shared():
    """The gradient of pairs (B, ...) is that of each sequence, however they lie in memory."""
    query, key, value, slope, _ = tensors(5).values()
    grads = []
    for spread in (lambda one: one.expand(B, -1, -1, -1), lambda one: one.repeat(B, 1, 1, 1)):
        pairs = [spread(one).requires_grad_() for one in (key, value)]
        answer = kernel_regression(query, *pairs, kernel="gaussian", slope=slope)
        grads.append(torch.autograd.grad(answer.square().sum(), pairs))
    assert_within(*grads, REORDERED_FLOAT64)


def test_a_plan_for_a_gpu_does_as_the_gpu(monkeypatch):
    query, key, value, slope, _ = tensors(5, torch.float32).values()
    call = Call(query, key, value, Gaussian(), slope)
    assert shared_pairs.is_one_sequence(call)
    monkeypatch.setattr(devices, "_imagined_type", "cuda")
    assert not shared_pairs.is_one_sequence(call)
    monkeypatch.setattr(devices, "_imagined_type", "cpu")
    monkeypatch.setattr(torch, "get_num_threads", lambda: H + 1)
    assert shared_pairs.is_one_sequence(call), "whatever machine plans"


def test_an_interceptor_sees_pairs_for_each():
    shapes = []
    parts = tensors(5)
    with intercepted(lambda call, run: shapes.append((call.query.shape, call.key.shape)) or run(call)):
        seen = shared(parts, "gaussian")
    assert shapes == [((B, H, 5, K), (B, H, N, K))]
    assert torch.equal(seen["output"], shared(parts, "gaussian")["output"])


def test_pairs_of_another_batch_are_refused():
    query, key, value, slope, _ = tensors(5).values()
    with pytest.raises(TesseraError, match=r"\(B or 1, H, N, K\)"):
        kernel_regression(query, key.expand(2, -1, -1, -1), value.expand(2, -1, -1, -1), kernel="gaussian", slope=slope)
