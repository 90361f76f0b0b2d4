"""Tokenizers: bytes, byte-level BPE trained on the corpus, GPT-2's, or any saved one.

All are `PreTrainedTokenizerFast`, so `save_pretrained`, `AutoTokenizer` and pipelines work on what a run leaves behind.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tessera.base.arguments import explain_all
from tessera.base.dataclass_io import Problems, broken, option
from tessera.base.errors import TesseraError, did_you_mean, expect_text, first_line
from tessera.data.encoding import num_ids
from tessera.data.pretrained_tokenizers import pretrained_tokenizer

BEGIN, END = "<|beginoftext|>", "<|endoftext|>"
GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
GPT2_VOCABULARY = 50257
GPT2_ON_HUB = "openai-community/gpt2"
TOKENIZER_TYPES = ("byte", "bpe", "gpt2", "pretrained")


BLANK, BYTE_TOKEN = "\u2581", re.compile(r"<0x[0-9A-F]{2}>")  # of SentencePiece
BYTE_BLANK = "\u0120"  # of byte-level vocabularies
MOST_TOKENS = 10_000_000  # the trainer reserves memory for all of them


@dataclass(frozen=True)
class TokenizerSpec:
    """Which tokenizer a recipe wants."""

    type: str = option(
        "byte",
        "byte (256 bytes and two special tokens), bpe (trained on the text), gpt2 (from `path`, or from the hub) or "
        "pretrained (from `path`)",
    )
    vocab_size: int | None = option(None, "number of tokens of bpe, at least 258")
    path: str | None = option(
        None,
        "of gpt2: a folder with vocab.json and merges.txt, or encoder.json and vocab.bpe, or a hub name; of "
        "pretrained: a folder, a tokenizer.json file, or a hub name",
    )

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule this specification breaks."""
        is_bpe, size = self.type == "bpe", self.vocab_size
        bounds = f"lie in [258 (256 bytes, 2 special tokens), {MOST_TOKENS:,}] for type bpe"
        takes_path = self.type not in ("byte", "bpe")
        problems = broken(
            self,
            (not is_bpe or (size is not None and 258 <= size <= MOST_TOKENS), "vocab_size", bounds),
            (is_bpe or size is None, "vocab_size", f"be left out for type {self.type}"),
            (takes_path or not self.path, "path", f"be left out for type {self.type}"),
        )
        if self.type not in TOKENIZER_TYPES:
            guess = did_you_mean(str(self.type), TOKENIZER_TYPES)
            problems.append(("type", f"must be one of the known types; got {self.type!r}. {guess}"))
        if self.type == "pretrained" and not self.path:
            problems.append(("path", "must name a folder, a tokenizer.json file or a hub model; got nothing."))
        return problems


def build_tokenizer(spec: TokenizerSpec, texts: Iterable[str] = ()) -> "PreTrainedTokenizerFast":
    """The tokenizer `spec` names; `texts` is the corpus that type "bpe" is trained on.

    Raises `TesseraError` when files are missing or unreadable, or when the corpus is empty.
    """
    _expect_possible(spec)
    if spec.type == "byte":
        return byte_tokenizer()
    if spec.type == "bpe":
        return train_bpe(texts, vocabulary_size(spec))
    if spec.type == "gpt2" and spec.path and Path(spec.path).is_dir():
        return gpt2_tokenizer(Path(spec.path))
    return pretrained_tokenizer(spec.path or GPT2_ON_HUB)


def _expect_possible(spec: TokenizerSpec) -> None:
    for name, problem in spec.problems():
        raise TesseraError(f"tokenizer: {name} {problem}")


def vocabulary_size(spec: TokenizerSpec) -> int:
    """Number of token ids, known without the corpus, of what `build_tokenizer` yields."""
    if spec.type == "bpe":
        assert spec.vocab_size is not None, "TokenizerSpec.problems asks for it"
        return spec.vocab_size
    if spec.type == "gpt2" and not spec.path:
        return GPT2_VOCABULARY
    return num_ids(build_tokenizer(spec))


