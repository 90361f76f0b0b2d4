"""Reading the leaves that can matter to a query, and no others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from tessera.base.precision import without_autocast
from tessera.base.shapes import Float, Int
from tessera.kernels import Gaussian, Kernel, NearestNeighbours, RowKernel
from tessera.recall.answers import Certificate, Recall, Support
from tessera.recall.candidates import Candidates, stable_order
from tessera.recall.leaves import LEAF
from tessera.recall.read_ahead import read_ahead

if TYPE_CHECKING:
    from tessera.recall.index import PairIndex

FIRST_LEAVES = 16  # read for each query before its first threshold is known
LEAVES_AT_ONCE = 64  # copied and scored while they are in the cache
CODES_AT_ONCE = 512  # leaves of which the codes are
FEW_QUERIES = 8  # ask for a leaf: more are answered as fast from its keys as from its codes
MOST_ALONE = 0.5  # of a leaf's keys are read one by one; of more, all are read
CODE_COST = 0.125  # of looking at a code, in those of reading a key
GROWTH = 16  # each further round reads up to this many times as many
TELLING_LEAVES = 128  # once so many are read for a query, its threshold rises little, and tells what else is needed
TELLING_PART = 32  # or a 32nd of all leaves, where that is less
FEW_PART = 16  # if a query needs no more than a 16th of the leaves, a rising threshold would spare it little
SCAN_SHARE = 0.5  # of the pairs: where more would be read, all are scanned, which reads them in order
SCANNED_AT_ONCE = 1 << 18  # scores of a scan, which are looked at while they are in the cache
SCORES_AT_ONCE = 1 << 27  # of a scan: bounds the queries that are answered together


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

    def part(self, queries: slice) -> Self:
        """Some of the queries."""
        documents = None if self.documents is None else self.documents[queries]
        vectors, slopes, intercepts = (x[:, queries] for x in (self.vectors, self.slopes, self.intercepts))
        return type(self)(vectors, slopes, intercepts, self.oldest[queries], self.newest[queries], documents)


def search(index: "PairIndex", queries: Queries, kernel: Kernel, tolerance: float) -> Recall:
    """See `PairIndex.recall`."""
    heads, count, _ = queries.vectors.shape
    together = max(1, SCORES_AT_ONCE // (heads * max(1, len(index))))
    parts = [slice(first, first + together) for first in range(0, max(1, count), together)]
    kernels = [_of_rows(kernel, part, heads, count) for part in parts]
    with without_autocast(queries.vectors):  # bounds hold for what float32 rounds
        answers = [_Reader(index, queries.part(part), own, tolerance).answer() for part, own in zip(parts, kernels)]
    if len(answers) == 1:
        return answers[0]
    certificates = [list(vars(answer.certificate).values()) for answer in answers]
    certificate = Certificate(*(torch.cat(columns, 1) for columns in zip(*certificates)))
    return Recall(
        torch.cat([answer.output for answer in answers], 1),
        Support.joined([answer.support for answer in answers], heads),
        certificate,
    )


def _of_rows(kernel: Kernel, part: slice, heads: int, count: int) -> Kernel:
    """`kernel` for some of the queries: what rows have of their own, broadcastable to (H, Q, 1), is one of each row."""
    if not isinstance(kernel, RowKernel) or kernel.row_parameter is None:
        return kernel
    return kernel.with_row_parameter(kernel.row_parameter.expand(heads, count, 1)[:, part].flatten(0, 1))


class _Reader:
    """Answers queries together. Row `head * Q + query` of what it holds belongs to a query of a head."""

    def __init__(self, index: "PairIndex", queries: Queries, kernel: Kernel, tolerance: float) -> None:
        pairs, blocks, kept = index.pairs, index.blocks, index.kept
        self.read_ahead = read_ahead if index.is_mapped else lambda rows, which: None
        self.keys, self.values, self.queries = pairs.keys[0], pairs.values[0], queries
        self.kernel, self.tolerance = kernel, tolerance
        self.documents = None if pairs.documents is None else pairs.documents[0]
        self.blocks, self.filed, self.kept, self.length = blocks, index.filed, kept, len(index)
        self.heads, self.count, _ = queries.vectors.shape
        self.num_rows = self.heads * self.count
        self.slopes, self.intercepts = queries.slopes.flatten(), queries.intercepts.flatten()
        self.of_query = torch.arange(self.count, device=self.keys.device).repeat(self.heads)
        self.all_visible = self.documents is None and kept is None and bool((queries.newest >= self.length - 1).all())
        self.all_visible &= bool((queries.oldest <= 0).all())
        self.is_unbounded = isinstance(kernel, Gaussian)
        self.lengths = queries.vectors.norm(dim=-1, keepdim=True)
        unit = queries.vectors / self.lengths.clamp(min=torch.finfo(self.lengths.dtype).tiny)
        self.coordinates = [leaves.coordinates(unit) for leaves in blocks]  # of directions; a length scales them
        self.roundings = [leaves.rounding(self.lengths, unit.shape[-1]) for leaves in blocks]
        # Of each head, pairs whose leaf was needed, and those whose key was read.
        self.num_looked_at, self.num_scored = torch.zeros(2, self.heads, dtype=torch.long, device=self.keys.device)
        # A product of matrices may round equal keys differently, and which of them are the nearest depends on it: all
        # that tie within rounding are kept, and scored again one by one.
        self.breaks_ties = isinstance(kernel, NearestNeighbours)
        self.ties_within = self._rounding() if self.breaks_ties else torch.zeros_like(self.slopes)

    def answer(self) -> Recall:
        """The most promising leaves first, then whatever may hold a pair above the threshold, until nothing may."""
        bounds, candidates = self._bounds(), self._unfiled()
        is_read, most = _largest(bounds, FIRST_LEAVES), FIRST_LEAVES
        if bool(is_read.any()):
            candidates = candidates.joined(self._read_leaves(is_read, None))
        candidates, floor = self._with_floor(candidates, is_read)
        telling = min(TELLING_LEAVES, bounds.shape[1] // TELLING_PART)
        while bool((needed := (bounds > floor.unsqueeze(1)) & ~is_read).any()):
            if most >= telling and (heads := self._heads_to_scan(is_read, needed)):
                is_read.view(self.heads, self.count, -1)[heads] = True
                candidates, floor = self._with_floor(self._scanned(heads, candidates, floor), is_read)
                continue
            most = GROWTH * most if most >= telling else telling
            if needed.shape[1] > most:  # the threshold may rise: the most promising first
                is_much = needed.sum(1, keepdim=True) * FEW_PART > needed.shape[1]
                needed = needed & (_largest(bounds.masked_fill(~needed, -torch.inf), most) | ~is_much)
            is_read |= needed
            candidates, floor = self._with_floor(candidates.joined(self._read_leaves(needed, floor)), is_read)
        return self._solved(candidates.in_order(), floor, is_read, bounds.masked_fill(is_read, -torch.inf))

    def _heads_to_scan(self, is_read: Tensor, needed: Tensor) -> list[int]:
        """Those of which so many pairs would be read, among them `needed` ones, that a scan is faster."""
        of_heads = (self.heads, self.count * needed.shape[1])
        num_read = LEAF * (is_read | needed).view(of_heads).sum(1) + self.count * (self.length - self.filed)
        cost = num_read * (CODE_COST + self.num_scored / self.num_looked_at.clamp(min=1))
        is_wide = (cost > SCAN_SHARE * self.length * self.count) & needed.view(of_heads).any(1)
        return is_wide.nonzero().flatten().tolist()

    def _scanned(self, heads: Sequence[int], candidates: Candidates, floor: Tensor) -> Candidates:
        """`candidates`, for these heads of all pairs above `floor` (R,)."""
        of_others = torch.ones_like(floor, dtype=torch.bool).view(self.heads, self.count)
        of_others[heads] = False
        lowest = self._lowest(torch.full_like(floor, -torch.inf) if self.is_unbounded else floor)
        parts, together = [], max(LEAF, SCANNED_AT_ONCE // self.count)
        for head in heads:
            vectors, first_row = self.queries.vectors[head], head * self.count
            for first in range(0, self.length, together):
                keys = self.keys[head, first : first + together].to(vectors.dtype)
                similarities = vectors @ keys.mT
                is_above = ~(similarities <= lowest[first_row : first_row + self.count, None])
                row, place = is_above.nonzero(as_tuple=True)
                parts.append(self._scores(row + first_row, similarities[row, place], place + first))
        return candidates.of_rows(of_others.flatten()).joined(self._in_rows(parts))

    def _with_floor(self, read: Candidates, is_read: Tensor) -> tuple[Candidates, Tensor]:
        """What of `read` may have weight, and the floor (R,) that it is above."""
        floor = self._floor(read, is_read)
        return read.still_above(floor), floor

    def _solved(self, candidates: Candidates, floor: Tensor, is_read: Tensor, unread: Tensor) -> Recall:
        """The output, its support and the certificate; `unread` (R, leaves) bounds the scores of what was not read."""
        if self.breaks_ties:
            candidates = self._scored_alone(candidates)
        weights = torch.zeros_like(candidates.scores)
        for rows, scores, filled, entries in candidates.padded():
            if len(entries):
                of_rows = self._kernel_of(rows).weights(scores, scores != -torch.inf)
                weights = weights.index_put((entries,), of_rows[filled])
        which = weights.nonzero().squeeze(1)  # NaN too
        sizes = torch.bincount(candidates.rows[which], minlength=self.num_rows)
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        support = Support(starts, candidates.places[which], weights[which], self.count)
        largest_unread = torch.cat([unread, unread.new_full((self.num_rows, 1), -torch.inf)], 1).amax(1)
        dropped = torch.zeros_like(floor)
        if self.is_unbounded and len(candidates.scores):
            for rows, scores, _, _ in candidates.padded():
                shares = (unread[rows] - scores.logsumexp(1, keepdim=True)).exp()
                # Of a query that sees no pair a share would be 0 / 0.
                dropped[rows] = LEAF * shares.masked_fill(unread[rows] == -torch.inf, 0.0).sum(1)
        num_read = LEAF * is_read.sum(1) + self.length - self.filed
        columns_of_certificate = (floor, largest_unread, num_read, sizes, dropped)
        certificate = Certificate(*(column.view(self.heads, self.count) for column in columns_of_certificate))
        return Recall(self._mean(support), support, certificate)

    def _mean(self, support: Support) -> Tensor:
        """`sum_i w_i v_i` (H, Q, V) over the support."""
        width = self.values.shape[-1]
        output = support.weights.new_zeros(self.num_rows, width)
        for head in range(self.heads):
            of_head = slice(head * self.count, (head + 1) * self.count)
            first, last = support.starts[of_head.start], support.starts[of_head.stop]
            self.read_ahead(self.values[head], support.places[first:last])
            output[of_head] = embedding_bag(
                support.places[first:last],
                self.values[head].to(output.dtype),
                support.starts[of_head] - first,
                mode="sum",
                per_sample_weights=support.weights[first:last],
            )
        return output.view(self.heads, self.count, width).to(self.values.dtype)

    def _floor(self, read: Candidates, is_read: Tensor) -> Tensor:
        """Per row, a score at and below which no pair has weight, whatever the pairs that were not read score."""
        floor = torch.zeros_like(self.slopes)
        for rows, scores, _, _ in read.padded():
            floor[rows] = self._floor_of(scores.detach(), rows, is_read)
        return floor

    def _floor_of(self, scores: Tensor, rows: Tensor, is_read: Tensor) -> Tensor:
        """See `_floor`, of the scores (r, s) of these rows."""
        if not self.is_unbounded:
            return self._kernel_of(rows).subset_floor(scores, scores != -torch.inf) - self.ties_within[rows]
        num_unread = LEAF * (~is_read[rows]).sum(1)
        if scores.shape[1] == 0:
            return scores.new_full((len(rows),), -torch.inf)
        share = (self.tolerance / num_unread.to(scores.dtype)).log()
        below = scores.amax(1).nextafter(scores.new_tensor(-torch.inf))  # of large scores and infinity no share is less
        return (scores.logsumexp(1) + share).minimum(below).masked_fill(num_unread == 0, -torch.inf)

    def _kernel_of(self, rows: Tensor) -> Kernel:
        """The kernel, with what these rows have of their own."""
        if not isinstance(self.kernel, RowKernel) or self.kernel.row_parameter is None:
            return self.kernel
        return self.kernel.with_row_parameter(self.kernel.row_parameter[rows])

    def _rounding(self) -> Tensor:
        """Of the scores of each row (R,), at most."""
        vectors = self.queries.vectors
        unfiled = self.keys[:, self.filed :].to(vectors.dtype).norm(dim=-1)
        sizes = [leaves.size.unsqueeze(1) for leaves in self.blocks]
        largest = torch.cat([*sizes, unfiled, unfiled.new_zeros(self.heads, 1)], 1).amax(1)
        similarity = vectors.norm(dim=-1) * largest.unsqueeze(1)
        epsilon = 8 * vectors.shape[-1] * torch.finfo(vectors.dtype).eps
        return epsilon * (self.slopes * similarity.flatten() + self.intercepts.abs())

    def _scored_alone(self, candidates: Candidates) -> Candidates:
        """The same pairs, equal keys with equal scores."""
        rows, vectors = candidates.rows, self.queries.vectors.flatten(0, 1)
        keys = self.keys[rows // self.count, candidates.places].to(vectors.dtype)
        scores = (keys * vectors[rows]).sum(-1) * self.slopes[rows] + self.intercepts[rows]
        return replace(candidates, scores=scores.masked_fill(candidates.scores == -torch.inf, -torch.inf))

    def _unfiled(self) -> Candidates:
        """The pairs behind the leaves that may have weight among those of their row."""
        places = torch.arange(self.filed, self.length, device=self.keys.device)
        keys = self.keys[:, self.filed :].to(self.queries.vectors.dtype)
        scores = (self.queries.vectors @ keys.mT).flatten(0, 1)
        scores = scores * self.slopes[:, None] + self.intercepts[:, None]
        if not self.all_visible:
            scores = scores.masked_fill(~self._visible(self.of_query[:, None], places), -torch.inf)
        floor = torch.full_like(self.slopes, -torch.inf)
        if not self.is_unbounded:
            floor = self.kernel.subset_floor(scores.detach(), scores != -torch.inf) - self.ties_within
        return Candidates.above(scores, places.expand_as(scores), floor)

    def _lowest(self, floor: Tensor) -> Tensor:
        """Similarities (R,) of scores not above `floor`: one pass finds what is looked at exactly afterwards."""
        lowest = (floor - self.intercepts) / self.slopes
        epsilon = 8 * torch.finfo(lowest.dtype).eps  # a margin for rounding
        lowest = lowest - epsilon * (lowest.abs() + (self.intercepts / self.slopes).abs())
        return lowest.nextafter(torch.full_like(lowest, -torch.inf))  # just below 0, a slope makes it 0

    def _in_rows(self, parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Candidates:
        """What was found in parts: rows, scores, places."""
        rows, scores, places = (torch.cat(tensors) for tensors in zip(*parts))
        if self.num_rows > 1:
            order = stable_order(rows, self.num_rows)
            rows, scores, places = (x.index_select(0, order) for x in (rows, scores, places))
        return Candidates(rows, scores, places, self.num_rows)

    def _read_leaves(self, needed: Tensor, floor: Tensor | None) -> Candidates:
        """The pairs of the leaves that are `needed` (R, leaves), of which there are some; those above `floor` (R,)."""
        lowest = None if floor is None else self._lowest(floor)
        of_blocks = needed.view(self.heads, self.count, -1).split([leaves.places.shape[1] for leaves in self.blocks], 2)
        parts = [
            part
            for block, needed_of_block in enumerate(of_blocks)
            for leaves, rows in _grouped(needed_of_block)
            for together in zip(leaves.split(CODES_AT_ONCE), rows.split(CODES_AT_ONCE))
            for part in self._pairs_above(block, *together, lowest)
        ]
        return self._in_rows(parts)

    def _pairs_above(
        self, block: int, leaves: Tensor, asking: Tensor, lowest: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Rows, scores, places of what is more similar than `lowest` (R,) among `leaves` (c,) of a block, for (c, n).

        Where few ask, the codes say which keys are read.
        """
        head = leaves // self.blocks[block].places.shape[1]
        num_pairs = torch.bincount(head, minlength=self.heads) * (asking.shape[1] * LEAF)
        self.num_looked_at += num_pairs
        if lowest is not None and asking.shape[1] <= FEW_QUERIES:
            possible = self._possible(block, leaves, asking, lowest).nonzero()
            if len(possible) <= MOST_ALONE * LEAF * len(leaves):
                yield self._alone(block, leaves, asking, possible, lowest)
                return
        self.num_scored += num_pairs
        for some, rows in zip(leaves.split(LEAVES_AT_ONCE), asking.split(LEAVES_AT_ONCE)):
            yield self._together(block, some, rows, lowest)

    def _possible(self, block: int, leaves: Tensor, asking: Tensor, lowest: Tensor) -> Tensor:
        """Whether the bounds of single keys exceed `lowest` (c, n, S)."""
        codes, least = self.blocks[block].codes.flatten(0, 1), lowest - self.roundings[block].flatten()
        own_block = leaves // self.blocks[block].longest.shape[2]  # of those of all heads
        self.read_ahead(codes, leaves)
        coordinates = (self.coordinates[block] * self.lengths.unsqueeze(1)).flatten(0, 1)  # (H G, Q, d)
        known = asking.clamp(min=0)
        if self.count == 1:
            coordinates = coordinates.index_select(0, own_block)
        else:
            coordinates = coordinates[own_block.unsqueeze(1), known % self.count]
        bounds = torch.bmm(coordinates, codes.index_select(0, leaves).mT)
        possible = (bounds <= least[known].unsqueeze(-1)).logical_not_()
        return possible if self.count == 1 else possible.logical_and_((asking >= 0).unsqueeze(-1))

    def _alone(
        self, block: int, leaves: Tensor, asking: Tensor, possible: Tensor, lowest: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `_pairs_above`: of the keys `possible` (p, 3): which leaf, which of its queries, which place in it."""
        leaf, column, inside = possible.unbind(1)
        rows, flat = asking[leaf, column], leaves[leaf] * LEAF + inside
        self.num_scored += torch.bincount(rows // self.count, minlength=self.heads)
        vectors = self.queries.vectors.flatten(0, 1)
        all_keys, all_places = self.blocks[block].keys.flatten(0, 2), self.blocks[block].places.flatten()
        for rows_of_keys in (all_keys, all_places.unsqueeze(1)):
            self.read_ahead(rows_of_keys, flat)
        keys = all_keys.index_select(0, flat).to(vectors.dtype)
        if self.count == 1:  # rows ascend
            of_rows = keys.split(torch.bincount(rows, minlength=self.num_rows).tolist())
            similarities = torch.cat([of_row @ vector for of_row, vector in zip(of_rows, vectors)])
        else:
            similarities = (keys * vectors[rows]).sum(-1)
        is_above = ~(similarities <= lowest[rows])
        return self._scores(rows[is_above], similarities[is_above], all_places[flat[is_above]])

    def _together(
        self, block: int, leaves: Tensor, asking: Tensor, lowest: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `_pairs_above`: of all keys of these leaves."""
        vectors, known = self.queries.vectors.flatten(0, 1), asking.clamp(min=0)
        all_keys, all_places = self.blocks[block].keys.flatten(0, 1), self.blocks[block].places.flatten(0, 1)
        for rows_of_leaves in (all_keys, all_places):
            self.read_ahead(rows_of_leaves, leaves)
        keys = all_keys.index_select(0, leaves).to(vectors.dtype)
        similarities = vectors[known] @ keys.mT  # (c, n, S)
        is_above = (asking >= 0).unsqueeze(-1).expand_as(similarities)
        if lowest is not None:
            is_above = ~(similarities <= lowest[known].unsqueeze(-1)) & is_above
        leaf, column, inside = is_above.nonzero(as_tuple=True)
        places = all_places[leaves[leaf], inside]
        return self._scores(asking[leaf, column], similarities[leaf, column, inside], places)

    def _scores(self, rows: Tensor, similarities: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same with scores, -inf where the row does not see the place."""
        scores = similarities * self.slopes[rows] + self.intercepts[rows]
        if not self.all_visible:
            scores = scores.masked_fill(~self._visible(self.of_query[rows], places), -torch.inf)
        return rows, scores, places

    def _visible(self, asking: Tensor, places: Tensor) -> Tensor:
        """Whether the queries `asking` see the places, broadcast."""
        queries = self.queries
        visible = (places >= queries.oldest[asking]) & (places <= queries.newest[asking])
        if self.kept is not None:
            visible = visible & self.kept[places]
        if self.documents is not None and queries.documents is not None:
            documents = self.documents[places]
            visible = visible & (documents == queries.documents[asking]) & (documents >= 0)
        return visible

    def _bounds(self) -> Tensor:
        """Of scores (R, leaves): -inf for a leaf whose places the query does not see, inf where a score may be NaN."""
        queries = self.queries
        if not self.blocks:
            return queries.vectors.new_zeros(self.num_rows, 0)
        of_blocks = zip(self.blocks, self.coordinates, self.roundings)
        similarities = [leaves.largest_similarities(c, self.lengths) + rounding for leaves, c, rounding in of_blocks]
        bounds = torch.cat(similarities, 2) * queries.slopes.unsqueeze(-1) + queries.intercepts.unsqueeze(-1)
        bounds = bounds.masked_fill(bounds.isnan(), torch.inf)
        if not self.all_visible:
            first, last = (
                torch.cat([leaves.places[:, :, end] for leaves in self.blocks], 1).unsqueeze(1) for end in (0, -1)
            )
            unseen = (first > queries.newest[:, None]) | (last < queries.oldest[:, None])
            bounds = bounds.masked_fill(unseen, -torch.inf)
        return bounds.flatten(0, 1)


def _largest(bounds: Tensor, count: int) -> Tensor:
    """Where the `count` largest of each row are (R, leaves); never where a bound is -inf."""
    best = bounds.topk(min(count, bounds.shape[1]), dim=1)[1]
    return torch.zeros_like(bounds, dtype=torch.bool).scatter(1, best, True) & (bounds > -torch.inf)


def _grouped(needed: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Leaves and who needs them, from `needed` (H, Q, C): flat leaves (c,) and rows (c, n), filled up with -1.

    Leaves that about as many queries need are one product: n is a power of two, and more than half are queries.
    """
    head, leaf, query = needed.transpose(1, 2).nonzero(as_tuple=True)
    _, num_queries, num_leaves = needed.shape
    flat, rows = head * num_leaves + leaf, head * num_queries + query
    if num_queries == 1:
        yield flat, rows.unsqueeze(1)
        return
    leaves, counts = flat.unique_consecutive(return_counts=True)
    ends = counts.cumsum(0)
    within = torch.arange(len(flat), device=flat.device) - (ends - counts).repeat_interleave(counts)
    sizes = torch.pow(2, (counts - 1).to(torch.float).add(1).log2().ceil().long())
    which = torch.arange(len(leaves), device=flat.device).repeat_interleave(counts)
    for size in sizes.unique().tolist():
        is_one = sizes == size
        asking = rows.new_full((len(leaves), size), -1)[is_one]
        position = is_one.cumsum(0) - 1
        entries = is_one[which]
        asking[position[which[entries]], within[entries]] = rows[entries]
        yield leaves[is_one], asking
