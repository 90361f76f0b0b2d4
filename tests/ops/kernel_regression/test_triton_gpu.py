"""The Triton kernels at real sizes, on a GPU: every kernel, window, dtype and head width against the reference."""

import pytest
import torch

from tessera.kernels import Biweight, Epanechnikov, Gaussian, NormalizedReLU, ReLUmax, Triweight
from tessera.ops.kernel_regression import Window
from tests.ops.kernel_regression.triton_cases import assert_equal, draw, regress

pytestmark = pytest.mark.gpu
KERNELS = [Gaussian(), Epanechnikov(), Biweight(), Triweight(), ReLUmax(), NormalizedReLU()]
# tf32x3 keeps 21 bits; half types a few spacings of the largest entry, as in test_triton.py.
RELATIVE = {torch.float32: 2e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("dtype", RELATIVE, ids=str)
@pytest.mark.parametrize("width", [32, 64, 128])
def test_widths_and_dtypes(triton_device, kernel, dtype, width):
    tensors, masks = draw(kernel, 513, 513, heads=2, widths=(width, width), dtype=dtype), {"window": Window()}
    actual = regress(kernel, tensors, "triton", dtype, triton_device, **masks)
    assert_equal(actual, kernel, tensors, masks, relative=RELATIVE[dtype])


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
    actual = regress(kernel, tensors, "triton", torch.float32, triton_device, **masks)
    assert_equal(actual, kernel, tensors, masks, relative=RELATIVE[torch.float32])


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_long_sequence(triton_device, kernel):
    """The last 64 queries of 65,536, against the dense reference for those alone."""
    tensors = draw(kernel, 65_536, 65_536, widths=(64, 64), batch=1, dtype=torch.bfloat16)
    actual = regress(kernel, tensors, "triton", torch.bfloat16, triton_device, window=Window())["output"][:, :, -64:]
    last = {name: x[:, :, -64:] if name in ("query", "slope", "above") else x for name, x in tensors.items()}
    masks = {"window": Window(), "query_offset": 65_536 - 64}
    expected = regress(kernel, last, "reference", torch.float64, triton_device, **masks)["output"]
    assert (actual.double() - expected).norm() <= 2e-2 * expected.norm()
