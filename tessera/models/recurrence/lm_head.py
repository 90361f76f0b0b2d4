"""From last hidden states to logits and to the loss, segment by segment, without a second copy of either."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from transformers import PreTrainedModel

from tessera.layers.plain_linear import is_plain_linear
from tessera.ops.linear_cross_entropy import IGNORED, linear_cross_entropy

# Families whose logits are their output embedding of the last hidden state and nothing else (no cap, no scale).
PLAIN = frozenset({"gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"})
SCALED = frozenset({"memory_mosaic", "memory_mosaic_v2"})  # the same where their `logit_scale` is 1
MANY = 1 << 18  # logits from which a loss without holding them is faster too


def plain_lm_head(base: PreTrainedModel) -> nn.Linear | None:
    """The base's output embedding where its logits are `weight @ last hidden state` and nothing more, else None."""
    head, config = base.get_output_embeddings(), base.config
    is_plain = config.model_type in PLAIN or (config.model_type in SCALED and config.logit_scale == 1.0)
    return head if is_plain and is_plain_linear(head) else None


class LogitsWriter:
    """Collects the logits (B, steps, vocabulary) of a text segment by segment.

    Without gradients they have their final place from the start: logits of a long text are gigabytes, and a second
    copy of them costs more time than the products.
    """

    def __init__(self, steps: int):
        self.steps, self.filled = steps, 0
        self.place: Tensor | None = None
        self.parts: list[Tensor] = []

    def add(self, output: Tensor, head: nn.Linear | None) -> Tensor:
        """Take and return logits (B, n, vocabulary): `output` itself, or with `head` what it makes of `output`."""
        if head is None:
            return self._take(output)
        same = output.dtype == head.weight.dtype and not torch.is_autocast_enabled(output.device.type)
        if not (same and len(output) == 1 and self._in_place(output)):
            return self._take(linear(output, head.weight))
        place = self._next(output, head.out_features)
        torch.mm(output[0], head.weight.T, out=place[0])
        return place

    def value(self) -> Tensor | None:
        """All of them."""
        return torch.cat(self.parts, 1) if self.parts else self.place

    def _take(self, logits: Tensor) -> Tensor:
        if self._in_place(logits):
            return self._next(logits, logits.shape[-1]).copy_(logits)
        self.parts.append(logits)
        return logits

    def _in_place(self, output: Tensor) -> bool:
        return not torch.is_grad_enabled() and output.shape[1] < self.steps

    def _next(self, output: Tensor, vocabulary: int) -> Tensor:
        if self.place is None:
            self.place = output.new_empty(output.shape[0], self.steps, vocabulary)
        start, self.filled = self.filled, self.filled + output.shape[1]
        return self.place[:, start : self.filled]


class ShiftedLoss:
    """Next-token cross entropy with one shift across the whole text: a segment's last token predicts the next's first.

    Args:
        labels: (B, T) token indices; -100 is left out. loss_mask: booleans (B, T) or None: whether position t, which
            predicts label t + 1, counts.
    """

    def __init__(self, labels: Tensor, loss_mask: Tensor | None = None):
        self.targets = shifted_targets(labels, loss_mask)
        # Which positions count for any text, known to the CPU: one look at the labels, not one for each segment.
        self.counted = (self.targets != IGNORED).any(dim=0).cpu()
        self.total: Tensor | float = 0.0
        self.waiting: list[tuple[Tensor, Tensor, nn.Linear]] = []

    def counts(self, start: int, end: int) -> bool:
        """Whether any position of start..end counts."""
        return bool(self.counted[start:end].any())

    def add(self, output: Tensor, start: int, head: nn.Linear | None = None) -> None:
        """Count the positions from `start` on: logits (B, n, vocabulary), or with `head` its input (B, n, hidden)."""
        targets = self.targets[:, start : start + output.shape[1]]
        if head is not None and targets.numel() * head.out_features >= MANY:
            self.waiting.append((output.flatten(0, 1), targets.flatten(), head))
            if not output.requires_grad:  # else the graph holds it anyway, and one gradient of the head is enough
                self._add_waiting()
            return
        logits = output if head is None else linear(output, head.weight)
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


def shifted_targets(labels: Tensor, loss_mask: Tensor | None = None) -> Tensor:
    """The target (B, T) of every position, -100 where it does not count (always at the last one)."""
    targets = torch.full_like(labels, IGNORED)
    targets[:, :-1] = labels[:, 1:]
    return targets if loss_mask is None else targets.masked_fill(~loss_mask.bool(), IGNORED)
