"""Tokens show the text that they stand for, in every script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from tessera.data.tokenizers import byte_tokenizer, train_bpe
from tessera.inspection.text import UNFINISHED, TokenTexts
from tessera.papers.babilong.task import BABILong
from tessera.training.staged_data import task_tokenizer
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)

TEXT = "国王说：你好，世界！👩‍👩‍👧 שלום Zoë. "


def llama_tokenizer():
    """As Llama's: words begin with a mark, and bytes stand for characters that the vocabulary does not have."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abkingdquenZoë", "an", "▁an"]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "n"), ("▁", "an")], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def known():
    return {"byte": byte_tokenizer(), "bpe": train_bpe(["a king and a queen. " * 20], 300), "llama": llama_tokenizer()}


@pytest.mark.parametrize("name", ["byte", "bpe", "llama"])
@given(text=st.one_of(st.just(TEXT), st.text(alphabet="ab 国é👩\u200dש\n", max_size=20)))
def test_together_they_are_the_text(known, name, text):
    tokenizer = known[name]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert "".join(TokenTexts(tokenizer).of_text(ids)) == text
    marked = TokenTexts(tokenizer).of_text(ids, UNFINISHED)
    assert "".join(marked).replace(UNFINISHED, "") == text
    assert all(marked), "every token can be seen"


def test_bytes_that_are_no_characters_are_shown_by_their_numbers(known):
    texts = TokenTexts(known["byte"])
    king = list("国".encode())
    shown = (UNFINISHED, UNFINISHED, "‹E5›‹9B›a", UNFINISHED, UNFINISHED, "国", "‹E5›")
    assert texts.of_text([*king[:2], 97, *king, king[0]], UNFINISHED) == shown
    assert texts.of_words([97, 0xE5, 257, 5000]) == {97: "a", 0xE5: "‹E5›", 257: "<|endoftext|>", 5000: ""}
    assert TokenTexts(None).of_text([5, 6]) == ("5", "6")


@pytest.mark.usefixtures("short_books")
def test_words_have_the_spaces_of_their_text():
    """Tokens of a task's own words say no space; together they are what the tokenizer decodes."""
    tokenizer = task_tokenizer(BABILong())
    ids = tokenizer("Mary went to the kitchen. John")["input_ids"]
    shown = TokenTexts(tokenizer).of_text(ids)
    assert "".join(shown) == tokenizer.decode(ids)
    assert shown[:2] == ("mary", " went")
    assert TokenTexts(tokenizer).of_text([]) == ()
