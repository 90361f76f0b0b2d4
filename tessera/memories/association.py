"""The associative memory of one ARMT layer: an association matrix with its learned keys, values and strengths."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tessera.base.errors import expect
from tessera.base.shapes import Bool, Float
from tessera.base.state import State
from tessera.layers.dpfp import dpfp, dpfp_size
from tessera.ops.association_matrix import read_association, write_association
from tessera.ops.association_matrix.reference import divisor

TEMPERATURE = 2 / 3  # of the hard concrete gate's noise


@dataclass(frozen=True)
class AssociationState(State):
    """What one layer's memory holds. `matrix`: A (B, P, V). `normaliser`: z (B, P). `empty`: booleans (B,)."""

    matrix: Float[Tensor, "B P V"]
    normaliser: Float[Tensor, "B P"]
    empty: Bool[Tensor, " B"]


class WriteStrength(nn.Module):
    """`b = sigmoid(W_b m)` (ARMT, section 2); with a `stretch` s > 0 `b = clip((1 + 2 s) sigmoid(W_b m) - s, 0, 1)`.

    A stretched strength can be exactly 0 (the hard concrete gate of Louizos et al. 2018, s = 0.1, without its noise).
    With a `threshold`, strengths below it are 0 too. The gradient is the sigmoid's, so that a closed gate can open
    again.
    """

    def __init__(self, stretch: float = 0.0, threshold: float = 0.0):
        super().__init__()
        self.stretch, self.threshold = stretch, threshold

    @property
    def can_close(self) -> bool:
        """Whether a strength can be exactly 0."""
        return bool(self.stretch or self.threshold)

    def forward(self, scores: Float[Tensor, "B M 1"]) -> Float[Tensor, "B M"]:
        """The strengths of `scores` = W_b m."""
        strength = torch.sigmoid(scores).squeeze(-1)
        if not self.can_close:
            return strength
        stretched = ((1 + 2 * self.stretch) * strength - self.stretch).clamp(0, 1)
        written = stretched.masked_fill(stretched < self.threshold, 0.0)
        return strength + (written - strength).detach()

    def opening(self, scores: Float[Tensor, "B M 1"]) -> Float[Tensor, "B M"]:
        """How probable it is that a hard concrete gate of these scores, with its noise and no threshold, is not 0.

        `sigmoid(score + 2/3 log((1 + s) / s))`: what Louizos et al. (2018) charge for, at their temperature of 2/3.
        Its gradient is largest where the gate is nearly closed (at s = 0.1 where the strength is 0.1), 0.56 of that at
        a strength of 0.5, and a fifth of the strength's gradient at an open gate: as a cost it presses mainly on gates
        that are nearly closed. Needs a stretch s > 0.
        """
        expect(self.stretch > 0, "WriteStrength", "stretch", "be positive for a probability to open", self.stretch)
        return torch.sigmoid(scores.squeeze(-1) + TEMPERATURE * math.log((1 + self.stretch) / self.stretch))


