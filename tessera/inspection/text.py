"""The beginning of a text file in a model's tokens, and what each token shows of the text."""

import codecs
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.errors import TesseraError
from tessera.data.encoding import PIECE, token_stream
from tessera.data.text_files import text_of_file
from tessera.data.tokenizers import token_bytes
from tessera.models.transformer import context_limit

UNFINISHED = "\u00b7"  # for a token in whose place a character has begun, and does not end


class TokenTexts:
    """What tokens show: characters, where those of several bytes may be cut by tokens. Without a tokenizer, numbers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.tokenizer = tokenizer
        self._bytes = None if getattr(tokenizer, "backend_tokenizer", None) is None else token_bytes(tokenizer)

    def of_text(self, tokens: Sequence[int], unfinished: str = "") -> tuple[str, ...]:
        """Of each token of a text; together they are the text, but for the mark of `unfinished` characters.

        A character stands where it ends.
        """
        if self._bytes is None:  # words, between which decoding may set spaces
            pairs = pairwise(tokens)
            return (*map(self._alone, tokens[:1]), *(self._behind(before, token) for before, token in pairs))
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        texts = []
        for index, token in enumerate(tokens):
            text = _shown(decoder.decode(self._of(token), index + 1 == len(tokens)))
            texts.append(text + unfinished * bool(decoder.getstate()[0]))
        return tuple(texts)

    def of_words(self, tokens: Iterable[int]) -> dict[int, str]:
        """Of tokens that stand alone; bytes that are no characters are shown by their numbers."""
        return {token: self._alone(token) for token in tokens}

    def _alone(self, token: int) -> str:
        if self._bytes is not None:
            return _shown(self._of(token).decode("utf-8", "surrogateescape"))
        return str(token) if self.tokenizer is None else self.tokenizer.decode([token])

    def _behind(self, before: int, token: int) -> str:
        if self.tokenizer is None:
            return str(token)
        first, both = self.tokenizer.decode([before]), self.tokenizer.decode([before, token])
        return both.removeprefix(first) if both.startswith(first) else self._alone(token)

    def _of(self, token: int) -> bytes:
        assert self._bytes is not None
        return self._bytes[token] if token < len(self._bytes) else b""  # a model may have more rows than tokens


def _shown(text: str) -> str:
    """Bytes that are no characters as \u2039E5\u203a."""
    if text.isascii():
        return text
    is_byte = ("\udc80" <= letter <= "\udcff" for letter in text)
    return "".join(f"\u2039{ord(x) - 0xDC00:02X}\u203a" if known else x for x, known in zip(text, is_byte))


def read_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, count: int) -> Tensor:
    """The first `count` tokens (1, T) of the text in `path`, fewer where it ends.

    Raises `TesseraError`: no such file, not UTF-8, fewer than two tokens, or more than the model has positions for.
    """
    ids = list(islice(token_stream(text_of_file(path, PIECE), tokenizer, str(path)), count))
    if len(ids) < 2:
        raise TesseraError(f"{path}: must hold at least two tokens; got {len(ids)}.")
    longest = context_limit(model.config)
    if longest is not None and len(ids) > longest:
        raise TesseraError(f"inspect: --tokens must be at most {longest}, the model's positions; got {len(ids)}.")
    return torch.tensor([ids])
