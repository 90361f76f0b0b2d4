"""The Triton kernels equal the float64 reference: output and all gradients, for every kernel, window and dtype.

Sizes are those of the interpreter (16 queries and 16 pairs per tile there); at the end are real ones.
"""

import pytest
import torch
from torch.nn.functional import normalize

from tessera.kernels import (
    Biweight,
    Epanechnikov,
    Gaussian,
    NearestNeighbours,
    NormalizedReLU,
    RectifiedPolynomial,
    ReLUmax,
    Triweight,
)
from tessera.ops.kernel_regression import Call, Window, choose_backend, kernel_regression
from tests.covering import each_value, some
from tests.ops.kernel_regression.cases import expect_equal_keys_to_average, expect_nan_to_show, regress
from tests.refusals import refused
from tests.tolerances import assert_within

pytestmark = pytest.mark.grid  # a dry run of a GPU


def draw(kernel, queries, pairs, heads=1, widths=(10, 6), batch=2, dtype=torch.float32):
    """Unit queries and keys, values and an output gradient (rounded to `dtype`), slopes and intercepts; all float64."""
    generator = torch.Generator().manual_seed(queries + pairs)

    def normal(*shape):
        return torch.randn(batch, heads, *shape, generator=generator, dtype=torch.float64)

    def rounded(x):
        return x.to(dtype).double()

    tensors = {
        "query": rounded(normalize(normal(queries, widths[0]), dim=-1)),
        "key": rounded(normalize(normal(pairs, widths[0]), dim=-1)),
        "value": rounded(normal(pairs, widths[1])),
        "slope": 1 + 6 * torch.rand(batch, heads, queries, generator=generator, dtype=torch.float64),
        "above": rounded(normal(queries, widths[1])),
    }
    if isinstance(kernel, NormalizedReLU):
        # Wide enough a support that sums of weights stay well away from 0, where rounding would be amplified.
        tensors["intercept"] = torch.full((heads, 1), 3.0, dtype=torch.float64)
    return tensors


def check(device, kernel, tensors, masks, dtype=torch.float32, relative=3e-5):
    """What Triton gives: equal to the reference in float64.

    3e-5 for float32: rounding of sums over tens of pairs, times slopes up to 7.
    """
    actual = regress(tensors, kernel, "triton", dtype, device, **masks)
    assert_within(actual, regress(tensors, kernel, "reference", torch.float64, device, **masks), relative)
    return actual


FAMILIES = [Gaussian(), Biweight(), ReLUmax(), NormalizedReLU()]


def named(kernels):
    return {kernel.name: kernel for kernel in kernels}


DOCUMENTS = torch.tensor([[0] * 9 + [1] * 12, [0] * 20 + [3]])
STORED = DOCUMENTS.clone()
STORED[:, 4:6] = -1
WINDOWS = {
    "past": {"window": Window()},
    "delayed": {"window": Window(delay=6)},
    "delays": {"window": Window(delay=torch.tensor([2, 30]))},
    "span": {"window": Window(span=5)},
    "delayed span": {"window": Window(delay=3, span=18)},
    "documents": {"window": Window(), "query_documents": DOCUMENTS, "pair_documents": STORED},
    "documents alone": {"query_documents": DOCUMENTS, "pair_documents": STORED},
    "all": {},
}


@each_value(masks=WINDOWS, kernel=named(FAMILIES))
def test_windows(triton_device, kernel, masks):
    batch = 2 if "pair_documents" in masks or masks is WINDOWS["delays"] else 1  # as many as masks are for
    tensors = draw(kernel, queries=21, pairs=21, batch=batch)
    check(triton_device, kernel, tensors, masks)


@some("kernel", [Gaussian(), Biweight()], by_default=[Biweight()], ids=lambda kernel: kernel.name)
def test_tiles_at_the_borders_of_a_window(triton_device, kernel):
    """The last query of a tile just does not see the first pair of another, nor the first query the last pair."""
    tensors, masks = draw(kernel, queries=48, pairs=48, batch=1), {"window": Window(delay=2, span=47)}
    check(triton_device, kernel, tensors, masks)


@some(
    "kernel",
    [Epanechnikov(), RectifiedPolynomial(1.5), Triweight(), ReLUmax(0.3)],
    by_default=[Epanechnikov(), RectifiedPolynomial(1.5)],
    ids=lambda kernel: kernel.name,
)
def test_other_kernels(triton_device, kernel):
    tensors, masks = draw(kernel, queries=18, pairs=18, batch=1), {"window": Window()}
    check(triton_device, kernel, tensors, masks)


