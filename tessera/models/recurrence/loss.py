"""Next-token cross entropy over a text that is read in pieces, with one shift across the whole text."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from tessera.errors import expect
from tessera.ops.linear_cross_entropy import linear_cross_entropy

IGNORED = -100
MANY = 1 << 18  # logits from which a loss without holding them is faster too


class ShiftedLoss:
    """Collects the loss piece by piece: the last token of a segment predicts the first of the next.

    Args:
        labels: (B, T) token indices; -100 is left out. labels_mask: booleans (B, T) or None: whether position t, which
            predicts label t + 1, counts.
    """

    def __init__(self, labels: Tensor, labels_mask: Tensor | None = None):
        self.targets = shifted_targets(labels, labels_mask)
        # Which positions count for any text, known to the CPU: one look at the labels, not one for each segment.
        self.counted = (self.targets != IGNORED).any(dim=0).cpu()
        self.total: Tensor | float = 0.0
        self.waiting: list[tuple[Tensor, Tensor, nn.Linear]] = []

    def wants(self, start: int, end: int) -> bool:
        """Whether any position of start..end counts."""
        return bool(self.counted[start:end].any())

    def add(self, given: Tensor, start: int, head: nn.Linear | None = None) -> None:
        """Count the positions from `start` on: logits (B, n, vocabulary), or what `head` reads (B, n, width)."""
        targets = self.targets[:, start : start + given.shape[1]]
        if head is not None and targets.numel() * head.out_features >= MANY:
            self.waiting.append((given.flatten(0, 1), targets.flatten(), head))
            if not given.requires_grad:  # else the graph holds it anyway, and one gradient of the read-out is enough
                self._add_waiting()
            return
        logits = given if head is None else linear(given, head.weight)
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        self.total = self.total + cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )

    def _add_waiting(self) -> None:
        if self.waiting:
            hidden, targets, heads = zip(*self.waiting)
            self.waiting = []
            self.total = self.total + linear_cross_entropy(torch.cat(hidden), heads[0].weight, torch.cat(targets))

    def value(self, num_items: Tensor | int | None = None) -> Tensor:
        """The sum divided by `num_items` (gradient accumulation), else by the number of counted positions."""
        self._add_waiting()
        count = (self.targets != IGNORED).sum() if num_items is None else num_items
        return torch.as_tensor(self.total, device=self.targets.device) / count


def shifted_targets(labels: Tensor, labels_mask: Tensor | None = None) -> Tensor:
    """The target (B, T) of every position, -100 where it does not count (always at the last one)."""
    targets = torch.full_like(labels, IGNORED)
    targets[:, :-1] = labels[:, 1:]
    if labels_mask is not None:
        shape = tuple(labels.shape)
        expect(labels_mask.shape == labels.shape, "forward", "labels_mask", f"be {shape}", tuple(labels_mask.shape))
        targets = targets.masked_fill(~labels_mask.bool(), IGNORED)
    return targets
