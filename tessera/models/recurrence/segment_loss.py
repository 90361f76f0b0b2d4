"""The loss of a text, added up segment by segment without holding its logits."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from tessera.base.errors import expect
from tessera.layers.linear import is_plain_linear
from tessera.models.loss_per_item import divisor, loss_per_item, summed_loss
from tessera.models.recurrence.segmented_input import Span, columns, scattered
from tessera.ops.linear_cross_entropy import IGNORED, linear_cross_entropy

# Families whose logits are their output embedding of the last hidden state and nothing else (no cap, no scale).
PLAIN = frozenset({"gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"})
SCALED = frozenset({"memory_mosaic", "memory_mosaic_v2", "linear_attention"})  # the same where their `logit_scale` is 1
MANY = 1 << 18  # logits from which a loss without holding them is faster too


def balancing_weight(base: PreTrainedModel) -> float:
    """What the base multiplies its balancing loss with (mixtures of experts), 0 where it has none.

    Raises `TesseraError`: a base that computes one without saying how much it counts.
    """
    config = base.config.get_text_config()
    if not getattr(config, "output_router_logits", False):
        return 0.0
    names = ("router_aux_loss_coef", "aux_loss_coef")
    weights = [getattr(holder, name) for holder in (base, config) for name in names if hasattr(holder, name)]
    expect(bool(weights), type(base).__name__, "output_router_logits", "be False without router_aux_loss_coef", True)
    return float(weights[0])


def plain_lm_head(base: PreTrainedModel) -> nn.Linear | None:
    """The base's output embedding where its logits are `weight @ last hidden state` and nothing more, else None."""
    head, config = base.get_output_embeddings(), base.config
    is_plain = config.model_type in PLAIN or (config.model_type in SCALED and config.logit_scale == 1.0)
    return head if is_plain and is_plain_linear(head) else None


class _CountAsUsed(torch.autograd.Function):
    """The first argument; the others are reached by its backward pass, and get no gradient from it."""

    @staticmethod
    def forward(ctx: Any, result: Tensor, *parameters: Tensor) -> Tensor:
        """A copy: a view must not be changed in place."""
        ctx.count = len(parameters)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """None is not 0: an optimizer leaves a parameter without a gradient alone."""
        return gradient, *[None] * ctx.count


def counted_as_used(result: Tensor, parameters: Iterable[Tensor]) -> Tensor:
    """`result`; where several processes train, its backward pass also reaches `parameters`, and adds no gradient.

    DistributedDataParallel waits until a backward pass has reached every parameter. Those of a memory have no part in
    a text of one segment, or of which no written segment has gradients.
    """
    is_shared = torch.is_grad_enabled() and dist.is_available() and dist.is_initialized()
    return _CountAsUsed.apply(result, *parameters) if is_shared else result


class SegmentLoss:
    """Next-token cross entropy across the whole text: a segment's last token predicts the next's first.

    Args:
        targets: of every position (B, T), see `shifted_targets`. num_labels: see `loss_per_item`.
        balancing: weight of the base's own balancing loss, of which the mean over all segments is added.
    """

    def __init__(self, targets: Tensor, num_labels: Tensor, balancing: float = 0.0):
        self.targets, self.num_labels = targets, num_labels
        # Which positions count, known to the CPU: one look at the labels, not one for each segment.
        counted = (self.targets != IGNORED).cpu()
        # Where none does, all are read: the loss is of the weights even then, so that a trainer can go backward.
        self.counted = counted if counted.any() else torch.ones_like(counted)
        self.total: Tensor | float = 0.0
        self.num_counted: Tensor | int = 0  # padding behind a row's last segment is never read, whatever a mask says
        self.balancing, self.tokens = balancing, 0
        self.balance: Tensor | float = 0.0
        self.waiting: list[tuple[Tensor, Tensor, nn.Linear]] = []

    def counts(self, span: Span) -> bool:
        """Whether any position of a span counts."""
        return bool(columns(self.counted, span).any())

    def add(self, output: Tensor, span: Span, head: nn.Linear | None = None) -> None:
        """Count a span of which `output` is the logits (b, n, vocabulary), or with `head` its input (b, n, hidden)."""
        targets = self._targets(span)
        self.num_counted = self.num_counted + (targets != IGNORED).sum()
        if head is not None and targets.numel() * len(head.weight) >= MANY:
            self.waiting.append((output.flatten(0, 1), targets.flatten(), head))
            if not output.requires_grad:  # else the graph holds it anyway, and one gradient of the head is enough
                self._add_waiting()
            return
        logits = output if head is None else linear(output, head.weight)
        self.total = self.total + summed_loss(logits, targets)

    def add_balance(self, balance: Tensor, span: Span) -> None:
        """Count the base's balancing loss of a span."""
        self.balance = self.balance + balance * sum(span.lengths)
        self.tokens += sum(span.lengths)

    def _targets(self, span: Span) -> Tensor:
        if span.is_all:
            return columns(self.targets, span)
        places, sources = (index.to(self.targets.device) for index in scattered(span, 0, self.targets.shape[1]))
        targets = self.targets.new_full((len(span.rows) * span.steps,), IGNORED)
        return targets.index_copy(0, places, self.targets.flatten()[sources]).view(-1, span.steps)

    def _add_waiting(self) -> None:
        if self.waiting:
            hidden, targets, heads = zip(*self.waiting)
            self.waiting = []
            self.total = self.total + linear_cross_entropy(torch.cat(hidden), heads[0].weight, torch.cat(targets))

    def value(self, num_items: Tensor | int | None = None) -> Tensor:
        """The sum divided by `num_items` (see `loss_per_item`), else by the number of positions that were counted."""
        self._add_waiting()
        total = torch.as_tensor(self.total, device=self.targets.device)
        num_counted = torch.as_tensor(self.num_counted, device=self.targets.device)
        loss = loss_per_item(total, num_counted, self.num_labels, num_items)
        if not self.tokens:
            return loss
        mean = torch.as_tensor(self.balancing * self.balance / self.tokens)
        return loss + (mean if num_items is None else mean * self.num_labels / divisor(self.num_labels, num_items))


def shifted_targets(
    labels: Tensor, loss_mask: Tensor | None = None, real: Tensor | None = None, are_shifted: bool = False
) -> Tensor:
    """The target (B, T) of every position, -100 where it does not count (at the last one unless `are_shifted`).

    Args:
        labels: (B, T) token indices; -100 is left out. loss_mask: booleans (B, T), whether position t, which predicts
            label t + 1, counts; None: all do but padding, which neither predicts nor is predicted. real: booleans
            (B, T), what is no padding, or None. are_shifted: label t is the target of position t itself.
    """
    targets = labels.clone() if are_shifted else torch.full_like(labels, IGNORED)
    if not are_shifted:
        targets[:, :-1] = labels[:, 1:]
    if loss_mask is None and real is not None:
        loss_mask = real & torch.cat([real[:, 1:], real[:, -1:]], 1)
    return targets if loss_mask is None else targets.masked_fill(~loss_mask.bool(), IGNORED)
