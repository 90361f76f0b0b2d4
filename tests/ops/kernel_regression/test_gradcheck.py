"""Finite differences: the gradient of kernel regression for every kernel and window, float64."""

import torch
from torch.nn.functional import normalize

from tessera.ops.kernel_regression import Window, kernel_regression
from tests.covering import pairwise
from tests.kernels.contract import all_kernels, identifier

WINDOWS = {
    "all": None,
    "contextual": Window(),
    "delayed": Window(delay=3),
    "short-term": Window(span=4),
    "spanned": Window(delay=2, span=5),
    "per sequence": Window(delay=torch.tensor([1, 3])),
}
DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 2, 2]])


@pairwise(
    kernel={identifier(kernel): kernel for kernel in all_kernels()},
    window=WINDOWS,
    documents={"one": None, "packed": DOCUMENTS},
    backend=("reference", "chunked"),
)
def test_gradcheck(kernel, window, documents, backend):
    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64)

    inputs = (draw(2, 1, 7, 3), draw(2, 1, 7, 3), draw(2, 1, 7, 2), draw(1, 1).exp() + 0.5)

    def regression(query, key, value, beta):
        query, key = normalize(query, dim=-1), normalize(key, dim=-1)
        score = {"kernel": kernel, **dict(zip(("slope", "intercept"), kernel.affine(beta)))}
        masks = {"window": window, "query_documents": documents, "pair_documents": documents}
        return kernel_regression(query, key, value, **score, **masks, backend=backend)

    leaves = tuple(tensor.requires_grad_() for tensor in inputs)
    # Random directions instead of every entry: the same derivative, at a tenth of the time.
    assert torch.autograd.gradcheck(regression, leaves, fast_mode=True, eps=1e-7, atol=1e-5)
