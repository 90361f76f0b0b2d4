"""Calls of kernel regression at awkward sizes, shared by the tests of its implementations."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessera.kernels import Kernel
from tessera.ops.kernel_regression import Window, kernel_regression
from tessera.ops.kernel_regression.query_blocks import QUERIES

BATCH, HEADS, KEY_WIDTH, VALUE_WIDTH = 2, 3, 5, 4
LENGTHS = (1, 2, 63, QUERIES - 1, QUERIES, QUERIES + 1, 130)


@dataclass(frozen=True)
class Case:
    """Sizes and masks of one call; `pairs` None means as many as queries."""

    queries: int
    pairs: int | None = None
    window: Window | None = None
    offset: int = 0
    documents: bool = False

    def __str__(self) -> str:
        window = self.window and f"{self.window.delay}:{self.window.span}"
        return f"T{self.queries}-N{self.pairs}-W{window}-o{self.offset}-d{self.documents:d}"

    def tensors(self) -> dict[str, Tensor]:
        """Unit queries and keys, values, inverse bandwidths per head, and an output gradient, in float64."""
        generator = torch.Generator().manual_seed(11)
        pairs = self.queries if self.pairs is None else self.pairs

        def draw(*shape):
            return torch.randn(BATCH, HEADS, *shape, generator=generator, dtype=torch.float64)

        return {
            "query": normalize(draw(self.queries, KEY_WIDTH), dim=-1),
            "key": normalize(draw(pairs, KEY_WIDTH), dim=-1),
            "value": draw(pairs, VALUE_WIDTH),
            "beta": draw(1)[0].exp() + 0.6,
            "above": draw(self.queries, VALUE_WIDTH),
        }

    def masks(self) -> dict:
        """The arguments that say who sees what. One stored pair in three documents' worth is not stored."""
        masks = {"window": self.window, "query_offset": self.offset}
        if self.documents:
            generator = torch.Generator().manual_seed(5)
            pairs = self.queries if self.pairs is None else self.pairs
            length = max(self.queries + self.offset, pairs)
            documents = (torch.rand(BATCH, length, generator=generator) < 0.06).cumsum(-1)
            masks["query_documents"] = documents[:, self.offset : self.offset + self.queries]
            stored = torch.rand(BATCH, length, generator=generator) < 0.9
            masks["pair_documents"] = torch.where(stored, documents, -1)[:, :pairs]
        return masks


CASES = [
    *(Case(length, window=Window()) for length in LENGTHS),
    *(Case(length) for length in (1, 63, 129)),
    Case(130, window=Window(delay=40)),
    Case(130, window=Window(delay=200)),
    Case(130, pairs=129, window=Window(delay=40)),
    Case(130, pairs=129, window=Window(delay=torch.tensor([3, 140]))),
    Case(300, window=Window(span=20)),
    Case(129, window=Window(delay=3, span=150)),
    Case(300, window=Window(delay=2, span=140)),
    Case(130, window=Window(delay=torch.tensor([1, 90]))),
    Case(129, window=Window(), documents=True),
    Case(300, window=Window(delay=2, span=30), documents=True),
    Case(130, window=Window(delay=torch.tensor([5, 2])), documents=True),
    Case(3, pairs=130, window=Window(), offset=127),
    Case(1, pairs=129, window=Window(span=7), offset=129),
    Case(64, pairs=200, window=Window(delay=4), offset=100, documents=True),
    Case(130, pairs=7),
    Case(130, pairs=70, window=Window()),
    Case(5, pairs=0, window=Window()),
    Case(5, pairs=0),
    Case(0, pairs=4, window=Window()),
]


def regress(case: Case, kernel: Kernel, backend: str, dtype: torch.dtype = torch.float64, **changes) -> list[Tensor]:
    """The output and the gradients of query, key, value and beta, from inputs rounded to `dtype`."""
    tensors = {**case.tensors(), **changes}
    above = tensors.pop("above").to(dtype)
    leaves = {name: tensor.to(dtype).requires_grad_() for name, tensor in tensors.items()}
    slope, intercept = kernel.affine(leaves["beta"])
    output = kernel_regression(
        *(leaves[name] for name in ("query", "key", "value")),
        kernel=kernel,
        slope=slope,
        intercept=intercept,
        backend=backend,
        **case.masks(),
    )
    if not output.requires_grad:  # every query is blind: some implementations return plain zeros
        return [output, *(torch.zeros_like(leaf) for leaf in leaves.values())]
    grads = torch.autograd.grad(output, list(leaves.values()), above, materialize_grads=True, allow_unused=True)
    return [output.detach(), *grads]


def rounded(case: Case, dtype: torch.dtype) -> dict[str, Tensor]:
    """The case's tensors rounded to `dtype`, in float64: what a computation in `dtype` really starts from."""
    return {name: tensor.to(dtype).double() for name, tensor in case.tensors().items()}
