"""Loss of a model on a text, in nats per token and by position in the context, and what follows from it."""

import logging
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tessera.base.arguments import explain_all
from tessera.base.errors import expect
from tessera.base.precision import autocast
from tessera.data.sources import TextSource
from tessera.data.store import open_or_build
from tessera.data.windows import Split, ValidationWindows
from tessera.evaluation.provenance import provenance
from tessera.models.causality import evaluating
from tessera.models.transformer import expect_positions
from tessera.ops.linear_cross_entropy import IGNORED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationText:
    """What a model is evaluated on, and how it is cut.

    source : the documents. held_out : evaluate on this last fraction of their tokens alone (1: on all). part : these
    two in words. context : tokens per sequence. document_ids, begin_token, end_token : see `DataSection` (begin_token
    None: as the tokenizer begins texts). stores : a folder in which its tokens may be stored. checksums : of a run's.
    """

    source: TextSource
    part: str = "all of it"
    held_out: float = 1.0
    context: int = 512
    document_ids: bool = False
    begin_token: bool | None = False
    end_token: bool = True
    stores: Path | None = None
    checksums: list[int] | None = None

    def windows(self, tokenizer: PreTrainedTokenizerFast, limit: int | None, cache: Path) -> ValidationWindows:
        """At most `limit` sequences; tokens are stored in `cache`."""
        special_tokens: dict[str, Any] = {"begin_token": self.begin_token, "end_token": self.end_token}
        split = Split.of(open_or_build(self.source, tokenizer, cache, known=self.stores, **special_tokens))
        if self.held_out < 1:
            split = split.divided(self.held_out)[1]
        return ValidationWindows(split, self.context, limit, self.document_ids)


def evaluate_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    text: EvaluationText,
    *,
    sequences: int | None = None,
    batch_size: int = 8,
    precision: str = "fp32",
) -> dict[str, Any]:
    """All numbers as a JSON-ready record. `loss_by_position[t]` is about tokens with t + 1 tokens before them.

    Args:
        sequences: at most so many, spread evenly over the text; None: all. batch_size: sequences per forward pass.
        precision: auto, bf16 or fp32.
    Raises `TesseraError`: a context beyond the model's positions, a text shorter than one context, or a tokenizer that
        is another model's.
    """
    began = time.time()
    expect_positions(model.config, text.context, "eval", "--context", "Use --context {}.")
    with tempfile.TemporaryDirectory() as cache:
        windows = text.windows(tokenizer, sequences, Path(cache))
        tokens, size = windows.split.store.description, model.config.get_text_config().vocab_size
        needed, advice = f"fit the model (vocab_size {size})", "The folder holds another model's tokenizer."
        expect(tokens.largest_token < size, "eval", "the tokenizer", needed, f"token id {tokens.largest_token}", advice)
        if text.checksums not in (None, tokens.checksums):
            log.warning(f"eval: {text.source.name} has changed since the run began: this may be training text")
        losses = loss_by_position(model, windows, batch_size, context=partial(autocast, precision, model.device.type))
        ratio = windows.tokens_per_byte(tokenizer)
    count, available = len(windows), windows.available
    spread = "" if count == available else f", {count:,} of {available:,} sequences spread over it"
    advice = "Its weights or the text's tokens drive it out of range: evaluate an earlier checkpoint."
    expect(math.isfinite(losses.mean), "eval", "the model's loss", "be finite", losses.mean, advice)
    return {
        "data": text.source.name,
        "part": text.part + spread,
        "context": text.context,
        "sequences": count,
        "tokens": int(losses.count.sum()),
        "loss": losses.mean,
        "perplexity": perplexity(losses.mean),
        "bits_per_byte": bits_per_byte(losses.mean, ratio),
        "loss_by_position": [None if math.isnan(value) else value for value in losses.by_position().tolist()],
        "provenance": provenance(configuration=model.config.to_diff_dict(), wall_seconds=time.time() - began),
    }


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
    batch_size = min(batch_size, count)
    rounds = -(-count // (world_size * batch_size))
    total = torch.zeros(windows[0]["input_ids"].numel() - 1, dtype=torch.float64, device=device)
    seen = torch.zeros_like(total)
    with evaluating(model):
        for turn in range(rounds):
            first = turn * batch_size
            numbers = [rank + world_size * index for index in range(first, first + batch_size)]
            items = [windows[number] for number in numbers if number < count] or [windows[0]]
            inputs = {name: torch.stack([item[name] for item in items]).to(device) for name in items[0]}
            labels = inputs.pop("labels")
            if numbers[0] >= count:
                labels = torch.full_like(labels, IGNORED)
            with context():
                logits = model(**inputs, use_cache=False).logits
            seen += (labels[:, 1:] != IGNORED).sum(0)
            of_batch = torch.zeros_like(total)
            for row, targets in zip(logits, labels):  # one sequence at a time: float32 copies stay small
                nats = cross_entropy(row[:-1].float(), targets[1:], reduction="none", ignore_index=IGNORED)
                of_batch += nats.double()
            total += of_batch
    return LossByPosition(total.cpu(), seen.cpu())


explain_all(globals(), ("perplexity", "bits_per_byte", "loss_by_position"))
