"""Sequences of one context length cut from a token store: shuffled for training, in order for validation."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tessera.base.errors import TesseraError
from tessera.data.encoding import uncut
from tessera.data.store import TokenStore
from tessera.data.tokenizers import BLANK, BYTE_BLANK, token_sizes
from tessera.ops.linear_cross_entropy import IGNORED

ROUNDS = 4


def shuffled(place: int, count: int, seed: int, epoch: int = 0) -> int:
    """What stands at `place` in the permutation of range(count) that `seed` and `epoch` choose.

    A Feistel network over the smallest even number of bits that holds `count`, walked until it lands inside (Black
    and Rogaway, "Ciphers with arbitrary finite domains", 2002): a bijection, O(1) memory, at most four rounds times
    four walks on average. A training run is therefore resumed from its step number alone.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = place >> half, place & mask
        for round_ in range(ROUNDS):
            key = f"{seed}/{epoch}/{round_}/{right}".encode()
            noise = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
            left, right = right, left ^ (noise & mask)
        place = (left << half) | right
        if place < count:
            return place


@dataclass(frozen=True)
class Split:
    """The part `tokens[start:stop]` of a store."""

    store: TokenStore
    start: int
    stop: int

    @classmethod
    def of(cls, store: TokenStore) -> "Split":
        """All of a store."""
        return cls(store, 0, store.description.num_tokens)

    def divided(self, fraction: float) -> tuple["Split", "Split"]:
        """(everything but the last `fraction`, the last `fraction`) of this part."""
        border = self.stop - max(1, round((self.stop - self.start) * fraction))
        return Split(self.store, self.start, border), Split(self.store, border, self.stop)

    @property
    def tokens_per_byte(self) -> float:
        """Tokens per byte of text over the whole store, what turns nats per token into bits per byte."""
        return self.store.description.num_tokens / self.store.description.num_bytes

    def require(self, context: int, what: str) -> None:
        """Raise `TesseraError` unless one context fits."""
        if self.stop - self.start < context:
            raise TesseraError(
                f"data: {what} must hold at least one context of {context} tokens; got {self.stop - self.start} tokens."
                " Use more text or a smaller context (data.context of a recipe, --context of eval)."
            )

    def window(self, start: int, context: int, document_ids: bool = False) -> dict[str, Tensor]:
        """Model inputs for `context` tokens from absolute index `start`.

        `labels` equal `input_ids` (the model shifts them). With `document_ids` (T,), numbered from 0 in the window, the
        first token of a document has label -100: no earlier document predicts it.
        """
        tokens = torch.from_numpy(self.store.tokens[start : start + context].astype(np.int64))
        if not document_ids:
            return {"input_ids": tokens, "labels": tokens}
        numbers = torch.from_numpy(self.store.document_ids(start, start + context))
        labels = tokens.clone()
        labels[1:][numbers[1:] != numbers[:-1]] = IGNORED
        return {"input_ids": tokens, "labels": labels, "document_ids": numbers - numbers[0]}


class TrainingWindows:
    """The training sequences of a run, without end, in the order in which they are used.

    Item i depends on (seed, i) and the text alone: not on the model, the number of processes or what was read before.
    Each pass over the text starts at another random offset below two contexts and visits its windows in another order,
    each once; less than two contexts at the ends are left out.
    """

    def __init__(self, split: Split, context: int, seed: int, document_ids: bool = False) -> None:
        split.require(context, "the training text")
        self.split, self.context, self.seed, self.document_ids = split, context, seed, document_ids
        self.per_epoch = max(1, (split.stop - split.start) // context - 1)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        epoch, place = divmod(index, self.per_epoch)
        slack = self.split.stop - self.split.start - self.per_epoch * self.context
        offset = shuffled(0, slack + 1, self.seed, epoch)
        number = shuffled(place, self.per_epoch, self.seed, epoch)
        return self.split.window(self.split.start + offset + number * self.context, self.context, self.document_ids)


class ValidationWindows:
    """At most `limit` windows, without overlap, spread evenly over the text; the same for every model and call."""

    def __init__(self, split: Split, context: int, limit: int | None = None, document_ids: bool = False) -> None:
        split.require(context, "the validation text")
        self.split, self.context, self.document_ids = split, context, document_ids
        self.available = (split.stop - split.start) // context
        self.count = min(self.available, limit or self.available)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return self.split.window(self._start(index), self.context, self.document_ids)

    def _start(self, index: int) -> int:
        return self.split.start + index * self.available // self.count * self.context

    def tokens_per_byte(self, tokenizer: PreTrainedTokenizerFast) -> float:
        """Tokens that are predicted per byte of text that they stand for: what turns nats into bits per byte.

        Of the whole text for tokenizers whose tokens do not say their bytes, or say those of a text that they have
        changed, and where a token stands for unknown text.
        """
        sizes, description = token_sizes(tokenizer), self.split.store.description
        # With `document_ids` nothing predicts begin tokens.
        has_begin_tokens = self.document_ids and int(self.split.store.tokens[0]) == tokenizer.bos_token_id
        whole = self.split.tokens_per_byte * (1 - has_begin_tokens * description.num_documents / description.num_tokens)
        if sizes is None:
            return whole
        # Llama's, T5's and others begin every text that they are given with a blank that it does not have.
        begins_with = "".join(uncut(tokenizer).encode("a", add_special_tokens=False).tokens)[:1]
        blank = begins_with in (BLANK, BYTE_BLANK)
        # T5's and others make several blanks one, or a ligature two letters.
        counts = self.split.store.token_counts
        said = int(counts @ sizes[: len(counts)]) - blank * description.num_documents
        if abs(said - description.num_bytes) > description.num_bytes / 1000:  # special tokens in a text count none
            return whole
        # GPT-2's is its end token, and stands for no text.
        unknown = {tokenizer.unk_token_id} - {None, tokenizer.eos_token_id, tokenizer.bos_token_id}
        num_tokens = num_bytes = 0
        for index in range(len(self)):
            window, start = self[index], self._start(index)
            tokens, labels = window["input_ids"].numpy(), window["labels"].numpy()
            predicted = np.append(False, labels[1:] != IGNORED)
            if not unknown.isdisjoint(tokens[predicted]):
                return whole
            begins = np.diff(self.split.store.document_ids(start - 1, start + self.context)) > 0
            begins[1:] |= begins[:-1] & (sizes[tokens[:-1]] == 0)  # behind a begin token
            num_tokens += int(predicted.sum())
            num_bytes += int(sizes[tokens[predicted]].sum())
            num_bytes -= blank * int(np.count_nonzero(sizes[tokens[begins & predicted]]))
        return num_tokens / max(1, num_bytes)


def stacked(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """A batch of windows: each entry (B, T)."""
    return {name: torch.stack([item[name] for item in items]) for name in items[0]}
