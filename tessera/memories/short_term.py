"""Short-term memory: the last h steps."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from tessera.errors import expect
from tessera.kernels import Kernel
from tessera.memories.gated import GatedMemory, Reading
from tessera.memories.pair_store import PairStore
from tessera.ops.kernel_regression import Window, choose_backend, triton


class ShortTermMemory(GatedMemory):
    """Recalls the pairs `T - h < i <= T - 1` (Memory Mosaics v2, section 3.3): h - 1 pairs at most.

    A whole sequence costs O(T h) time and memory: where Triton does not run, by queries in blocks of h, each against
    the pairs of its own block and of the one before. One more token costs O(h). The state holds between h and 2h pairs,
    whatever T.
    """

    def __init__(self, hidden_size: int, num_heads: int, kernel: Kernel, span: int):
        expect(span >= 2, "ShortTermMemory", "span", "be at least 2 (a window of 1 holds no pair)", span)
        super().__init__(hidden_size, num_heads, kernel)
        self.span = span

    def num_pairs(self, positions: Tensor, delay: int | Tensor = 1) -> Tensor:
        """min(T, h) - 1."""
        return positions.clamp(max=self.span) - 1

    def kept(self, pairs: PairStore) -> PairStore:
        """All pairs while they are fewer than 2h: copying the last h - 1 only then costs O(1) per token."""
        if pairs.length < 2 * self.span:
            return pairs
        last = slice(pairs.length - self.span + 1, None)
        documents = None if pairs.documents is None else pairs.documents[:, last].clone()
        return PairStore.of(pairs.keys[:, :, last].clone(), pairs.values[:, :, last].clone(), documents)

    def recall(self, reading: Reading, delay: int | Tensor = 1) -> Tensor:
        """In blocks of h queries; at most h of them are one block. Triton's kernels skip what the window hides."""
        steps, span, offset = reading.queries.shape[2], self.span, reading.offset
        window = Window(delay=1, span=span)
        skips = reading.queries.is_cuda and choose_backend(reading.call(self.kernel, window)) is triton
        at_once = steps <= span or skips
        if offset > 0 and at_once:
            oldest = max(offset - span + 1, 0)
            near = reading.select(slice(None), slice(oldest, None), offset - oldest)
            return near.regress(self.kernel, None if steps == 1 else window)
        if offset > 0:
            return self._blocks(reading, window)
        if at_once and steps > span:
            return reading.select(slice(None), slice(0, steps - 1), 0).regress(self.kernel, window)
        # The first block has none before it: it is an ordinary causal memory, without padding to mask.
        head = reading.select(slice(0, span), slice(0, min(span, steps) - 1), 0).regress(self.kernel, Window(delay=1))
        if steps <= span:
            return head
        tail = self._blocks(reading.select(slice(span, None), slice(None), span), window)
        return torch.cat([head, tail], dim=2)

    def _blocks(self, reading: Reading, window: Window) -> Tensor:
        """All blocks as one batch: each has h queries, and the 2h pairs that begin h positions before its first."""
        batch, steps = reading.queries.shape[0], reading.queries.shape[2]
        answers = fold(reading, self.span).regress(self.kernel, window)
        return answers.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)[:, :, :steps]


def fold(reading: Reading, span: int) -> Reading:
    """Blocks of `span` queries, and for each the `2 span` pairs around its beginning, in the batch dimension."""
    blocks = -(-reading.queries.shape[2] // span)
    missing = blocks * span - reading.queries.shape[2]
    begin = reading.offset - span
    absent = max(-begin, 0)
    store, documents, pair_documents = reading.pairs, reading.documents, reading.pairs.documents
    if absent and documents is None:
        documents = torch.zeros_like(reading.queries[:, 0, :, 0], dtype=torch.long)
        pair_documents = torch.zeros_like(store.keys[:, 0, :, 0], dtype=torch.long)

    def around(pairs: Tensor) -> Tensor:  # (B, H, N, width) -> (B * blocks, H, 2 span, width)
        pairs = pairs[:, :, max(begin, 0) :]
        pairs = pad(pairs, (0, 0, absent, (blocks + 1) * span - absent - pairs.shape[2]))
        pairs = pairs.unflatten(2, (blocks + 1, span))
        return torch.cat([pairs[:, :, :-1], pairs[:, :, 1:]], dim=3).transpose(1, 2).flatten(0, 1)

    def split(queries: Tensor) -> Tensor:  # (B, H, T, width) -> (B * blocks, H, span, width)
        queries = queries.expand(reading.queries.shape[0], -1, -1, -1)
        return pad(queries, (0, 0, 0, missing)).unflatten(2, (blocks, span)).transpose(1, 2).flatten(0, 1)

    if documents is not None:
        documents = split(documents[:, None, :, None])[:, 0, :, 0]
        # Shifted by one, so that the zeros of padding mean "not stored" (-1).
        pair_documents = around(pair_documents[:, None, :, None] + 1)[:, 0, :, 0] - 1
    pairs = PairStore.of(around(store.keys), around(store.values), pair_documents)
    slope = split(reading.slope[..., None])[..., 0]
    intercept = None if reading.intercept is None else split(reading.intercept[..., None])[..., 0]
    return Reading(split(reading.queries), pairs, span, slope, intercept, documents)
