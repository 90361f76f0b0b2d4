"""Leaves: small groups of near keys, and for each a bound on the similarity of a query to any key in it.

A block of consecutive keys is halved again and again at the median of the coordinate that varies most, down to leaves
of `LEAF` keys. The coordinates of a vector x are those in the `COORDINATES` first principal directions R of its block,
and the length of what is left:

    c(x) = (Rx, |x - R'Rx|),    |c(q) - c(k)| <= |q - k|.

So with the lowest and highest coordinates of a leaf's keys k, and the longest of them,

    q . k = (|q|^2 + |k|^2 - |q - k|^2) / 2
         <= (|q|^2 + longest^2 - sum_d max(low_d - c_d(q), c_d(q) - high_d, 0)^2) / 2.

It holds for q of any length: a query is made as long as the longest of all keys, and the bound is scaled back. Between
keys of one length, as memories store them, the first line is their distance and nothing else.

The coordinates of a single key, its code, bound that key: `q . k <= c(q) . c(k)`. A code is a few numbers, and tells
which keys of a leaf need not be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tessera.base.precision import without_autocast
from tessera.base.shapes import Float, Int

LEAF = 128
BLOCK = 262_144
COORDINATES = 8
DIRECTED = 8192  # keys of a block are enough to find its principal directions
AT_ONCE = 4096  # keys whose coordinates are made while they are in the cache
SAMPLE = 256  # of the keys of a node: in which coordinate they vary most
NUMBERS_AT_ONCE = 1 << 21  # of boxes that are compared with queries
ROUNDING = 24  # of a bound, in K eps |q| |k|: products, their squares, and directions that are nearly orthonormal


@dataclass(frozen=True)
class Leaves:
    """C leaves of S keys in G blocks, for every head; `C = G * BLOCK / S`, c = C / G.

    Attributes:
        keys: (H, C, S, K). places: (H, C, S), where each key stands in the store; those of a leaf ascend.
        codes: (H, C, S, D + 1), c(k) of every key; the last is infinite for a key that is not finite.
        directions: (H, G, K, D), orthonormal columns. low, high: (H, G, D + 1, c). longest: (H, G, c), the largest
            squared norm, or infinity where keys are not finite. size: of keys, the largest norm per head (H,).
    """

    keys: Float[Tensor, "H C S K"]
    places: Int[Tensor, "H C S"]
    codes: Float[Tensor, "H C S coordinates"]
    directions: Float[Tensor, "H G K D"]
    low: Float[Tensor, "H G coordinates c"]
    high: Float[Tensor, "H G coordinates c"]
    longest: Float[Tensor, "H G c"]
    size: Float[Tensor, " H"]

    def __len__(self) -> int:
        return self.places.shape[1] * LEAF

    @property
    def num_blocks(self) -> int:
        """G."""
        return self.longest.shape[1]

    def first(self, num_blocks: int) -> Self:
        """Those of the first blocks, which may be all."""
        if num_blocks >= self.num_blocks:
            return self
        ends = dict.fromkeys(("directions", "low", "high", "longest"), num_blocks)
        ends |= dict.fromkeys(("keys", "places", "codes"), num_blocks * self.longest.shape[2])
        return replace(self, **{name: getattr(self, name)[:, :end].contiguous() for name, end in ends.items()})

    @classmethod
    def of(cls, keys: Float[Tensor, "H N K"], first: int) -> Self:
        """The leaves of one block of keys, whose first one stands at place `first`. N is a power of two times LEAF."""
        with without_autocast(keys):
            return cls._of(keys, first)

    @classmethod
    def _of(cls, keys: Tensor, first: int) -> Self:
        heads, count, width = keys.shape
        precise = keys.to(working_dtype(keys))
        lengths = precise.norm(dim=-1, keepdim=True)
        finite = lengths.isfinite()
        if not bool(finite.all()):  # a leaf with others has no bound
            precise = precise.masked_fill(~finite, 0)
        directions = _directions(precise[:, :: max(1, count // DIRECTED)])
        coordinates = torch.cat([_coordinates(part, directions) for part in precise.split(AT_ONCE, 1)], 1)
        order = _order(coordinates)
        of_leaf = _take(coordinates, order).view(heads, -1, LEAF, coordinates.shape[-1])
        codes = of_leaf.detach().clone()
        codes[..., -1].masked_fill_(~_take(finite, order).view(codes.shape[:3]), torch.inf)
        longest = _take(lengths.square().masked_fill(~finite, torch.inf), order).view(heads, -1, LEAF).amax(2)
        return cls(
            _take(keys, order).view(heads, -1, LEAF, width),
            (order + first).view(heads, -1, LEAF),
            codes,
            directions.unsqueeze(1),
            of_leaf.amin(2).mT.unsqueeze(1).contiguous(),
            of_leaf.amax(2).mT.unsqueeze(1).contiguous(),
            longest.unsqueeze(1),
            lengths.masked_fill(~finite, 0).amax((1, 2)),
        )

    @classmethod
    def joined(cls, parts: Iterable[Self], num_blocks: int) -> Self:
        """The `num_blocks` blocks of all parts, one behind the other; a part is let go when it was copied."""
        joined: dict[str, Tensor] = {}
        done, size = 0, torch.zeros((), device="cpu")
        for part in parts:
            if part.num_blocks == num_blocks:
                return part
            for field in fields(part):
                of_part = getattr(part, field.name)
                if field.name == "size":
                    size = torch.maximum(of_part, size.to(of_part))
                    continue
                heads, count, *rest = of_part.shape
                step = count // part.num_blocks
                if not done:
                    joined[field.name] = of_part.new_empty(heads, num_blocks * step, *rest)
                joined[field.name][:, done * step : done * step + count] = of_part
            done += part.num_blocks
        return cls(**joined, size=size)

    def coordinates(self, queries: Float[Tensor, "H Q K"]) -> Float[Tensor, "H G Q coordinates"]:
        """c(q) in the directions of each block."""
        return _coordinates(queries.unsqueeze(1), self.directions)

    def rounding(self, lengths: Float[Tensor, "H Q 1"], width: int) -> Float[Tensor, "H Q 1"]:
        """By how much a bound of queries of these lengths may be wrong, however they and the keys were rounded."""
        return lengths * self.size.view(-1, 1, 1) * (ROUNDING * width * torch.finfo(lengths.dtype).eps)

    def largest_similarities(
        self, coordinates: Float[Tensor, "H G Q coordinates"], lengths: Float[Tensor, "H Q 1"]
    ) -> Float[Tensor, "H Q C"]:
        """No key of a leaf is more similar to the query than this, but for `rounding`.

        Given the query's length and the coordinates of its direction: c(a q) = a c(q).
        """
        size = self.size.view(-1, 1, 1)
        coordinates = coordinates * size.unsqueeze(1)
        together = max(1, NUMBERS_AT_ONCE // self.low.numel())
        parts = [self._distances(part.unsqueeze(-1)) for part in coordinates.split(together, dim=2)]
        largest = (size.unsqueeze(1).square() + self.longest.unsqueeze(2) - torch.cat(parts, 2)) / 2
        return largest.permute(0, 2, 1, 3).flatten(2) * (lengths / size.clamp(min=torch.finfo(size.dtype).tiny))

    def _distances(self, coordinates: Float[Tensor, "H G Q d 1"]) -> Float[Tensor, "H G Q c"]:
        """The squared distances of queries from the boxes of the leaves."""
        nearest = torch.clamp(coordinates, self.low.unsqueeze(2), self.high.unsqueeze(2))
        return nearest.sub_(coordinates).square_().sum(3)


def _directions(keys: Float[Tensor, "H N K"]) -> Float[Tensor, "H K D"]:
    """The first principal directions of some keys, as columns."""
    centred = keys - keys.mean(1, keepdim=True)
    centred = centred / centred.abs().amax().clamp(min=torch.finfo(centred.dtype).tiny)  # squares of huge keys
    return torch.linalg.eigh(centred.mT @ centred)[1].flip(-1)[..., : min(COORDINATES, keys.shape[-1])]


def _coordinates(vectors: Tensor, directions: Tensor) -> Tensor:
    """c(x) of the module (..., N, D + 1), of vectors (..., N, K) in directions (..., K, D)."""
    inside = vectors @ directions
    rest = vectors - inside @ directions.mT  # a difference of squares would have half the digits
    return torch.cat([inside, rest.norm(dim=-1, keepdim=True)], dim=-1)


def working_dtype(x: Tensor) -> torch.dtype:
    """Of bounds and scores: half-precision numbers are exact in it."""
    return torch.promote_types(x.dtype, torch.float32)


def _order(coordinates: Float[Tensor, "H N D"]) -> Int[Tensor, "H N"]:
    """The keys leaf by leaf: nodes are halved at the median of the coordinate that varies most in them."""
    heads, count, width = coordinates.shape
    order = torch.arange(count, device=coordinates.device).expand(heads, -1)
    nodes = 1
    while (size := count // nodes) > LEAF:
        of_node = order.view(heads, nodes, size)
        sample = of_node[:, :, :: max(1, size // SAMPLE)]
        spread = _take(coordinates, sample.flatten(1)).view(*sample.shape, width).var(2)
        column = of_node * width + spread.argmax(-1, keepdim=True)
        halves = _halves(coordinates.flatten(1).gather(1, column.flatten(1)).view_as(of_node))
        order = order.view(heads, nodes, -1).gather(-1, halves).view(heads, count)
        nodes *= 2
    # In the order of their places within a leaf, so that a leaf's first and last place are its ends.
    return order.view(heads, nodes, -1).sort(-1)[0].view(heads, count)


def _halves(numbers: Float[Tensor, "*nodes n"]) -> Int[Tensor, "*nodes n"]:
    """Where the lower half of each row stands, then where the upper half does."""
    if numbers.device.type != "cpu":
        return numbers.argsort(dim=-1)
    return torch.from_numpy(np.argpartition(numbers.detach().numpy(), numbers.shape[-1] // 2, axis=-1))


def _take(rows: Tensor, order: Int[Tensor, "H N"]) -> Tensor:
    """The rows of each head in another order; whole rows are copied, which `gather` does number by number."""
    heads, count, width = rows.shape
    of_head = torch.arange(0, heads * count, count, device=order.device).unsqueeze(1)
    return rows.flatten(0, 1).index_select(0, (order + of_head).flatten()).view(*order.shape, width)
