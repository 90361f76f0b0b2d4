"""Every implementation equals the float64 reference: output and all gradients, at awkward sizes."""

import pytest
import torch

from tessera.kernels import Biweight, Gaussian, NearestNeighbours, NormalizedReLU, ReLUmax, Triweight
from tessera.ops.kernel_regression import BACKENDS, Call, Window, choose_backend, kernel_regression, reference
from tessera.ops.kernel_regression.query_blocks import QUERIES, query_blocks
from tests.covering import some
from tests.kernels.contract import all_kernels, identifier
from tests.ops.kernel_regression.cases import CASES, Case, expect_equal_keys_to_average, expect_nan_to_show
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT64, assert_within, close

KERNEL = pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)


# Every kernel on one call, and every call with a kernel of each kind of weights.
@some(
    ("kernel", "case"),
    [(kernel, case) for case in CASES for kernel in all_kernels()],
    by_default=lambda kernel, case: (
        (case.documents and case.queries == 300)
        or identifier(kernel) in ("biweight", "normalized_relu-0.0", "knn-gaussian-3")
    ),
    ids=lambda value: str(value) if isinstance(value, Case) else identifier(value),
)
def test_chunked_equals_the_reference(kernel, case):
    # The normalised ReLU divides by a sum that may be as small as 1e-3 here.
    relative = 1e-8 if isinstance(kernel, NormalizedReLU) else REORDERED_FLOAT64
    assert_within(case.regress(kernel, "chunked"), case.regress(kernel, "reference"), relative)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fused_equals_the_reference(case):
    assert_within(case.regress(Gaussian(), "fused"), case.regress(Gaussian(), "reference"), REORDERED_FLOAT64)


@KERNEL
@pytest.mark.parametrize(
    ("dtype", "relative"),
    # Float32 rounding in sums of 130. Half types: inputs are rounded before, so only weights (once), gradients and
    # outputs are; a key's gradient adds 130 of those and beta's 260 queries of them: 16 spacings of bfloat16.
    [(torch.float32, 2e-5), (torch.float16, 4e-3), (torch.bfloat16, 6e-2)],
)
def test_narrow_types(kernel, dtype, relative):
    if isinstance(kernel, NormalizedReLU) and dtype != torch.float32:
        pytest.skip("1 - 2 beta + 2 beta s cancels: slope and intercept rounded to half precision give another kernel")
    case = Case(130, window=Window())
    rounded = {name: tensor.to(dtype) for name, tensor in case.tensors().items()}
    actual = case.regress(kernel, "chunked", dtype)
    assert {tensor.dtype for tensor in actual.values()} == {dtype}
    relative = 10 * relative if isinstance(kernel, NormalizedReLU) else relative
    assert_within(actual, case.regress(kernel, "reference", **rounded), relative)


@pytest.mark.parametrize("kernel", [Gaussian(), Triweight()], ids=identifier)
@pytest.mark.parametrize(("dtype", "relative"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_one_query_in_a_narrow_type_is_as_near_as_many(kernel, dtype, relative):
    """A decoded token's scores are as precise as those of the text before it."""
    query, key, value = (torch.nn.functional.normalize(1.5 + torch.randn(2, 3, n, 16), dim=-1) for n in (1, 60, 60))
    tensors = [tensor.to(dtype) for tensor in (query, key, value)]
    scale = {"kernel": kernel, "slope": 50.0, "intercept": 0.0}
    exact = kernel_regression(*(tensor.double() for tensor in tensors), **scale)
    torch.testing.assert_close(kernel_regression(*tensors, **scale).double(), exact, rtol=relative, atol=relative)


@pytest.mark.parametrize("backend", [None, "reference", "chunked"])
@pytest.mark.parametrize(("dtype", "relative"), [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)], ids=str)
@pytest.mark.parametrize("slope", [501.9, 131072.0])
def test_slope_and_intercept_are_not_rounded_to_the_type_of_the_query(slope, dtype, relative, backend):
    """Where they nearly cancel, and where the slope exceeds the largest float16; of one query and of several."""
    query = torch.nn.functional.normalize(torch.randn(1, 1, 1, 16), dim=-1)
    key = torch.nn.functional.normalize(query + slope**-0.5 * torch.randn(1, 1, 500, 16), dim=-1)
    tensors = [tensor.to(dtype) for tensor in (query, key, 1 + torch.rand(1, 1, 500, 4))]
    scale = {"slope": torch.tensor(slope), "intercept": torch.tensor(1.3 - slope), "kernel": "normalized_relu"}
    exact = kernel_regression(*(tensor.double() for tensor in tensors), **scale)
    for queries in (tensors[0], tensors[0].expand(-1, -1, 2, -1)):
        actual = kernel_regression(queries, *tensors[1:], **scale, backend=backend)
        torch.testing.assert_close(actual.double(), exact.expand_as(actual), rtol=relative, atol=0)


def reaches_the_row_before(dtype):
    """Does PyTorch's product of matrices lose the row in front of one of NaN? On CPUs with AMX that of bfloat16 does,
    where rows have an odd length: it takes two numbers at a time, the last one with what follows it, times 0."""
    rows = torch.ones(2, 40, 39, dtype=dtype)
    rows[1, 17] = torch.nan
    lost = (rows @ torch.ones(2, 39, 4, dtype=dtype)).isnan().any(-1).nonzero().tolist()
    assert lost in ([[1, 17]], [[1, 16], [1, 17]])
    return len(lost) == 2


@KERNEL
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["query", "key"])
def test_a_nan_is_not_hidden(kernel, dtype, name):
    """By every implementation that takes the call; by Triton: test_triton.py."""
    for backend in ("cpu_bfloat16", "fused", "chunked", "reference"):
        if backend in ("cpu_bfloat16", "fused") and not isinstance(kernel, Gaussian):
            continue
        if backend == "cpu_bfloat16" and dtype != torch.bfloat16:
            continue
        tensors = Case(40).tensors()
        expect_nan_to_show(tensors, name, kernel, backend, dtype, reaches_the_row_before=reaches_the_row_before(dtype))


