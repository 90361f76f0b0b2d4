"""Loss in nats per token, by position in the context, and what follows from it."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tessera.base.arguments import explain_all
from tessera.models.causality import evaluating
from tessera.ops.linear_cross_entropy import IGNORED


class Windows(Protocol):
    """A map-style dataset whose length is known: each item has `input_ids` and `labels`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True)
class LossByPosition:
    """Sums over evaluated sequences; entry t is about predicting a token from the t + 1 tokens before it.

    total (T - 1,) float64: nats. count (T - 1,) float64: tokens.
    """

    total: Tensor
    count: Tensor

    @property
    def mean(self) -> float:
        """Nats per token over all positions."""
        return float(self.total.sum() / self.count.sum())

    def by_position(self) -> Tensor:
        """Nats per token at each position (T - 1,); NaN where nothing was predicted."""
        return self.total / self.count


def perplexity(nats_per_token: float) -> float:
    """exp(loss); infinite where that overflows."""
    return math.exp(nats_per_token) if nats_per_token < 700 else math.inf


def bits_per_byte(nats_per_token: float, tokens_per_byte: float) -> float:
    """loss / ln 2 times tokens per byte of text: comparable between tokenizers.

    >>> round(bits_per_byte(math.log(256), 1.0), 6)
    8.0
    """
    return nats_per_token / math.log(2) * tokens_per_byte


@torch.no_grad()
def loss_by_position(
    model: nn.Module,
    windows: Windows,
    batch_size: int,
    *,
    context: Callable[[], AbstractContextManager] = nullcontext,
    rank: int = 0,
    world_size: int = 1,
) -> LossByPosition:
    """Loss of a causal language model on every window of `windows` (`input_ids` and `labels`, each (T,)).

    The model is put into evaluation mode and back; no random number is drawn. With several processes each takes every
    `world_size`-th window, all call the model equally often, and the caller adds up the results. `context()` surrounds
    each forward pass (autocast). Memory: the logits of one batch.
    """
    device = next(model.parameters()).device
    count = len(windows)
    rounds = -(-count // (world_size * batch_size))
    length = windows[0]["input_ids"].numel()
    total = torch.zeros(length - 1, dtype=torch.float64, device=device)
    seen = torch.zeros_like(total)
    with evaluating(model):
        for turn in range(rounds):
            first = turn * batch_size
            numbers = [rank + world_size * place for place in range(first, first + batch_size)]
            items = [windows[number] for number in numbers if number < count] or [windows[0]]
            inputs = {name: torch.stack([item[name] for item in items]).to(device) for name in items[0]}
            labels = inputs.pop("labels")
            if numbers[0] >= count:
                labels = torch.full_like(labels, IGNORED)
            with context():
                logits = model(**inputs, use_cache=False).logits
            loss, counted = _losses(logits, labels)
            total += loss
            seen += counted
    return LossByPosition(total.cpu(), seen.cpu())


def _losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss and number of predictions at each position, one sequence at a time to keep float32 copies small."""
    total = torch.zeros(labels.shape[1] - 1, dtype=torch.float64, device=labels.device)
    for row, targets in zip(logits, labels):
        loss = cross_entropy(row[:-1].float(), targets[1:], reduction="none", ignore_index=IGNORED)
        total += loss.double()
    return total, (labels[:, 1:] != IGNORED).sum(0).double()


explain_all(globals(), ("perplexity", "bits_per_byte", "loss_by_position"))
