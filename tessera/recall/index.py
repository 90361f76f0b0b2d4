"""An index beside a store of pairs, and what it recalls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.shapes import Bool, Float, Int
from tessera.kernels import Kernel, RowKernel, kernel_from_config
from tessera.ops.kernel_regression import Window
from tessera.ops.kernel_regression.score_scale import scale_of_scores
from tessera.recall.answers import Recall
from tessera.recall.leaves import BLOCK, Leaves, working_dtype
from tessera.recall.pair_store import PairStore
from tessera.recall.search import Queries, search

SMALL_BLOCK = 16_384  # of the pairs behind the last whole block; fewer are scanned as fast


@dataclass(frozen=True)
class PairIndex:
    """The pairs of one sequence, filed in leaves but for the last ones, which are scanned. A value, as a store is.

    Attributes:
        pairs: B is 1. blocks: leaves of the first `filed` pairs, at most two: those of whole blocks, and of small ones.
        kept: (N,), False where a pair was deleted, or None. is_mapped: the tensors are those of a file.
    """

    pairs: PairStore
    blocks: tuple[Leaves, ...] = ()
    filed: int = 0
    kept: Bool[Tensor, " N"] | None = None
    is_mapped: bool = False

    def __len__(self) -> int:
        return self.pairs.length

    def append(
        self, keys: Float[Tensor, "H n K"], values: Float[Tensor, "H n V"], documents: Int[Tensor, " n"] | None = None
    ) -> Self:
        """An index of these pairs too. They are scanned until there are enough to be filed."""
        _check(keys, values, documents)
        both = (keys, self.pairs.keys), (values, self.pairs.values)
        agrees = all(new.shape[::2] == old.shape[1::2] and new.dtype == old.dtype for new, old in both)
        got, stored = (f"H = {k.shape[-3]}, K = {k.shape[-1]}, V = {v.shape[-1]}, {k.dtype}" for k, v in zip(*both))
        expect(agrees, "append", "keys and values", f"be as those of the index ({stored})", got)
        expect(
            (documents is None) == (self.pairs.documents is None), "append", "documents", "be as at first", documents
        )
        pairs = self.pairs.append(keys[None], values[None], None if documents is None else documents[None])
        kept = None if self.kept is None else torch.cat([self.kept, self.kept.new_ones(keys.shape[1])])
        return replace(self, pairs=pairs, kept=kept).with_all_filed()

    def delete(self, places: Int[Tensor, " n"]) -> Self:
        """An index without the pairs at these places, counted from 0 in the order in which pairs were given."""
        if places.dtype in (torch.int8, torch.uint8, torch.int16, torch.int32):
            places = places.long()
        others = places[(places < 0) | (places >= len(self))]
        expect(len(others) == 0, "delete", "places", f"lie in 0..{len(self) - 1}", others[:3].tolist())
        return replace(self, kept=self._which_are_kept().index_fill(0, places, False))

    def merge(self, other: Self) -> Self:
        """An index of these pairs and then those of `other`, whose places come behind."""
        joined = self.append(
            other.pairs.keys[0],
            other.pairs.values[0],
            None if other.pairs.documents is None else other.pairs.documents[0],
        )
        if self.kept is None and other.kept is None:
            return joined
        return replace(joined, kept=torch.cat([self._which_are_kept(), other._which_are_kept()]))

    def recall(
        self,
        queries: Float[Tensor, "H Q K"],
        *,
        kernel: Kernel | str | dict,
        slope: Float[Tensor, "..."] | float | None = None,
        intercept: Float[Tensor, "..."] | float | None = None,
        inverse_bandwidth: Float[Tensor, "..."] | float | None = None,
        window: Window | None = None,
        query_offset: int = 0,
        query_documents: Int[Tensor, " Q"] | None = None,
        tolerance: float = 1e-6,
    ) -> Recall:
        """`kernel_regression` of one sequence, read through the index; arguments mean what they mean there.

        Args:
            slope, intercept, inverse_bandwidth: numbers, or broadcastable to (H, Q); slopes are positive.
            tolerance: of kernels whose weights are never 0 (Gaussian): the share of weight that may be left out.
        Raises:
            TesseraError: shapes, dtypes or settings that do not agree.
        """
        expect(0 <= tolerance < 1, "recall", "tolerance", "lie in [0, 1)", tolerance)
        is_place = type(query_offset) is int and query_offset >= 0
        expect(is_place, "recall", "query_offset", "be an integer of at least 0", query_offset)
        (heads, count, width), keys = queries.shape, self.pairs.keys
        agrees = (heads, width) == (keys.shape[1], keys.shape[3]) and queries.dtype == keys.dtype
        expected = f"(H, Q, K) of {keys.dtype} with H = {keys.shape[1]} and K = {keys.shape[3]}"
        expect(agrees, "recall", "queries", f"be {expected}", f"{tuple(queries.shape)} of {queries.dtype}")
        agree = (query_documents is None) == (self.pairs.documents is None)
        got = "none" if query_documents is None else "some, of pairs without"
        expect(agree, "recall", "query_documents", "be given where pairs have documents, and only there", got)
        if query_documents is not None:
            right = query_documents.shape == (count,) and not query_documents.is_floating_point()
            got = f"{tuple(query_documents.shape)} of {query_documents.dtype}"
            expect(right, "recall", "query_documents", f"be integers ({count},)", got)
        queries, kernel = queries.to(working_dtype(queries)), kernel_from_config(kernel)
        if isinstance(kernel, RowKernel):
            kernel.expect_rows("recall", (heads, count))
        slope, intercept = scale_of_scores(queries, kernel, slope, intercept, inverse_bandwidth, "recall")
        slopes, intercepts = (_of_queries(scale, queries) for scale in (slope, intercept))
        expect(not bool((slopes <= 0).any()), "recall", "slope", "be positive", slopes.flatten().tolist()[:3])
        if window is not None and not isinstance(window.delay, int):
            expect(False, "recall", "the window's delay", "be one integer, of one sequence", tuple(window.delay.shape))
        places = torch.arange(count, device=queries.device) + query_offset
        newest = places - window.delay if window else torch.full_like(places, len(self))
        oldest = places - window.span + 1 if window and window.span else torch.zeros_like(places)
        seen = Queries(queries, slopes, intercepts, oldest, newest, query_documents)
        return search(self, seen, kernel, tolerance)

    def _which_are_kept(self) -> Tensor:
        return self.pairs.keys.new_ones(len(self), dtype=torch.bool) if self.kept is None else self.kept

    def with_all_filed(self) -> Self:
        """What can be filed is: in blocks of `BLOCK` pairs, and what is behind them in small ones.

        All blocks of a size are one: a query looks at them in the same calls. A pair that comes alone is filed twice.
        """
        of_size = {len(leaves) // leaves.num_blocks: leaves for leaves in self.blocks}
        num_whole = len(self) // BLOCK
        if num_whole != (of_size[BLOCK].num_blocks if BLOCK in of_size else 0):
            of_size.pop(SMALL_BLOCK, None)  # they begin elsewhere now
        blocks, filed = [], 0
        for size, count in ((BLOCK, num_whole), (SMALL_BLOCK, len(self) % BLOCK // SMALL_BLOCK)):
            ready = [of_size[size].first(count)] if count and size in of_size else []
            places = range(filed + sum(map(len, ready)), filed + count * size, size)
            made = (Leaves.of(self.pairs.keys[0, :, first : first + size], first) for first in places)
            filed += count * size
            if count:
                blocks.append(Leaves.joined(chain(ready, made), count))
        return replace(self, blocks=tuple(blocks), filed=filed)


def _of_queries(scale: Tensor | None, queries: Tensor) -> Tensor:
    """A slope or intercept of each query (H, Q)."""
    shape = queries.shape[:2]
    scale = queries.new_zeros(()) if scale is None else scale.to(queries)
    broadcasts = scale.dim() <= 2 and all(size in (1, full) for size, full in zip(scale.shape[::-1], shape[::-1]))
    expect(
        broadcasts, "recall", "slope and intercept", f"be numbers or broadcast to {tuple(shape)}", tuple(scale.shape)
    )
    return scale.expand(shape)


def build(
    keys: Float[Tensor, "H N K"], values: Float[Tensor, "H N V"], documents: Int[Tensor, " N"] | None = None
) -> PairIndex:
    """An index of N pairs per head; `documents` (N,) says of which each pair is.

    The tensors are kept, not copied, as `torch.from_numpy` does: what is written into them later is not found.

    Raises `TesseraError`: shapes or dtypes that do not agree.
    """
    _check(keys, values, documents)
    store = PairStore.of(keys[None], values[None], None if documents is None else documents[None])
    return PairIndex(store).with_all_filed()


def _check(keys: Tensor, values: Tensor, documents: Tensor | None) -> None:
    tensors: Sequence[Tensor] = (keys, values)
    agrees = all(x.dim() == 3 for x in tensors) and keys.shape[:2] == values.shape[:2]
    agrees = agrees and keys.dtype == values.dtype and keys.is_floating_point() and keys.shape[0] * keys.shape[2] > 0
    shapes = ", ".join(f"{tuple(x.shape)} of {x.dtype}" for x in tensors)
    needed = "be (H, N, K) and (H, N, V) of one floating-point dtype"
    expect(agrees, "recall", "keys and values", needed, shapes)
    expect(bool(keys.isfinite().all()), "recall", "keys", "be finite", "NaN or infinity")
    if documents is not None:
        right = documents.shape == keys.shape[1:2] and not documents.is_floating_point()
        got = f"{tuple(documents.shape)} of {documents.dtype}"
        expect(right, "recall", "documents", f"be integers ({keys.shape[1]},)", got)
