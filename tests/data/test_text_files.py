"""Text comes out as it went in, in pieces that tokenise as the whole does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.base.errors import TesseraError
from tessera.data.text_files import documents_of_file, documents_of_json_lines
from tessera.data.tokenizers import train_bpe

SAMPLE = "The king's daughter said:\r\n\n  'No.'\n\nThen 12 geese\tflew  away \nand\nnever came back, né? "


@pytest.fixture(scope="module")
def tokenizer():
    return train_bpe([SAMPLE * 20], 400).backend_tokenizer


def read(path, **options):
    return [list(document) for document in documents_of_file(path, **options)]


@given(text=st.text(alphabet=" \n\r\tab'1.é", max_size=60), piece=st.integers(1, 9))
def test_pieces_tokenise_as_the_whole(tmp_path_factory, tokenizer, text, piece):
    path = tmp_path_factory.mktemp("text") / "file.txt"
    path.write_bytes(text.encode())
    (pieces,) = read(path, piece_bytes=piece)
    assert "".join(pieces) == text
    ids = [token for part in pieces for token in tokenizer.encode(part, add_special_tokens=False).ids]
    assert ids == tokenizer.encode(text, add_special_tokens=False).ids


def test_a_long_file_is_read_in_many_pieces(tmp_path):
    (tmp_path / "file.txt").write_text(SAMPLE * 50)
    (pieces,) = read(tmp_path / "file.txt", piece_bytes=100)
    assert len(pieces) > 20
    assert max(map(len, pieces)) < 300


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_separators_divide_documents_and_empty_parts_are_none(tmp_path, piece):
    (tmp_path / "file.txt").write_text("one\n<|end|>\ntwo\nlines\n<|end|>\n\n<|end|>three")
    assert read(tmp_path / "file.txt", separator="<|end|>", piece_bytes=piece) == [["one"], ["two\nlines"], ["three"]]


@pytest.mark.parametrize("piece", [1, 4, 1000])
def test_the_byte_that_is_not_utf8_is_named(tmp_path, piece):
    (tmp_path / "file.txt").write_bytes("dé".encode() * 4 + b"\xff more")
    with pytest.raises(TesseraError, match=r"file\.txt: text must be UTF-8; byte 12 is not"):
        read(tmp_path / "file.txt", piece_bytes=piece)


def test_text_that_ends_inside_a_character_is_refused(tmp_path):
    (tmp_path / "file.txt").write_bytes("abcé".encode()[:-1])
    with pytest.raises(TesseraError, match="byte 3 is not"):
        read(tmp_path / "file.txt")


@pytest.mark.parametrize("piece", [3, 1000])
def test_json_lines_hold_texts_or_objects(tmp_path, piece):
    lines = [json.dumps("a\nb"), "", json.dumps({"story": "c", "id": 1})]
    (tmp_path / "file.jsonl").write_text("\n".join(lines))
    actual = [list(d) for d in documents_of_json_lines(tmp_path / "file.jsonl", "story", piece)]
    assert actual == [["a\nb"], ["c"]]


@pytest.mark.parametrize("line", ["once upon", "[1]", '{"other": "x"}'])
def test_the_json_line_without_text_is_named(tmp_path, line):
    (tmp_path / "file.jsonl").write_text('"fine"\n' + line)
    with pytest.raises(TesseraError, match="line 2 must be"):
        list(documents_of_json_lines(tmp_path / "file.jsonl", "text"))
