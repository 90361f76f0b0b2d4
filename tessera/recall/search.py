"""Reading the leaves that can matter to a query, and no others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tessera.base.shapes import Bool, Float, Int
from tessera.kernels import Gaussian, Kernel
from tessera.recall.leaves import LEAF, Leaves
from tessera.recall.pair_store import PairStore

FIRST_LEAVES = 8  # read before the first threshold is known; each further round reads up to `GROWTH` times as many
GROWTH = 4
SCAN_SHARE = 0.5  # of the pairs: where more would be read, all are scanned, which reads them in order
TOGETHER = 8  # neighbouring queries that share the leaves which any of them needs


@dataclass(frozen=True)
class Queries:
    """What is asked: queries (H, Q, K), slopes and intercepts (H, Q), and the places that each query sees.

    Attributes:
        oldest, newest: (Q,), first and last place. documents: (Q,) or None.
    """

    vectors: Float[Tensor, "H Q K"]
    slopes: Float[Tensor, "H Q"]
    intercepts: Float[Tensor, "H Q"]
    oldest: Int[Tensor, " Q"]
    newest: Int[Tensor, " Q"]
    documents: Int[Tensor, " Q"] | None


@dataclass(frozen=True)
class Support:
    """The pairs that have weight, query after query: those of query q of head h are `of(h, q)`.

    Attributes:
        starts: (H * Q + 1,). places, weights: of all queries, one behind the other; places ascend within each.
    """

    starts: Int[Tensor, " starts"]
    places: Int[Tensor, " S"]
    weights: Float[Tensor, " S"]
    num_queries: int

    def of(self, head: int, query: int) -> tuple[Int[Tensor, " s"], Float[Tensor, " s"]]:
        """(places, weights) of one query."""
        row = head * self.num_queries + query
        part = slice(int(self.starts[row]), int(self.starts[row + 1]))
        return self.places[part], self.weights[part]


@dataclass(frozen=True)
class Certificate:
    """Why nothing was missed: no pair that was not read scores above `largest_unread`, which is at most `threshold`.

    Attributes (all (H, Q)):
        threshold: a score at and below which no pair has weight. largest_unread: bound on the score of any pair not
            read, -inf where all were. pairs_read, pairs_in_support: counts. dropped_weight: of kernels without a
            threshold (Gaussian), a bound on the share of weight of what was not read; 0 for the others.
    """

    threshold: Float[Tensor, "H Q"]
    largest_unread: Float[Tensor, "H Q"]
    pairs_read: Int[Tensor, "H Q"]
    pairs_in_support: Int[Tensor, "H Q"]
    dropped_weight: Float[Tensor, "H Q"]

    @property
    def is_exact(self) -> bool:
        """Whether no pair with weight can have been missed, for any query."""
        return bool(((self.largest_unread <= self.threshold) & (self.dropped_weight == 0)).all())


@dataclass(frozen=True)
class Recall:
    """What an index recalls: `output` (H, Q, V) is `sum_i w_i v_i`."""

    output: Float[Tensor, "H Q V"]
    support: Support
    certificate: Certificate


@dataclass
class _Answer:
    """Of one head and some queries: weights (q, s) of the pairs at `places` (s,), and the certificate's rows."""

    weights: Tensor
    places: Tensor
    threshold: Tensor
    largest_unread: Tensor
    pairs_read: int
    dropped_weight: Tensor


