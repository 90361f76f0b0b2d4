"""Tokens of a text that comes in pieces: those of the whole text."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from tessera.base.beginnings import opening_tokens
from tessera.base.errors import TesseraError
from tessera.data.text_files import safe_pieces

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PIECE = 1 << 16  # bytes of a text that are read before their tokens are asked for
CONTEXT = 32  # characters that are tokenized again in front of each piece


def uncut(tokenizer: "PreTrainedTokenizerFast") -> "Tokenizer":
    """Its tokenizer of the tokenizers library, which neither cuts nor pads a text from now on.

    A tokenizer.json may say that it does, and the last call of `tokenizer` may have (`truncation=True`). Each call of
    `tokenizer` sets both anew.
    """
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer.backend_tokenizer


def num_ids(tokenizer: "Tokenizer | PreTrainedTokenizerBase") -> int:
    """1 + its largest token id: more than it has tokens where some ids have none."""
    return 1 + max(tokenizer.get_vocab().values(), default=-1)


def encoded_pieces(pieces: Iterable[str], tokenizer: "PreTrainedTokenizerFast") -> Iterator[tuple[str, list[int]]]:
    """Each of `safe_pieces`, and its token ids; together these are those of the whole text, without tokens around it.

    Each piece is tokenized behind the end of the one before: some tokenizers (Llama's, T5's) begin every text that they
    are given with a blank of their own.
    """
    for piece, encoding, first, _ in _encodings(pieces, tokenizer):
        yield piece, encoding.ids[first:]


def located_tokens(
    pieces: Iterable[tuple[str, np.ndarray]], tokenizer: "PreTrainedTokenizerFast"
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Token ids of a text, at which byte of its source each begins, and where they end; a part at a time.

    `pieces` are texts with the bytes of each character (see `located_text_of_file`). A token that begins inside a
    character has the place of the character.
    """
    sizes: list[np.ndarray] = []

    def texts() -> Iterator[str]:
        for text, bytes_of in pieces:
            sizes.append(bytes_of)
            yield text

    position = 0
    for piece, encoding, first, skipped in _encodings(safe_pieces(texts()), tokenizer):
        known = np.concatenate(sizes)
        sizes[:] = [known[len(piece) :]]
        places = position + np.concatenate([[0], known[: len(piece)].cumsum(dtype=np.int64)])
        begins = np.array([begin for begin, _ in encoding.offsets[first:]], dtype=np.int64) - skipped
        position = int(places[-1])
        yield np.array(encoding.ids[first:], dtype=np.int32), places[begins.clip(0, len(piece))], position


def _encodings(
    pieces: Iterable[str], tokenizer: "PreTrainedTokenizerFast"
) -> Iterator[tuple[str, "Encoding", int, int]]:
    """Each piece, what it became behind the end of the one before, its first own token, and the length of that end."""
    before = ""
    for piece in pieces:
        encoding = uncut(tokenizer).encode(before + piece, add_special_tokens=False)
        numbers = map(encoding.char_to_token, range(len(before), len(before) + len(piece)))
        first = next((number for number in numbers if number is not None), len(encoding.ids)) if before else 0
        yield piece, encoding, first, len(before)
        before = (before + piece)[-CONTEXT:]


def token_stream(
    texts: Iterable[str], tokenizer: "PreTrainedTokenizerFast", where: str = "memorize: FILE", begins: bool = True
) -> Iterator[int]:
    """Tokens of a text that comes in pieces, those of the whole text; `begins`: with what the tokenizer begins it.

    Raises `TesseraError`: when the first token is asked for and there is none.
    """
    tokens = (token for _, ids in encoded_pieces(safe_pieces(texts), tokenizer) for token in ids)
    first = next(tokens, None)
    if first is None:
        raise TesseraError(f"{where} must hold text; got an empty one.")
    yield from opening_tokens(tokenizer) if begins else []
    yield first
    yield from tokens
