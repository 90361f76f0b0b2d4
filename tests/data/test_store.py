"""A store holds exactly the tokens of its text, is reused while that is true, and is never half a store."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from tessera.data.sources import text_source
from tessera.data.store import open_or_build
from tessera.data.tokenizers import byte_tokenizer, train_bpe
from tests.refusals import refused

TOKENIZER = byte_tokenizer()
BEGIN, END = TOKENIZER.bos_token_id, TOKENIZER.eos_token_id


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.txt").write_text("Abé")
    (tmp_path / "b.txt").write_text("cd")
    return text_source(str(tmp_path / "*.txt"))


def build(text, tmp_path, **options):
    return open_or_build(text, TOKENIZER, tmp_path / "stores", **options)


def test_a_store_holds_the_tokens_the_borders_and_the_counts(text, tmp_path):
    store = build(text, tmp_path, begin_token=True, end_token=True)
    expected = [BEGIN, *"Abé".encode(), END, BEGIN, *b"cd", END]
    assert store.tokens.tolist() == expected
    assert store.document_starts.tolist() == [0, 6]
    assert store.document_ids(4, 8).tolist() == [0, 0, 1, 1]
    assert (store.description.num_bytes, store.description.num_documents) == (6, 2)
    assert store.description.largest_token == END


def test_pieces_of_one_document_have_no_border_between_them(tmp_path):
    source = replace(text_source("stories"), documents=lambda: iter([iter(["ab ", "cd"])]))
    store = build(source, tmp_path, begin_token=True)
    assert store.tokens.tolist() == [BEGIN, *b"ab cd", END]
    assert store.description.num_documents == 1


def test_a_whole_store_is_not_built_again(text, tmp_path):
    build(text, tmp_path)
    unreadable = replace(text, documents=lambda: pytest.fail("the text was read again"))
    assert build(unreadable, tmp_path).tokens.tolist() == build(text, tmp_path).tokens.tolist()


def test_another_text_tokenizer_or_option_makes_another_store(text, tmp_path):
    first, written = build(text, tmp_path), (tmp_path / "b.txt").stat()
    (tmp_path / "b.txt").write_text("ef")
    os.utime(tmp_path / "b.txt", ns=(written.st_atime_ns, written.st_mtime_ns))
    changed = build(text_source(str(tmp_path / "*.txt")), tmp_path)
    assert changed.tokens.tolist()[-3:] == [*b"ef", END]
    others = [first, changed, build(text, tmp_path, end_token=False)]
    others.append(open_or_build(text, train_bpe(["ab"], 259), tmp_path / "stores"))
    assert len({store.folder for store in others}) == 4


def test_another_end_token_of_one_vocabulary_makes_another_store(text, tmp_path):
    """tokenizer.json does not say which token ends a text: the first model's store was taken for the second's."""
    other = byte_tokenizer()
    other.eos_token = other.bos_token
    stores = [open_or_build(text, tokenizer, tmp_path / "stores") for tokenizer in (TOKENIZER, other)]
    assert [int(store.tokens[-1]) for store in stores] == [END, BEGIN]


def test_few_tokens_may_have_large_ids(text, tmp_path):
    words = Tokenizer(models.WordLevel({"cd": 99999, "<unk>": 0}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    store = open_or_build(text, tokenizer, tmp_path / "stores", end_token=False)
    assert store.tokens.tolist() == [0, 99999]


def test_what_a_dead_process_left_is_cleaned_up(text, tmp_path):
    build(text, tmp_path)
    (tmp_path / "stores" / "tokens-0123.999.tmp").mkdir()
    (tmp_path / "b.txt").write_text("changed")
    build(text_source(str(tmp_path / "*.txt")), tmp_path)
    assert not list((tmp_path / "stores").glob("*.tmp"))


def flipped(content):
    return bytes([content[0] ^ 4]) + content[1:]


def of_another_text(content):
    return json.dumps({**json.loads(content), "fingerprint": "x"}).encode()


def without_checksums(content):
    return json.dumps({key: value for key, value in json.loads(content).items() if key != "checksums"}).encode()


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, lambda content: content[:-2]) for name in ("tokens.bin", "documents.bin", "store.json")),
        *((name, flipped) for name in ("tokens.bin", "documents.bin")),
        *(("store.json", damage) for damage in (of_another_text, without_checksums)),
    ],
)
def test_a_damaged_store_is_built_again(text, tmp_path, name, damage, heard):
    store = build(text, tmp_path)
    expected = store.tokens.tolist(), store.description
    (store.folder / name).write_bytes(damage((store.folder / name).read_bytes()))
    again = build(text, tmp_path)
    assert (again.tokens.tolist(), again.description) == expected
    assert damage is not flipped or "its tokens were changed; it is made again" in heard.text


def test_a_build_that_fails_leaves_nothing(text, tmp_path):
    def broken():
        yield iter(["some text"])
        raise RuntimeError("the disk went away")

    with pytest.raises(RuntimeError):
        build(replace(text, documents=broken), tmp_path)
    assert not (tmp_path / "stores").exists()
    assert build(text, tmp_path).description.num_documents == 2


def test_an_empty_corpus_is_refused_and_named(tmp_path):
    (tmp_path / "empty.txt").write_text("")
    source = text_source(str(tmp_path / "empty.txt"))
    refused(r"empty\.txt: must contain text; got an empty corpus", build, source, tmp_path)
    assert not (tmp_path / "stores").exists()


def test_a_folder_that_cannot_be_written_is_named(text, tmp_path):
    (tmp_path / "stores").write_text("a file, not a folder")
    refused("cannot be written", build, text, tmp_path)


def test_large_vocabularies_are_stored_in_four_bytes(text, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([f"<{number}>" for number in range(1 << 16)])
    (tmp_path / "c.txt").write_text("<65535>")
    store = open_or_build(text_source(str(tmp_path / "c.txt")), tokenizer, tmp_path / "stores")
    assert store.tokens.dtype == np.dtype("<u4")
    assert int(store.tokens[0]) == 258 + 65535


def test_a_missing_end_token_is_refused(text, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    refused("end_token must be false", open_or_build, text, tokenizer, tmp_path / "stores")
