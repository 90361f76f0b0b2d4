"""Loss of a model on a text: nats per token, perplexity, bits per byte, and loss by position in the context."""

import math
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.base.errors import expect
from tessera.base.precision import autocast
from tessera.data.sources import TextSource
from tessera.data.store import open_or_build
from tessera.data.windows import Split, ValidationWindows
from tessera.evaluation.loss import bits_per_byte, loss_by_position, perplexity
from tessera.evaluation.provenance import provenance
from tessera.models.transformer import context_limit

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class EvaluationText:
    """What a model is evaluated on, and how it is cut.

    source : the documents. held_out : evaluate on this last fraction of their tokens alone (1: on all). part : these
    two in words, such as "validation split". context : tokens per sequence. document_ids, begin_token, end_token : see
    `DataSection`.
    """

    source: TextSource
    part: str = "all of it"
    held_out: float = 1.0
    context: int = 512
    document_ids: bool = False
    begin_token: bool = False
    end_token: bool = True

    def windows(self, tokenizer: "PreTrainedTokenizerFast", limit: int | None, cache: Path) -> ValidationWindows:
        """At most `limit` sequences; the tokens are stored in `cache`."""
        special_tokens = {"begin_token": self.begin_token, "end_token": self.end_token}
        split = Split.of(open_or_build(self.source, tokenizer, cache, **special_tokens))
        if self.held_out < 1:
            split = split.divided(self.held_out)[1]
        return ValidationWindows(split, self.context, limit, self.document_ids)


def evaluate_text(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
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
    Raises:
        TesseraError: a context beyond the model's positions, a text shorter than one context, or a tokenizer that is
            another model's.
    """
    began = time.time()
    longest = context_limit(model.config)
    has_room, advice = longest is None or text.context <= longest, f"Use --context {longest}."
    needed = f"be at most {longest}, the positions that this {model.config.model_type} has learned"
    expect(has_room, "eval", "--context", needed, text.context, advice)
    with tempfile.TemporaryDirectory() as cache:
        windows = text.windows(tokenizer, sequences, Path(cache))
        _require_same_vocabulary(model, windows.split)
        surroundings = partial(autocast, precision, model.device.type)
        losses = loss_by_position(model, windows, batch_size, context=surroundings)
        ratio = windows.tokens_per_byte(tokenizer)
    advice = "Its weights or the text's tokens drive it out of range: evaluate an earlier checkpoint."
    expect(math.isfinite(losses.mean), "eval", "the model's loss", "be finite", losses.mean, advice)
    return {
        "data": text.source.name,
        "part": text.part + _share(windows),
        "context": text.context,
        "sequences": len(windows),
        "tokens": int(losses.count.sum()),
        "loss": losses.mean,
        "perplexity": perplexity(losses.mean),
        "bits_per_byte": bits_per_byte(losses.mean, ratio),
        "loss_by_position": [None if math.isnan(value) else value for value in losses.by_position().tolist()],
        "provenance": provenance(configuration=model.config.to_diff_dict(), wall_seconds=time.time() - began),
    }


def _share(windows: ValidationWindows) -> str:
    """What to say of a text that is not read to its end."""
    available = windows.available
    return "" if len(windows) == available else f", {len(windows):,} of {available:,} sequences spread over it"


def _require_same_vocabulary(model: "PreTrainedModel", split: Split) -> None:
    largest, size = split.store.description.largest_token, model.config.get_text_config().vocab_size
    needed, advice = f"fit the model (vocab_size {size})", "The folder holds another model's tokenizer."
    expect(largest < size, "eval", "the tokenizer", needed, f"token id {largest}", advice)
