"""What every kernel of kernel regression offers.

Letters, here and in the whole library: B batch, T time (queries), N stored pairs, H heads, K key width, V value
width, M slots of a persistent memory, S segment, L layers.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from tessera.base.errors import TesseraError, did_you_mean
from tessera.base.plugins import ADVICE
from tessera.base.registry import Registry
from tessera.base.shapes import Bool, Float, Int

# What the methods of a kernel take and give.
Rows = Float[Tensor, "*rows N"]  # scores or weights over N pairs
AnyShape = Float[Tensor, "*shape"]  # the same of all in a call
PerRow = Float[Tensor, "*rows"]
Visible = Bool[Tensor, "*#rows #N"] | None  # which pairs there are; None: all
Statistics = tuple[Tensor, ...]  # of each row, what `backward` needs of `forward`
KERNELS: Registry[type["Kernel"]] = Registry("kernel", "tessera.kernels")
# Names that the papers' tables use for kernels of the registry.
KERNEL_ALIASES: dict[str, dict[str, str]] = {
    "sparsemax": {"name": "epanechnikov"},
    "gaussian_knn": {"name": "knn", "base": "gaussian"},
    "uniform_knn": {"name": "knn", "base": "uniform"},
}


@dataclass(frozen=True)
class Kernel(ABC):
    """A similarity kernel, as the weights it gives to stored pairs: `y = sum_i w_i v_i`, `sum_i w_i = 1`.

    Keys and queries are unit vectors, so a kernel of the distance |k - k_i| is a function of the similarity
    `s_i = k . k_i` (|k - k_i|^2 = 2 - 2 s_i). Every kernel of the library works on *scores*, an affine function of
    the similarities given by `affine`; what it does to scores is `weights`. A new kernel is one subclass with these
    two methods and a `@KERNELS.register` line: memories, configurations and contract tests find it by its name.
    """

    name: ClassVar[str]
    # The beta from which a memory learns its own. e^2 is the published start of the Gaussian kernel.
    initial_inverse_bandwidth: ClassVar[float] = math.exp(2)

    @property
    def has_intercept(self) -> bool:
        """Whether `affine` has an intercept, without which its slope is of no bandwidth."""
        return self.affine(torch.ones(()))[1] is not None

    def affine(self, inverse_bandwidth: AnyShape) -> tuple[AnyShape, AnyShape | None]:
        """Slope and intercept of `scores = slope * s + intercept` for `beta = 1 / h^2 > 0` (any shape).

        An intercept of None is zero. Most kernels do not change when all scores of a row move together, so that the
        constant of `beta (s - 1) = -beta |k - k_i|^2 / 2` can be left out: slope beta, intercept None.
        """
        return inverse_bandwidth, None

    @abstractmethod
    def weights(self, scores: Rows, visible: Visible = None) -> Rows:
        """Weights over the last dimension of `scores` (..., N), differentiable, in the dtype of `scores`.

        `visible` (bool, broadcastable to `scores`) says which pairs exist for the query; the others get weight 0
        and have no influence. A row without any visible pair is all zeros; one with a visible NaN is NaN.
        """

    def score_floor(self, largest: AnyShape) -> AnyShape:
        """The score at and below which no pair has weight, given the row's largest visible score; -inf: none."""
        return torch.full_like(largest, -torch.inf)

    @property
    def has_floor(self) -> bool:
        """Whether there is a score at and below which no pair has weight, so that an index may leave pairs unread."""
        floors = ((cls.score_floor, cls.subset_floor) for cls in (type(self), Kernel))
        return next(floors) != next(floors)

    def subset_floor(self, scores: Rows, visible: Visible = None) -> PerRow:
        """A score at and below which no pair has weight, given the scores of some pairs of the row, (..., n) -> (...).

        It must hold whatever the others score: more pairs can only raise it.
        """
        masked = self.masked(scores, visible)
        if masked.shape[-1] == 0:
            return masked.new_full(masked.shape[:-1], -torch.inf)
        largest = masked.amax(-1)
        # Never the largest itself: where scores are so large that a distance from it is lost, it still has weight.
        return torch.minimum(self.score_floor(largest), largest.nextafter(torch.full_like(largest, -torch.inf)))

    def bandwidth(self, scores: Rows, inverse_bandwidth: Float[Tensor, "*#rows"], visible: Visible = None) -> PerRow:
        """The bandwidth h of each query, in units of the distance |k - k_i|: (..., N) -> (...), for inspection.

        `1 / sqrt(beta)` here; kernels whose support follows the data return the bandwidth that their weights imply.
        `inverse_bandwidth` is beta, broadcastable to (...), and `scores` those of `affine(beta)`. NaN for a query
        without visible pair.
        """
        masked = self.masked(scores, visible)
        return self.where_visible(inverse_bandwidth.rsqrt().expand(masked.shape[:-1]), masked)

    def support_size(self, scores: Rows, visible: Visible = None) -> Int[Tensor, "*rows"]:
        """How many pairs have weight, for each query: (..., N) -> integers (...), for inspection."""
        return (self.weights(scores, visible) > 0).sum(-1)

    @staticmethod
    def masked(scores: Rows, visible: Visible) -> Rows:
        """`scores`, in float32 at least, with -inf where a pair is not visible."""
        scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
        return scores if visible is None else scores.masked_fill(~visible, -torch.inf)

    @staticmethod
    def where_visible(per_query: PerRow, masked: Rows) -> PerRow:
        """`per_query` (...), NaN where the row of `masked` (..., N) holds nothing but -inf."""
        return per_query.masked_fill((masked == -torch.inf).all(-1), torch.nan)

    def to_config(self) -> dict[str, object]:
        """`{"name": ..., <field>: ...}`, what a configuration file stores; `kernel_from_config` inverts it."""
        return {"name": self.name, **asdict(self)}


def kernel_names() -> list[str]:
    """Every name of a kernel, in recipes, on the command line and in Python: those of `KERNELS`, and aliases."""
    return [*KERNELS, *KERNEL_ALIASES]


def kernel_from_config(spec: "str | dict | Kernel") -> Kernel:
    """The kernel that `spec` names: `"gaussian"`, `{"name": "knn", "base": "gaussian", "k": 32}`, or a kernel itself.

    Raises `TesseraError` for an unknown name, an unknown field, or a value the kernel refuses.
    """
    if isinstance(spec, Kernel):
        return spec
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        names = ", ".join(kernel_names())
        raise TesseraError(f"kernel must be a name or a mapping with a name; got {spec!r}. Known: {names}.")
    name = spec["name"]
    if name not in KERNELS and name not in KERNEL_ALIASES:
        raise TesseraError(f"unknown kernel {name!r}. {did_you_mean(name, kernel_names())} {ADVICE}")
    spec = {**spec, **KERNEL_ALIASES.get(name, {})}
    cls = KERNELS[spec.pop("name")]
    known = {field.name for field in fields(cls)}
    for key in spec.keys() - known:
        raise TesseraError(f"kernel {name!r}: unknown field {key!r}. {did_you_mean(str(key), known)}")
    return cls(**spec)