@some(
    ("queries", "pairs", "offset"),
    [(1, 1, 0), (2, 2, 0), (15, 15, 0), (16, 15, 0), (17, 17, 0), (3, 20, 17), (2, 1, 40)],
    by_default=[(1, 1, 0), (16, 15, 0), (3, 20, 17), (2, 1, 40)],
)
def test_awkward_sizes(triton_device, queries, pairs, offset):
    kernel, masks = Biweight(), {"window": Window(), "query_offset": offset}
    tensors = draw(kernel, queries, pairs)
    check(triton_device, kernel, tensors, masks)


@some(
    ("kernel", "dtype"),
    [(kernel, dtype) for kernel in FAMILIES for dtype in (torch.float16, torch.bfloat16)],
    by_default=[(Biweight(), torch.float16), (NormalizedReLU(), torch.bfloat16)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_half_precision(triton_device, kernel, dtype):
    tensors, masks = draw(kernel, queries=18, pairs=18, batch=1, dtype=dtype), {"window": Window()}
    # Weights and their gradients are rounded once to the dtype before products: a few spacings of the largest entry.
    actual = check(triton_device, kernel, tensors, masks, dtype, relative=4 * torch.finfo(dtype).eps)
    assert actual["query"].dtype == dtype


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", [Triweight(), Biweight(), Epanechnikov()], ids=lambda kernel: kernel.name)
def test_many_tiles_of_padded_sequences(triton_device, kernel, dtype):
    tensors = draw(kernel, queries=200, pairs=200, heads=2, widths=(32, 64), dtype=dtype)
    documents = torch.where(torch.arange(200) < torch.tensor([[150], [110]]), 0, -1)
    masks = {"window": Window(), "query_documents": documents, "pair_documents": documents}
    actual = check(triton_device, kernel, tensors, masks, dtype, relative=3e-5 if dtype == torch.float32 else 8e-3)
    assert not actual["output"][0, :, 150:].any(), "padding"


@each_value(kernel=named([Biweight(), Epanechnikov(), ReLUmax()]), scale=(1e4, 1e-8))
def test_extreme_scores(triton_device, kernel, scale):
    tensors, masks = draw(kernel, queries=17, pairs=17, batch=1), {"window": Window()}
    tensors["slope"] = torch.full_like(tensors["slope"], scale)
    # Halves of few digits: similarities are exact, so that scores of 1e4 differ by what the reference sees too.
    tensors["query"], tensors["key"] = ((4 * tensors[name]).round() / 4 for name in ("query", "key"))
    check(triton_device, kernel, tensors, masks)


@pytest.mark.parametrize(("dtype", "slope"), [(torch.float32, 3e38), (torch.float16, 1e6)], ids=str)
def test_scores_whose_sum_the_type_does_not_hold(triton_device, dtype, slope):
    """Normalised ReLU alone sums scores as they are; in float16 the largest number is 65,504."""
    tensors = draw(NormalizedReLU(), queries=40, pairs=40, batch=1, dtype=dtype)
    tensors["slope"] = torch.full_like(tensors["slope"], slope)
    tensors["intercept"] = torch.zeros_like(tensors["intercept"])
    actual, expected = (
        regress(tensors, NormalizedReLU(), *given, window=Window())["output"].double().cpu()
        for given in (("triton", dtype, triton_device), ("reference", torch.float64, "cpu"))
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=8 * torch.finfo(dtype).eps)


@some("kernel", [Gaussian(), Triweight(), ReLUmax()], by_default=[Triweight()], ids=lambda kernel: kernel.name)
def test_equal_keys_average_the_values(triton_device, kernel):
    tensors = draw(kernel, queries=20, pairs=20, batch=1)
    expect_equal_keys_to_average(tensors, kernel, "triton", torch.float32, triton_device, atol=1e-5)


def test_uniform_fall_back(triton_device):
    """Scores that are all negative: the weight is shared evenly, and no gradient reaches the keys."""
    kernel, masks = NormalizedReLU(), {"window": Window(span=6)}
    tensors = draw(kernel, queries=20, pairs=20, batch=1)
    tensors["intercept"] = torch.full_like(tensors["intercept"], -50.0)
    assert not check(triton_device, kernel, tensors, masks)["key"].any()


def test_strided_inputs_and_unequal_widths(triton_device):
    """Heads interleaved in memory, as the models hold them, and keys as queries."""
    packed = torch.randn(2, 19, 2, 20, device=triton_device)
    key, value = packed[..., :12].transpose(1, 2), packed[..., 12:].transpose(1, 2)
    arguments = {"kernel": Triweight(), "slope": torch.tensor([[2.0], [5.0]], device=triton_device), "window": Window()}
    actual = kernel_regression(key, key, value, backend="triton", **arguments)
    expected = kernel_regression(key.double(), key.double(), value.double(), backend="reference", **arguments)
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=2e-5)
    assert actual.transpose(1, 2).is_contiguous()


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # the interpreter's
@each_value(kernel=named([*FAMILIES, Epanechnikov(), Triweight()]), name=("query", "key"))
def test_a_nan_is_not_hidden(triton_device, kernel, name):
    tensors = draw(kernel, queries=20, pairs=20, batch=1)
    expect_nan_to_show(tensors, name, kernel, "triton", torch.float32, triton_device)


def test_no_pairs(triton_device):
    empty = torch.randn(2, 1, 0, 4, device=triton_device)
    query = torch.randn(2, 1, 3, 4, device=triton_device)
    actual = kernel_regression(query, empty, empty, kernel=Biweight(), slope=torch.ones(()), backend="triton")
    assert torch.equal(actual, torch.zeros_like(query))


def example_call(**changes):
    three = torch.zeros(1, 1, 3, 4)
    arguments = {"query": three, "key": three, "value": three, "kernel": Biweight(), "slope": torch.ones(())}
    return Call(**{**arguments, **changes})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kernel": NearestNeighbours("gaussian", 4)}, "do not compute the kernel 'knn'"),
        ({"dropout": 0.1}, "have no dropout of weights"),
        ({"value": torch.zeros(1, 1, 3, 300)}, "heads may be at most 256 wide; got 4 and 300"),
    ],
)
def test_refusals(triton_device, change, reason):
    refused(f"backend 'triton' cannot run this call: .*{reason}", choose_backend, example_call(**change), "triton")