class AssociationMemory(nn.Module):
    """Reads with `q = W_Q x`, writes with `k = W_K m`, `v = W_V m`, `b = sigmoid(W_b m)` (ARMT, section 2).

    The features are DPFP-nu of width `2 nu memory_dim`. W_V starts at 0, so that a wrapped model starts as itself.

    Args:
        hidden_size: width of the layer, V. memory_dim: width of queries and keys before the feature map.
        num_rolls: nu. correction: gamma-correction of the normaliser. update_order: `order` of `write_association`.
        epsilon: of the divisions. strength_stretch, strength_threshold: see `WriteStrength`; a token of strength 0
            leaves A as it is, and with gate_normalizer z too. A query that matches hardly any of the keys in z is then
            divided by nearly 0, and its gradient explodes over segments: no default.
    """

    def __init__(
        self,
        hidden_size: int,
        memory_dim: int,
        num_rolls: int = 3,
        correction: bool = True,
        update_order: str = "parallel",
        epsilon: float = 1e-5,
        strength_stretch: float = 0.0,
        strength_threshold: float = 0.0,
        gate_normalizer: bool = False,
    ):
        super().__init__()
        self.query = nn.Linear(hidden_size, memory_dim, bias=False)
        self.key = nn.Linear(hidden_size, memory_dim, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)
        self.strength = nn.Linear(hidden_size, 1)
        self.gate = WriteStrength(strength_stretch, strength_threshold)
        self.num_rolls, self.correction = num_rolls, correction
        self.update_order, self.epsilon = update_order, epsilon
        self.gate_normalizer = gate_normalizer
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """PyTorch's default for queries, keys and strengths; values 0."""
        for layer in (self.query, self.key, self.strength):
            layer.reset_parameters()
        nn.init.zeros_(self.value.weight)

    @property
    def _closed_writes_nothing(self) -> bool:
        return self.gate_normalizer and self.gate.can_close

    @property
    def num_features(self) -> int:
        """P, the number of rows of the association matrix."""
        return dpfp_size(self.query.out_features, self.num_rolls)

    def empty_state(self, batch: int) -> AssociationState:
        """A memory into which nothing was written, on the device and in the dtype of the parameters."""
        weight = self.value.weight
        if not isinstance(weight, Tensor):  # dynamically quantised layers give theirs when they are called
            weight = weight().dequantize()
        matrix = weight.new_zeros(batch, self.num_features, self.value.out_features)
        empty = torch.ones(batch, dtype=torch.bool, device=weight.device)
        return AssociationState(matrix, weight.new_zeros(batch, self.num_features), empty)

    def forward(self, hidden: Float[Tensor, "B T V"], state: AssociationState) -> Float[Tensor, "B T V"]:
        """What reading the memory adds to `hidden` (B, T, V); exactly 0 while it is empty.

        A state of fewer rows is shared: each of its rows answers B / rows consecutive rows of `hidden`, read as one
        text, so that neither A nor its gradient is copied for each.
        """
        query = dpfp(self.query(hidden), self.num_rolls)
        rows = state.matrix.shape[0]
        normaliser = divisor(state.normaliser, state.empty) if self._closed_writes_nothing else state.normaliser
        if rows == hidden.shape[0]:
            return read_association(state.matrix, normaliser, query, eps=self.epsilon)
        groups = query.unflatten(0, (rows, -1))
        answers = read_association(state.matrix, normaliser, groups.flatten(1, 2), eps=self.epsilon)
        return answers.unflatten(1, groups.shape[1:3]).flatten(0, 1)

    def write(
        self, tokens: Float[Tensor, "B M V"], state: AssociationState, openings: "Openings | None" = None
    ) -> AssociationState:
        """The state after the memory tokens' outputs `tokens` (B, M, V) were written; `openings` counts them."""
        key, value = dpfp(self.key(tokens), self.num_rolls), self.value(tokens)
        scores = self.strength(tokens)
        strength, gated = self.gate(scores), self._closed_writes_nothing
        if openings is not None:
            openings.add(self.gate.opening(scores))
        matrix, normaliser = write_association(
            state.matrix,
            state.normaliser,
            key,
            value,
            strength,
            state.empty,
            correction=self.correction,
            order=self.update_order,
            eps=self.epsilon,
            gate_normaliser=gated,
        )
        empty = state.empty & (strength == 0).all(1) if gated else torch.zeros_like(state.empty)
        return AssociationState(matrix, normaliser, empty)


class Openings:
    """The mean of `WriteStrength.opening` over many writes, and what it costs.

    Made while gradients are recorded, it counts only writes with a gradient: of the others nothing can be learned.
    """

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self.count = 0
        self.needs_gradient = torch.is_grad_enabled()

    def add(self, opening: Float[Tensor, "B M"]) -> None:
        """Count every memory token of a write."""
        if opening.requires_grad or not self.needs_gradient:
            self.total = self.total + opening.float().sum()
            self.count += opening.numel()

    def charge(self, cost: float) -> Tensor | None:
        """`cost` times the mean; None where nothing counts."""
        return torch.as_tensor(cost * self.total / self.count) if self.count else None
