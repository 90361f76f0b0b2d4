"""How the blocked implementation cuts one call: blocks of queries against the pairs that any of them can see."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tessera.base.devices import is_imagined
from tessera.ops.kernel_regression.call import Call

# Queries per block. 128 keeps the matrix products efficient, and a block of 128 x 4,096 scores is 2 MB.
QUERIES = 128
# Scores per block at most, over all heads done together: about what stays in the second-level caches.
SCORES = 1 << 19


@dataclass(frozen=True)
class QueryBlock:
    """Queries `queries` of the sequences `batch` against the pairs `pairs`, and what is hidden among them.

    `hidden` lists (columns, mask) with columns relative to `pairs.start` and mask (queries, columns), True where the
    query does not see the pair. Columns that are not listed are seen by every query of the block.
    """

    batch: slice
    queries: slice
    pairs: slice
    hidden: tuple[tuple[slice, Tensor], ...] = ()

    def groups(self, num_heads: int) -> Iterator[slice]:
        """Slices of the flattened (batch, head) dimension, each small enough to stay in cache."""
        area = (self.queries.stop - self.queries.start) * (self.pairs.stop - self.pairs.start)
        size = max(1, SCORES // area)
        stop = self.batch.stop * num_heads
        for start in range(self.batch.start * num_heads, stop, size):
            yield slice(start, min(start + size, stop))

    def hide(self, scores: Tensor) -> None:
        """Set the hidden entries of `scores` (heads, queries, pairs) to -inf."""
        for columns, mask in self.hidden:
            scores[..., columns].masked_fill_(mask, -torch.inf)


def query_blocks(call: Call, queries: int = QUERIES) -> Iterator[QueryBlock]:
    """All blocks of `call`, of `queries` queries each, that have a visible pair.

    Whatever differs between sequences cuts the batch into single ones.
    """
    batch, _, num_queries, _ = call.query.shape
    per_sequence = call.pair_documents is not None or (call.window is not None and torch.is_tensor(call.window.delay))
    sequences = [slice(b, b + 1) for b in range(batch)] if per_sequence else [slice(0, batch)]
    for sequence in sequences:
        delay = _delay(call, sequence.start)
        # The latest first: under most windows it is the largest, and sets the size of the reused memory.
        for start in reversed(range(0, num_queries, queries)):
            block = _windowed(call, sequence, slice(start, min(start + queries, num_queries)), delay)
            if block is not None and call.pair_documents is not None:
                block = _within_documents(call, block)
            if block is not None:
                yield block


def _delay(call: Call, sequence: int) -> int | None:
    if call.window is None:
        return None
    delay = call.window.delay
    return int(delay[sequence]) if torch.is_tensor(delay) else delay


def _windowed(call: Call, sequence: slice, queries: slice, delay: int | None) -> QueryBlock | None:
    """The block of `queries` under the call's window alone."""
    num_pairs = call.key.shape[2]
    if call.window is None or delay is None:
        return QueryBlock(sequence, queries, slice(0, num_pairs)) if num_pairs else None
    first, last = queries.start + call.query_offset, queries.stop - 1 + call.query_offset
    span = call.window.span
    # Seen by some query: [start, stop). Seen by all of them: [all_start, all_stop).
    start, all_start = (0, 0) if span is None else (max(0, first - span + 1), max(0, last - span + 1))
    stop, all_stop = min(num_pairs, last - delay + 1), min(num_pairs, first - delay + 1)
    if start >= stop:
        return None
    ragged = [(start, min(all_start, stop)), (max(all_stop, start), stop)]
    if ragged[0][1] >= ragged[1][0]:
        ragged = [(start, stop)]
    positions = torch.arange(first, last + 1, device=call.query.device)[:, None]
    hidden = []
    for low, high in ragged:
        if low < high:
            age = positions - torch.arange(low, high, device=call.query.device)
            seen = age >= delay if span is None else (age >= delay) & (age < span)
            hidden.append((slice(low - start, high - start), ~seen))
    return QueryBlock(sequence, queries, slice(start, stop), tuple(hidden))


def _within_documents(call: Call, block: QueryBlock) -> QueryBlock | None:
    """`block` of one sequence cut down to the documents of its queries."""
    assert call.query_documents is not None
    assert call.pair_documents is not None
    queries = call.query_documents[block.batch.start, block.queries]
    pairs = call.pair_documents[block.batch.start, block.pairs]
    seen = (queries[:, None] == pairs) & (pairs >= 0)
    for columns, mask in block.hidden:
        seen[:, columns] &= ~mask
    if is_imagined():  # how long documents are is not known: as one document
        return replace(block, hidden=((slice(0, seen.shape[1]), ~seen),))
    used = seen.any(0).nonzero()
    if used.numel() == 0:
        return None
    first, last = int(used[0]), int(used[-1]) + 1
    seen = seen[:, first:last]
    hidden = () if bool(seen.all()) else ((slice(0, last - first), ~seen),)
    seen_pairs = slice(block.pairs.start + first, block.pairs.start + last)
    return QueryBlock(block.batch, block.queries, seen_pairs, hidden)