def test_cpu_tensors_are_refused_without_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    refused("Triton kernels need a CUDA device", choose_backend, example_call(), "triton")


def test_the_interpreter_is_never_preferred(triton_device):
    assert choose_backend(example_call(window=Window())).__name__.endswith("chunked")


# At real sizes, on a GPU. tf32x3 keeps 21 bits; half types a few spacings of the largest entry.
RELATIVE = {torch.float32: 2e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}
KERNELS = [*FAMILIES, Epanechnikov(), Triweight()]


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("width", [32, 64, 128])
def test_widths_and_dtypes(triton_device, kernel, dtype, width):
    tensors, masks = draw(kernel, 513, 513, heads=2, widths=(width, width), dtype=dtype), {"window": Window()}
    check(triton_device, kernel, tensors, masks, dtype, RELATIVE[dtype])


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(
    "window",
    [Window(delay=64), Window(delay=torch.tensor([64, 200])), Window(span=256), Window(65, 500), None],
    ids=str,
)
@pytest.mark.parametrize("packed", [False, True])
def test_windows_and_documents(triton_device, kernel, window, packed):
    tensors, masks = draw(kernel, 1000, 1000, widths=(64, 64)), {"window": window}
    if packed:
        documents = (torch.rand(2, 1000) < 0.01).cumsum(1)
        masks |= {"query_documents": documents, "pair_documents": documents}
    check(triton_device, kernel, tensors, masks, relative=RELATIVE[torch.float32])


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_long_sequence(triton_device, kernel):
    """The last 64 queries of 65,536, against the dense reference for those alone."""
    tensors = draw(kernel, 65_536, 65_536, widths=(64, 64), batch=1, dtype=torch.bfloat16)
    actual = regress(tensors, kernel, "triton", torch.bfloat16, triton_device, window=Window())["output"][:, :, -64:]
    last = {name: x[:, :, -64:] if name in ("query", "slope", "above") else x for name, x in tensors.items()}
    masks = {"window": Window(), "query_offset": 65_536 - 64}
    expected = regress(last, kernel, "reference", torch.float64, triton_device, **masks)["output"]
    assert (actual.double() - expected).norm() <= 2e-2 * expected.norm()