@pytest.mark.parametrize("kernel", [Triweight(), ReLUmax(), NormalizedReLU(), NearestNeighbours("gaussian", 4)])
@pytest.mark.parametrize("shape", [(), (3, 1), (2, 1, 1), (2, 3, 50), (50,)])
def test_slope_and_intercept_per_query(kernel, shape):
    tensors = Case(50).tensors()
    results = []
    for backend in ("chunked", "reference"):
        torch.manual_seed(3)
        slope = (torch.rand(shape, dtype=torch.float64) + 2).requires_grad_()
        intercept = torch.randn(shape, dtype=torch.float64).requires_grad_()
        options = {"kernel": kernel, "slope": slope, "intercept": intercept, "window": Window(), "backend": backend}
        output = kernel_regression(*(tensors[name] for name in ("query", "key", "value")), **options)
        results.append([output.detach(), *torch.autograd.grad(output, (slope, intercept), tensors["above"])])
    torch.testing.assert_close(*results, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("kernel", "backend"), [(Biweight(), "chunked"), (Biweight(), "reference"), (Gaussian(), "fused")], ids=str
)
def test_equal_keys_average_the_values(kernel, backend):
    expect_equal_keys_to_average(Case(130).tensors(), kernel, backend)


@pytest.mark.parametrize("backend", ["chunked", "reference", "fused"])
def test_a_query_outside_all_documents_does_not_see_pairs_that_are_not_stored(backend):
    query, key, value = (torch.randn(1, 1, 5, 3, dtype=torch.float64) for _ in range(3))
    documents = torch.tensor([[-1, -1, 0, 0, -1]])
    masks = {"window": Window(), "query_documents": documents, "pair_documents": documents}
    output = kernel_regression(query, key, value, kernel=Gaussian(), slope=torch.ones(()), backend=backend, **masks)
    assert torch.equal(output[0, 0, [0, 1, 2, 4]], torch.zeros(4, 3).double())
    torch.testing.assert_close(output[0, 0, 3], value[0, 0, 2])


def test_only_statistics_are_kept_for_the_backward_pass():
    saved = []

    def count(tensor):
        saved.append(tensor.numel())
        return tensor

    heads, length, width = 2, 1024, 8
    query, key, value = (torch.randn(1, heads, length, width, requires_grad=True) for _ in range(3))
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        kernel_regression(
            query, key, value, kernel=Triweight(), slope=torch.ones(heads, 1), window=Window(), backend="chunked"
        )
    # Query, key, value, slope, and three statistics per query.
    assert sum(saved) <= heads * length * (3 * width + 1 + 3)