def search(
    pairs: PairStore,
    blocks: Sequence[Leaves],
    filed: int,
    kept: Bool[Tensor, " N"] | None,
    queries: Queries,
    kernel: Kernel,
    tolerance: float,
) -> Recall:
    """See `PairIndex.recall`."""
    heads, count, _ = queries.vectors.shape
    rows: list[tuple[Tensor, Tensor]] = []
    values = pairs.values[0]
    output = values.new_zeros(heads, count, values.shape[-1])
    threshold, unread, dropped = (queries.slopes.new_zeros(heads, count) for _ in range(3))
    read = torch.zeros(heads, count, dtype=torch.long, device=values.device)
    reader = _Reader(pairs, blocks, filed, kept, queries, kernel, tolerance)
    for head in range(heads):
        for first in range(0, count, TOGETHER):
            part = slice(first, min(first + TOGETHER, count))
            answer = reader.answer(head, part)
            found = values[head].index_select(0, answer.places).to(answer.weights.dtype)
            output[head, part] = (answer.weights @ found).to(values.dtype)
            rows += [(answer.places[weights > 0], weights[weights > 0]) for weights in answer.weights]
            threshold[head, part], unread[head, part] = answer.threshold, answer.largest_unread
            read[head, part], dropped[head, part] = answer.pairs_read, answer.dropped_weight
    sizes = torch.tensor([len(places) for places, _ in rows])
    starts = torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)])
    support = Support(starts, torch.cat([p for p, _ in rows]), torch.cat([w for _, w in rows]), count)
    return Recall(output, support, Certificate(threshold, unread, read, sizes.view(heads, count), dropped))


@dataclass
class _Found:
    """Scores (q, s) and places (s,) of the pairs that were read, those aside that are known to have no weight."""

    scores: Tensor
    places: Tensor
    num_read: int

    @classmethod
    def of(cls, scores: Tensor, places: Tensor) -> Self:
        return cls(scores, places, len(places))

    def joined(self, scores: Tensor, places: Tensor) -> Self:
        joined = torch.cat([self.scores, scores], 1), torch.cat([self.places, places])
        return type(self)(*joined, self.num_read + len(places))

    def above(self, floor: Tensor) -> Self:
        """What scores above `floor` (q,) for any query. The floor only rises as more is read, so the rest is out."""
        matters = (self.scores > floor.unsqueeze(1)).any(0).nonzero().squeeze(1)
        return type(self)(self.scores[:, matters], self.places[matters], self.num_read)


