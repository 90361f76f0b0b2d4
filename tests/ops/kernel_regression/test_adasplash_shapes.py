"""The Triton kernels at the sizes, alphas, types and lengths that the tests of adasplash 0.2.2 use.

Scores are q . k / sqrt(width) of normal q and k, as there; `lengths` are of sequences that are padded on the right,
whose padding sees nothing. Those tests need a GPU: here every size up to 256 runs in Triton's interpreter, with one
alpha; larger ones and all alphas run where there is a GPU. The reference in float64 stands for their `entmax_bisect`,
and tolerances are ours.
"""

import itertools

import pytest
import torch

from tessera.kernels import Biweight, Epanechnikov, Kernel, RectifiedPolynomial
from tessera.ops.kernel_regression import Window
from tests.ops.kernel_regression.triton_cases import assert_equal, regress

pytestmark = pytest.mark.slow
KERNELS = {1.333: RectifiedPolynomial(1 / 0.333), 1.5: Biweight(), 2.0: Epanechnikov()}
RELATIVE = {torch.float32: 3e-5, torch.float16: 8e-3}  # as in test_triton.py and test_triton_gpu.py
SIZES = list(itertools.product((1, 2), (1, 2), (128, 256), (32, 64)))  # of test_forward_correctness


def inputs(batch, heads, length, width, groups=1, scale=1.0, dtype=torch.float32):
    """Queries, keys, values, an output gradient: in float64, rounded to `dtype`. A key's head is `groups` queries'."""
    generator = torch.Generator().manual_seed(42)

    def normal(heads, scale=1.0):
        drawn = scale * torch.randn(batch, heads, length, width, generator=generator, dtype=torch.float64)
        return drawn.to(dtype).double()

    key, value = (normal(heads // groups, factor).repeat_interleave(groups, 1) for factor in (scale, scale))
    # One for each query: their gradients are compared one by one, where those of a shared slope would cancel.
    slope = torch.full((batch, heads, length), width**-0.5, dtype=torch.float64)
    return {"query": normal(heads, scale), "key": key, "value": value, "slope": slope, "above": normal(heads)}


def masks_of(batch, length, causal, lengths=None) -> dict:
    masks: dict = {"window": Window(), "query_offset": 1} if causal else {}
    if lengths is not None:
        documents = torch.where(torch.arange(length) < torch.tensor(lengths)[:, None], 0, -1)
        masks |= {"query_documents": documents, "pair_documents": documents}
    return masks


def compare(device, kernel: Kernel, tensors: dict, masks: dict, dtype=torch.float32) -> torch.Tensor:
    actual = regress(kernel, tensors, "triton", dtype, device, **masks)
    assert_equal(actual, kernel, tensors, masks, RELATIVE[dtype])
    return actual["output"]


def cases():
    """Every size with every alpha; masks and types, and the alphas for the interpreter, take turns."""
    turns = itertools.cycle(itertools.product((False, True), (torch.float32, torch.float16)))
    for number, (size, alpha) in enumerate(itertools.product(SIZES, KERNELS)):
        yield pytest.param(*size, alpha, *next(turns), marks=() if number % 3 == number // 3 % 3 else pytest.mark.gpu)


@pytest.mark.parametrize(("batch", "heads", "length", "width", "alpha", "causal", "dtype"), list(cases()))
def test_sizes_alphas_types(triton_device, batch, heads, length, width, alpha, causal, dtype):
    lengths = torch.randint(length // 2, length, (batch,)).tolist()
    tensors = inputs(batch, heads, length, width, dtype=dtype)
    output = compare(triton_device, KERNELS[alpha], tensors, masks_of(batch, length, causal, lengths), dtype)
    for row, kept in enumerate(lengths):
        assert not output[row, :, kept:].any(), "padding"


@pytest.mark.parametrize("alpha", [1.5, 2.0])
@pytest.mark.parametrize("length", [256, pytest.param(512, marks=pytest.mark.gpu)])
def test_gradients(triton_device, length, alpha):
    compare(triton_device, KERNELS[alpha], inputs(2, 2, length, 64), {})


def test_equal_scores(triton_device):
    tensors = {
        name: torch.zeros_like(x) if name in ("query", "key") else x for name, x in inputs(1, 1, 128, 64).items()
    }
    output = compare(triton_device, Biweight(), tensors, {})
    torch.testing.assert_close(
        output.cpu().double(), tensors["value"].mean(2, keepdim=True).expand_as(output), atol=1e-4, rtol=0
    )


@pytest.mark.gpu
def test_inputs_a_hundred_times_as_large(triton_device):
    tensors = inputs(2, 2, 512, 64, scale=100, dtype=torch.float16)
    output = regress(Biweight(), tensors, "triton", torch.float16, triton_device)["output"]
    assert output.isfinite().all()
    assert output.abs().max() < 1e3


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("length", "lengths"),
    [(1024, None), (2048, None), (4096, None), (2048, (1000, 1500)), (4096, (64, 4096)), (1024, (65, 130))],
)
def test_long_grouped_and_padded(triton_device, length, lengths, groups):
    compare(triton_device, Biweight(), inputs(2, 8, length, 64, groups), masks_of(2, length, True, lengths))
