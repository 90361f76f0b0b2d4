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


def regress(tensors, kernel, backend=None, dtype=torch.float64, device="cpu", **options) -> dict[str, Tensor]:
    """The output and the gradients, by name, from `tensors` in `dtype`: `above` is the output's gradient. Slopes and
    intercepts are float32 beside narrow ones, or those of the kernel, in `dtype`, where there is a `beta`."""
    precise = torch.promote_types(dtype, torch.float32)
    leaves = {
        name: tensor.to(device, precise if name in ("slope", "intercept") else dtype).detach().requires_grad_()
        for name, tensor in tensors.items()
        if name != "above"
    }
    inputs = dict(leaves)
    if "beta" in inputs:
        inputs["slope"], inputs["intercept"] = kernel.affine(inputs.pop("beta"))
    options = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in options.items()}
    output = kernel_regression(**inputs, **options, kernel=kernel, backend=backend)
    if not output.requires_grad:  # every query is blind: some implementations return plain zeros
        return {"output": output, **{name: torch.zeros_like(leaf) for name, leaf in leaves.items()}}
    above = tensors["above"].to(device, dtype)
    gradients = torch.autograd.grad(output, list(leaves.values()), above, materialize_grads=True, allow_unused=True)
    return {"output": output.detach(), **dict(zip(leaves, gradients))}


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

    def regress(self, kernel: Kernel, backend: str, dtype=torch.float64, device="cpu", **changes) -> dict[str, Tensor]:
        """`regress` of this call, with other tensors in place of some."""
        return regress({**self.tensors(), **changes}, kernel, backend, dtype, device, **self.masks())

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


def expect_nan_to_show(tensors, name, kernel, backend, dtype=torch.float32, device="cpu", reaches_the_row_before=False):
    """One in query 17, or in pair 17, makes the results of those queries NaN that see it."""
    sees = torch.zeros(tensors["query"].shape[:3], dtype=torch.bool)
    head, steps = sees.shape[1] // 2, torch.arange(sees.shape[2])
    tensors[name][0, head, 17, 1] = torch.nan
    sees[0, head] = steps == 17 if name == "query" else steps > 17
    others = ~sees
    if reaches_the_row_before:
        others[0, head, 16 if name == "query" else 17] = False
    results = regress(tensors, kernel, backend, dtype, device, window=Window())
    output, gradient = (results[result].isnan().cpu() for result in ("output", "query"))
    assert output.all(-1)[sees].all()
    assert getattr(kernel, "base", None) == "uniform" or gradient.all(-1)[sees].all()
    if backend not in (
        "fused",
        "cpu_bfloat16",
    ):  # PyTorch's, and what is like it, loses queries in front of the pair too
        assert not output.any(-1)[others].any()
        assert not gradient.all(-1)[others].any()


def expect_equal_keys_to_average(tensors, kernel, backend, dtype=torch.float64, device="cpu", atol=1e-9):
    """Over the values before each query; the first one sees none."""
    length = tensors["key"].shape[2]
    equal = {**tensors, "key": tensors["key"][:, :, :1].expand(-1, -1, length, -1)}
    output = regress(equal, kernel, backend, dtype, device, window=Window())["output"].double().cpu()
    means = tensors["value"].cumsum(2)[:, :, :-1] / torch.arange(1.0, length).double()[:, None]
    torch.testing.assert_close(output[:, :, 1:], means, rtol=0, atol=atol)
    assert not output[:, :, 0].any()
