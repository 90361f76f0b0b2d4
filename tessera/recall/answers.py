"""What an index answers: the output, the pairs that have weight, and the proof that no other has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.shapes import Float, Int


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
        """(places, weights) of one query. Raises `TesseraError`: no such head or query."""
        size = (len(self.starts) - 1) // max(1, self.num_queries), self.num_queries
        is_there = 0 <= head < size[0] and 0 <= query < size[1]  # else it would be another head's
        expect(is_there, "Support.of", "head and query", f"lie in a support of {size}, from 0 on", (head, query))
        row = head * self.num_queries + query
        span = slice(int(self.starts[row]), int(self.starts[row + 1]))
        return self.places[span], self.weights[span]

    @classmethod
    def joined(cls, supports: Sequence[Self], heads: int) -> Self:
        """Of the queries of all, which have the same heads."""
        num_queries = sum(support.num_queries for support in supports)
        rows = [s.of(head, query) for head in range(heads) for s in supports for query in range(s.num_queries)]
        places, weights = (torch.cat(tensors) for tensors in zip(*rows))
        sizes = torch.tensor([0, *(len(of_row) for of_row, _ in rows)], device=places.device)
        return cls(sizes.cumsum(0), places, weights, num_queries)


@dataclass(frozen=True)
class Certificate:
    """Why nothing was missed: no pair that was not read scores above `largest_unread`, which is at most `threshold`.

    Attributes (all (H, Q)):
        threshold: a score at and below which no pair has weight. largest_unread: bound on the score of any pair not
            read, -inf where all were. pairs_read, pairs_in_support: counts; of a pair that was read, the code was
            looked at, and the key where its code did not rule it out. dropped_weight: of kernels without a
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