def token_bytes(tokenizer: "PreTrainedTokenizerFast") -> list[bytes] | None:
    """The bytes of text that each id stands for, b"" without a token; None where tokens do not say them (WordPiece)."""
    decoder = str(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"])
    texts = [token or "" for token in tokenizer.convert_ids_to_tokens(list(range(num_ids(tokenizer))))]
    if "'ByteLevel'" in decoder:
        values = {character: byte for byte, character in enumerate(_byte_characters())}
        known = [bytes(values[character] for character in text if character in values) for text in texts]
    elif BLANK in decoder:
        known = [
            bytes([int(text[3:5], 16)]) if BYTE_TOKEN.fullmatch(text) else text.replace(BLANK, " ").encode()
            for text in texts
        ]
    else:
        return None
    for token, added in tokenizer.added_tokens_decoder.items():
        known[token] = added.content.encode()
    return known


def token_sizes(tokenizer: "PreTrainedTokenizerFast") -> np.ndarray | None:
    """How many these bytes are; 0 for special tokens, which are no text."""
    known = token_bytes(tokenizer)
    if known is None:
        return None
    sizes = np.array([len(text) for text in known])
    sizes[[token for token, added in tokenizer.added_tokens_decoder.items() if added.special]] = 0
    return sizes


def byte_tokenizer() -> "PreTrainedTokenizerFast":
    """One token per byte: ids 0..255 are the bytes themselves, then begin-of-text and end-of-text."""
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = _byte_level(models.BPE(vocab=vocabulary, merges=[]), use_regex=False)
    tokenizer.add_special_tokens([_special(BEGIN), _special(END)])
    return _wrap(tokenizer, BEGIN)


def train_bpe(texts: Iterable[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    """Byte-level BPE with GPT-2's splitting rule, trained on `texts`; the same texts give the same tokenizer."""
    _expect_possible(TokenizerSpec("bpe", vocab_size))
    tokenizer = _byte_level(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_special(BEGIN), _special(END)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    count = 0

    def counted() -> Iterable[str]:
        nonlocal count
        for text in texts:
            expect_text(text, "tokenizer")
            count += len(text)
            yield text

    tokenizer.train_from_iterator(counted(), trainer)
    if not count:
        raise TesseraError("tokenizer: the corpus that type bpe is trained on must contain text; got none.")
    return _wrap(tokenizer, BEGIN)


def gpt2_tokenizer(folder: Path) -> "PreTrainedTokenizerFast":
    """GPT-2's tokenizer from its two local files; `<|endoftext|>` begins and ends texts, as in GPT-2."""
    for vocabulary, merges in GPT2_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            try:
                model = models.BPE.from_file(str(folder / vocabulary), str(folder / merges))
            except Exception as error:  # the package raises bare Exception
                raise TesseraError(
                    f"tokenizer: {folder} holds no readable GPT-2 tokenizer ({first_line(error)})."
                ) from None
            tokenizer = _byte_level(model)
            tokenizer.add_special_tokens([_special(END)])
            return _wrap(tokenizer, END)
    raise TesseraError(
        f"tokenizer: {folder} must hold {' and '.join(GPT2_FILES[0])}, or {' and '.join(GPT2_FILES[1])}."
    )


def _byte_level(model: models.BPE, use_regex: bool = True) -> Tokenizer:
    """With GPT-2's splitting rule, unless `use_regex` is false."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrap(tokenizer: Tokenizer, begin: str) -> "PreTrainedTokenizerFast":
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        eos_token=END,
        pad_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def _special(token: str) -> AddedToken:
    return AddedToken(token, special=True, normalized=False)


def _byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies, in order of the bytes.

    GPT-2's table: printable Latin-1 bytes stand for themselves, the others for the code points from 256 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (256 + index for index in range(256))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


explain_all(
    globals(), ("build_tokenizer", "vocabulary_size", "token_bytes", "token_sizes", "train_bpe", "gpt2_tokenizer")
)
