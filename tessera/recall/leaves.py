"""Leaves: small groups of near keys, and for each a bound on the similarity of a query to any key in it.

A block of consecutive keys is halved again and again at the median of the principal coordinate that varies most, down
to leaves of `LEAF` keys. With the `COORDINATES` first principal directions R of its block and the rest k_rest of a key,

    q . k = sum_d (Rq)_d (Rk)_d + q_rest . k_rest
         <= sum_d max((Rq)_d low_d, (Rq)_d high_d) + q . centre + |q_rest| radius,

where low and high are the leaf's extreme coordinates, centre is the mean of its k_rest and radius the largest distance
from it. The bound is one product of a query's `features` with the leaf's `bounds`.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tessera.base.shapes import Float, Int

LEAF = 128
BLOCK = 65_536
COORDINATES = 16


@dataclass(frozen=True)
class Leaves:
    """C leaves of S keys in G blocks, for every head; `C = G * BLOCK / S`.

    Attributes:
        keys: (H, C, S, K). places: (H, C, S), where each key stands in the store; those of a leaf ascend.
        directions: (H, G, K, D), orthonormal columns. bounds: (H, G, 2 D + K + 1, C / G), see the module.
        size: of keys, the largest norm per head (H,).
    """

    keys: Float[Tensor, "H C S K"]
    places: Int[Tensor, "H C S"]
    directions: Float[Tensor, "H G K D"]
    bounds: Float[Tensor, "H G F c"]
    size: Float[Tensor, " H"]

    def __len__(self) -> int:
        return self.places.shape[1] * LEAF

    @classmethod
    def of(cls, keys: Float[Tensor, "H N K"], first: int) -> Self:
        """The leaves of one block of keys, whose first one stands at place `first`. N is a power of two times LEAF."""
        heads, _, width = keys.shape
        finite = keys.isfinite().all(-1, keepdim=True)
        precise = keys.to(working_dtype(keys)).masked_fill(~finite, 0)  # a leaf with others has no bound
        centred = precise - precise.mean(1, keepdim=True)
        directions = torch.linalg.eigh(centred.mT @ centred)[1].flip(-1)[..., : min(COORDINATES, width)]
        coordinates = precise @ directions
        order = _order(coordinates)
        leaf_keys = _take(keys, order).view(heads, -1, LEAF, width)
        inside = _take(coordinates, order).view(heads, -1, LEAF, directions.shape[-1])
        rest = _take(precise, order).view(leaf_keys.shape) - inside @ directions.unsqueeze(1).mT
        centre = rest.mean(2)
        bounded = _take(finite, order).view(heads, -1, LEAF).all(2)
        radius = (rest - centre.unsqueeze(2)).norm(dim=-1).amax(2).masked_fill(~bounded, torch.inf)
        bounds = torch.cat([inside.amax(2), inside.amin(2), centre, radius.unsqueeze(-1)], dim=-1)
        places = (order + first).view(heads, -1, LEAF)
        size = precise.norm(dim=-1).amax(1)
        return cls(leaf_keys, places, directions.unsqueeze(1), bounds.mT.unsqueeze(1).contiguous(), size)

    def of_head(self, head: int) -> Self:
        """The leaves of one head."""
        own = slice(head, head + 1)
        return type(self)(self.keys[own], self.places[own], self.directions[own], self.bounds[own], self.size[own])

    def joined(self, later: Self) -> Self:
        """These leaves and later ones."""
        return type(self)(
            torch.cat([self.keys, later.keys], 1),
            torch.cat([self.places, later.places], 1),
            torch.cat([self.directions, later.directions], 1),
            torch.cat([self.bounds, later.bounds], 1),
            torch.maximum(self.size, later.size),
        )

    def largest_similarities(self, queries: Float[Tensor, "H Q K"]) -> Float[Tensor, "H Q C"]:
        """No key of a leaf is more similar to the query than this, however the two were rounded."""
        inside = queries.unsqueeze(1) @ self.directions  # (H, G, Q, D)
        rest = queries.unsqueeze(1) - inside @ self.directions.mT
        repeated = queries.unsqueeze(1).expand(-1, inside.shape[1], -1, -1)
        features = torch.cat(
            [inside.clamp(min=0), inside.clamp(max=0), repeated, rest.norm(dim=-1, keepdim=True)], dim=-1
        )
        largest = (features @ self.bounds).permute(0, 2, 1, 3).flatten(2)
        epsilon = torch.finfo(queries.dtype).eps
        rounding = 8 * queries.shape[-1] * epsilon * queries.norm(dim=-1) * self.size.unsqueeze(-1)
        return largest + rounding.unsqueeze(-1)


def working_dtype(x: Tensor) -> torch.dtype:
    """Of bounds and scores: half-precision numbers are exact in it."""
    return torch.promote_types(x.dtype, torch.float32)


def _order(coordinates: Float[Tensor, "H N D"]) -> Int[Tensor, "H N"]:
    """The keys leaf by leaf: nodes are halved at the median of the coordinate that varies most in them."""
    heads, count, _ = coordinates.shape
    order = torch.arange(count, device=coordinates.device).expand(heads, -1)
    nodes = 1
    while count // nodes > LEAF:
        within = _take(coordinates, order).view(heads, nodes, count // nodes, -1)
        widest = within.var(2).argmax(-1)[..., None, None].expand(-1, -1, count // nodes, 1)
        sorting = within.gather(-1, widest).squeeze(-1).argsort(dim=-1)
        order = order.view(heads, nodes, -1).gather(-1, sorting).view(heads, count)
        nodes *= 2
    # In the order of their places within a leaf, so that a leaf's first and last place are its ends.
    return order.view(heads, nodes, -1).sort(-1)[0].view(heads, count)


def _take(rows: Tensor, order: Int[Tensor, "H N"]) -> Tensor:
    return rows.gather(1, order.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
