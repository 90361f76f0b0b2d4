"""Tokens of a text that comes in pieces: those of the whole text."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tessera.base.errors import TesseraError
from tessera.data.text_files import safe_pieces

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PIECE = 1 << 16  # bytes of a text that are read before their tokens are asked for
CONTEXT = 32  # characters that are tokenized again in front of each piece


def encoded_pieces(pieces: Iterable[str], tokenizer: "PreTrainedTokenizerFast") -> Iterator[list[int]]:
    """Token ids of each of `safe_pieces`; together they are those of the whole text, without tokens around it.

    Each piece is tokenized behind the end of the one before: some tokenizers (Llama's, T5's) begin every text that they
    are given with a blank of their own.
    """
    encode = tokenizer.backend_tokenizer.encode
    before = ""
    for piece in pieces:
        encoding = encode(before + piece, add_special_tokens=False)
        first = _first_token(encoding, len(before), len(before) + len(piece)) if before else 0
        yield encoding.ids[first:]
        before = (before + piece)[-CONTEXT:]


def token_stream(
    texts: Iterable[str], tokenizer: "PreTrainedTokenizerFast", where: str = "memorize: FILE"
) -> Iterator[int]:
    """Tokens of a text that comes in pieces, those of the whole text.

    Raises:
        TesseraError: when the first token is asked for and there is none.
    """
    tokens = (token for ids in encoded_pieces(safe_pieces(texts), tokenizer) for token in ids)
    first = next(tokens, None)
    if first is None:
        raise TesseraError(f"{where} must hold text; got an empty one.")
    yield first
    yield from tokens


def _first_token(encoding, begin: int, end: int) -> int:
    """The number of the first token that stands for a character from `begin` on; all of them, if none does."""
    numbers = (encoding.char_to_token(place) for place in range(begin, end))
    return next((number for number in numbers if number is not None), len(encoding.ids))