def test_the_cost_of_a_span_is_linear_in_the_length():
    query = torch.zeros(1, 1, 40 * QUERIES, 1)
    call = Call(query, query, query, Gaussian(), torch.ones(()), window=Window(span=100))
    scores = sum((s.queries.stop - s.queries.start) * (s.pairs.stop - s.pairs.start) for s in query_blocks(call))
    assert scores <= 40 * QUERIES * (QUERIES + 100)  # all pairs would be 20 times as many


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trimming_leaves_out_what_no_query_sees(case):
    tensors = case.tensors()
    arguments = {"kernel": Biweight(), "slope": tensors["beta"], **case.masks()}
    call = Call(tensors["query"], tensors["key"], tensors["value"], **arguments)
    trimmed = call.trimmed()
    close(BACKENDS["reference"].run(trimmed), BACKENDS["reference"].run(call))
    if case.window and isinstance(case.window.delay, int) and call.query.numel() and not case.documents:
        seen = call.visible().expand(1, 1, case.queries, call.key.shape[2])[0, 0]
        assert trimmed.key.shape[2] == seen.any(0).sum()
        assert trimmed.window is not None or seen[:, seen.any(0)].all()
        if trimmed.key.shape[2]:
            assert trimmed.window is None or not seen[:, seen.any(0)].all()


def example_call(kernel, **changes):
    tensors = [Case(6).tensors()[name].float() for name in ("query", "key", "value")]
    return Call(*tensors, kernel, torch.ones(()), **changes)


def test_the_first_backend_that_takes_the_call_runs_it():
    assert choose_backend(example_call(Gaussian(), window=Window())) is BACKENDS["fused"]
    assert choose_backend(example_call(Triweight(), window=Window())) is BACKENDS["chunked"]
    assert choose_backend(example_call(Triweight(), dropout=0.1)) is BACKENDS["reference"]


@pytest.mark.parametrize(
    ("backend", "call", "reason"),
    [
        ("chunked", {"kernel": Triweight(), "dropout": 0.1}, "it has no dropout of weights"),
        ("fused", {"kernel": Triweight()}, "computes the gaussian kernel only, not 'triweight'"),
    ],
)
def test_an_impossible_backend_says_why(backend, call, reason):
    refused(f"backend '{backend}' cannot run this call: .*{reason}", choose_backend, example_call(**call), backend)


def test_autocast_does_not_narrow_the_scores():
    case = Case(130, window=Window())
    expected = case.regress(Triweight(), "chunked", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = case.regress(Triweight(), "chunked", torch.float32)
    assert all(torch.equal(actual[name], right) for name, right in expected.items())


@pytest.mark.parametrize("dropout", [0.0, 0.2], ids=["a decoded token", "with dropout"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kernel", [Gaussian(), Triweight()], ids=identifier)
def test_autocast_does_not_narrow_those_of_the_reference(kernel, dtype, dropout):
    steps = 9 if dropout else 1
    query, key, value = (torch.nn.functional.normalize(1.5 + torch.randn(2, 3, n, 16), dim=-1) for n in (steps, 60, 60))
    tensors = [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]
    scale = {"kernel": kernel, "slope": 50.0, "intercept": 0.0, "dropout": dropout, "backend": "reference"}
    results = []
    for enabled in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            y = kernel_regression(*tensors, **scale)
            weights = reference.weights(Call(*tensors[:2], value, kernel, torch.tensor(50.0), torch.tensor(0.0)))
        results.append([weights, y, *torch.autograd.grad(y.float().square().sum(), tensors)])
    for plain, autocast in zip(*results, strict=True):
        assert autocast.dtype == plain.dtype
        assert torch.equal(autocast, plain)


@pytest.mark.parametrize("kernel", ["gaussian", "sparsemax", "uniform_knn"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_narrow_query_reads_its_pairs_in_blocks_as_at_once(kernel, dtype, monkeypatch):
    """Also the last block, which has fewer pairs, and documents, windows and gradients."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(2, 3, count, width, generator=generator).to(dtype).requires_grad_()
        for count, width in ((1, 8), (45, 8), (45, 5))
    )
    documents = torch.arange(45).expand(2, -1) // 20 - 1
    options = {"kernel": kernel, "slope": 5.0, "intercept": 0.0, "window": Window(delay=2, span=40)}
    options |= {"query_offset": 46, "query_documents": torch.ones(2, 1).long(), "pair_documents": documents}

    def answer():
        output = kernel_regression(query, key, value, **options)
        assert output.dtype == dtype
        weights = torch.arange(output.numel(), dtype=dtype).view_as(output)
        gradients = torch.autograd.grad((output * weights).sum(), (query, key, value), allow_unused=True)
        return output, *gradients

    at_once = answer()
    rows = []
    monkeypatch.setattr(reference, "BLOCK", 7 * 2 * 3 * 8)
    blocks = reference._blocks
    monkeypatch.setattr(reference, "_blocks", lambda *given: rows.append(blocks(*given)) or rows[-1])
    in_blocks = answer()
    assert sorted(len(row) for row in rows) == [4, 6], "of 11 values and of 7 keys, of 39"
    exact = [None if part is None else part.float() for part in at_once]
    for ours, theirs in zip(in_blocks, exact, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            torch.testing.assert_close(ours.float(), theirs, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