class _Reader:
    """Answers queries of one head at a time; holds what all of them share."""

    def __init__(
        self,
        pairs: PairStore,
        blocks: Sequence[Leaves],
        filed: int,
        kept: Tensor | None,
        queries: Queries,
        kernel: Kernel,
        tolerance: float,
    ) -> None:
        self.keys, self.queries, self.kernel, self.tolerance = pairs.keys[0], queries, kernel, tolerance
        self.documents = None if pairs.documents is None else pairs.documents[0]
        self.blocks, self.filed, self.kept, self.length = blocks, filed, kept, pairs.length
        self.num_leaves = [leaves.places.shape[1] for leaves in blocks]
        self.all_visible = self.documents is None and kept is None and bool((queries.newest >= self.length - 1).all())
        self.all_visible &= bool((queries.oldest <= 0).all())
        self.is_unbounded = isinstance(kernel, Gaussian)

    def answer(self, head: int, part: slice) -> _Answer:
        """Of the queries `part` of a head."""
        bounds = self._bounds(head, part)
        num_leaves = bounds.shape[1]
        is_read = torch.zeros(num_leaves, dtype=torch.bool, device=bounds.device)
        tail = torch.arange(self.filed, self.length, device=bounds.device)
        found = _Found.of(*self._scores(head, part, self.keys[head, self.filed :], tail))
        chosen = bounds.topk(min(FIRST_LEAVES, num_leaves), dim=1)[1].unique() if num_leaves else tail[:0]
        while len(chosen):
            if found.num_read + len(chosen) * LEAF > SCAN_SHARE * self.length:
                return self._scan(head, part)
            is_read[chosen] = True
            found = found.joined(*self._read(head, part, chosen))
            floor = self._floor(found.scores, self.length - found.num_read)
            found = found.above(floor)
            needed = ((bounds > floor.unsqueeze(1)).any(0) & ~is_read).nonzero().squeeze(1)
            most = (GROWTH - 1) * max(FIRST_LEAVES, found.num_read // LEAF)
            if len(needed) > most:  # the threshold may rise: the most promising first
                promise = (bounds[:, needed] - floor.unsqueeze(1)).amax(0)
                needed = needed[promise.topk(most)[1]]
            chosen = needed
        return self._solved(found, bounds.masked_fill(is_read, -torch.inf))

    def _scan(self, head: int, part: slice) -> _Answer:
        every = torch.arange(self.length, device=self.keys.device)
        found = _Found.of(*self._scores(head, part, self.keys[head], every))
        return self._solved(found, found.scores.new_full((len(found.scores), 0), -torch.inf))

    def _solved(self, found: "_Found", unread: Tensor) -> _Answer:
        """Weights of what was read, without the pairs that have none for any of the queries."""
        floor = self._floor(found.scores, self.length - found.num_read)
        found = found.above(floor)
        order = found.places.argsort()  # of ties the most recent is last, as in a scan
        scores, places = found.scores[:, order], found.places[order]
        weights = self.kernel.weights(scores, scores > -torch.inf) if len(places) else scores
        largest_unread = torch.cat([unread, unread.new_full((len(unread), 1), -torch.inf)], 1).amax(1)
        dropped = torch.zeros_like(floor)
        if self.is_unbounded and len(places):
            dropped = (LEAF * (unread - scores.logsumexp(1, keepdim=True)).exp()).sum(1)
        return _Answer(weights, places, floor, largest_unread, found.num_read, dropped)

    def _floor(self, scores: Tensor, num_unread: int) -> Tensor:
        """Per query, a score at and below which no pair has weight, whatever the pairs that were not read score."""
        if not self.is_unbounded:
            return self.kernel.subset_floor(scores, scores > -torch.inf)
        if num_unread == 0 or scores.shape[1] == 0:
            return scores.new_full((len(scores),), -torch.inf)
        share = torch.tensor(self.tolerance / num_unread, dtype=scores.dtype, device=scores.device).log()
        return scores.logsumexp(1) + share

    def _read(self, head: int, part: slice, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (q, s) and places (s,) of the pairs in the chosen leaves."""
        scores, places, first = [], [], 0
        for leaves, count in zip(self.blocks, self.num_leaves):
            within = chosen[(chosen >= first) & (chosen < first + count)] - first
            first += count
            if len(within):
                keys = leaves.keys[head].index_select(0, within).flatten(0, 1)
                found = self._scores(head, part, keys, leaves.places[head].index_select(0, within).flatten())
                scores.append(found[0])
                places.append(found[1])
        return torch.cat(scores, 1), torch.cat(places)

    def _scores(self, head: int, part: slice, keys: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        queries = self.queries
        scores = queries.vectors[head, part] @ keys.to(queries.vectors.dtype).mT
        scores = scores * queries.slopes[head, part, None] + queries.intercepts[head, part, None]
        if self.all_visible:
            return scores, places
        visible = (places >= queries.oldest[part, None]) & (places <= queries.newest[part, None])
        if self.kept is not None:
            visible &= self.kept[places]
        if self.documents is not None and queries.documents is not None:
            visible &= (self.documents[places] == queries.documents[part, None]) & (self.documents[places] >= 0)
        return scores.masked_fill(~visible, -torch.inf), places

    def _bounds(self, head: int, part: slice) -> Tensor:
        """Of scores (q, leaves): -inf for a leaf whose places the query does not see."""
        queries = self.queries
        vectors = queries.vectors[head : head + 1, part]
        if not self.blocks:
            return vectors.new_zeros(vectors.shape[1], 0)
        similarities = torch.cat([leaves.of_head(head).largest_similarities(vectors)[0] for leaves in self.blocks], 1)
        bounds = similarities * queries.slopes[head, part, None] + queries.intercepts[head, part, None]
        if self.all_visible:
            return bounds
        first = torch.cat([leaves.places[head, :, 0] for leaves in self.blocks])
        last = torch.cat([leaves.places[head, :, -1] for leaves in self.blocks])
        unseen = (first > queries.newest[part, None]) | (last < queries.oldest[part, None])
        return bounds.masked_fill(unseen, -torch.inf)
