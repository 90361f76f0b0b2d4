"""Text comes out as it went in, in pieces that tokenise as the whole does."""

import bz2
import gzip
import json
import lzma
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.data.text_files import documents_of_file, documents_of_json_lines, safe_pieces, text_of_file
from tessera.data.tokenizers import train_bpe
from tests.refusals import refused

SAMPLE = "The king's daughter said:\r\n\n  'No.'\n\nThen 12 geese\tflew  away \nand\nnever came back, né? "


@pytest.fixture(scope="module")
def tokens_of():
    tokenizer = train_bpe([SAMPLE * 20], 400).backend_tokenizer
    return lambda *texts: [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]


def read(path, **options):
    return [list(document) for document in documents_of_file(path, **options)]


@given(text=st.text(alphabet=" \n\r\tab'1.é", max_size=60), piece=st.integers(1, 9))
def test_pieces_tokenise_as_the_whole(tmp_path_factory, tokens_of, text, piece):
    path = tmp_path_factory.mktemp("text") / "file.txt"
    path.write_bytes(text.encode())
    (pieces,) = read(path, piece_bytes=piece)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    assert "".join(pieces) == text
    assert tokens_of(*pieces) == tokens_of(text)


TABLES = ["   12   345    6.75   -8.1e-03\n", "a\tb\tc\r\n", "  \t 1\t \t2\n\n"]


@pytest.mark.parametrize("text", [SAMPLE, *TABLES])
def test_long_files_are_read_in_many_pieces_that_tokenise_as_the_whole(tmp_path, tokens_of, text):
    (tmp_path / "file.txt").write_text(text * 200, newline="")
    (pieces,) = read(tmp_path / "file.txt", piece_bytes=100)
    assert len(pieces) > 10
    assert max(map(len, pieces)) < 300
    assert tokens_of(*pieces) == tokens_of("".join(pieces))


def test_time_is_linear_in_a_text_without_borders(tmp_path):
    began = time.perf_counter()
    assert sum(map(len, safe_pieces("x" * 4096 for _ in range(4000)))) == 4096 * 4000
    (tmp_path / "file.txt").write_bytes(b"x" * (1 << 24))
    ((document,),) = read(tmp_path / "file.txt", separator="<|end|>", piece_bytes=4096)
    assert len(document) == 1 << 24
    assert time.perf_counter() - began < 10  # in quadratic time these copy 64 GB


@pytest.mark.parametrize("piece", [1, 2, 3, 1000])
def test_marks_of_other_systems_are_no_text(tmp_path, piece):
    content = b"\xef\xbb\xbfone\r\n\r\ntwo\xef\xbb\xbf\rthree\r\n"
    for name, data in (("plain.txt", content), ("packed.txt", gzip.compress(content))):
        (tmp_path / name).write_bytes(data)
        assert "".join(text_of_file(tmp_path / name, piece)) == "one\n\ntwo\ufeff\nthree\n"
        documents = read(tmp_path / name, separator="\r\n\r\n", piece_bytes=piece)
        assert documents == [["one"], ["two\ufeff\nthree"]]
    (tmp_path / "file.jsonl").write_bytes(b'\xef\xbb\xbf"a"\r\n"b"\r\n')
    assert [list(one) for one in documents_of_json_lines(tmp_path / "file.jsonl", "text", piece)] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"%PDF-1.7\n", "this is a PDF; pdftotext makes text of it"),
        (b"PK\x03\x04...", "this is a zip archive, such as docx"),
        ("a king".encode("utf-16"), "this is UTF-16; run iconv -f UTF-16"),
        ("a king".encode("utf-16-le"), "without NUL; byte 1 is NUL, as in UTF-16LE. If it is text, convert it"),
        ("a king".encode("utf-16-be"), "without NUL; byte 0 is NUL, as in UTF-16BE"),
        ("grün".encode("utf-16-le"), "as in UTF-16LE"),  # it has bytes that are no UTF-8, too
        (b"a king" * 200_000 + b"\0", "byte 1200000 is NUL"),  # of a second piece
        (gzip.compress("a king".encode("utf-16-le"), mtime=0), "byte 1 is NUL"),
        ("a king".encode("utf-32"), "this is UTF-32; run iconv -f UTF-32"),
        (bz2.compress(b"a king"), "this is packed by bzip2; bunzip2 unpacks it"),
        (lzma.compress(b"a king"), "this is packed by xz; unxz unpacks it"),
        (b"\x28\xb5\x2f\xfd\x04", "this is packed by zstd; unzstd unpacks it"),
        ("né".encode("latin-1"), "byte 1 is not. Convert it, such as by iconv -f LATIN1"),
        (b"\x89PNG\r\n\x1a\n\0\0", "byte 8 is NUL, as in UTF-16BE. If it is text, convert it"),
        (gzip.compress(b"a king" * 1000, mtime=0)[:-20], "this gzip file is damaged"),
    ],
)
def test_files_that_hold_no_utf8_say_what_would(tmp_path, content, message):
    (tmp_path / "file.txt").write_bytes(content)
    refused(rf"file\.txt: .*{re.escape(message)}", list, text_of_file(tmp_path / "file.txt"))


@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_separators_divide_documents_and_empty_parts_are_none(tmp_path, piece):
    (tmp_path / "file.txt").write_text("one\n<|end|>\ntwo\nlines\n<|end|>\n\n<|end|>three")
    assert read(tmp_path / "file.txt", separator="<|end|>", piece_bytes=piece) == [["one"], ["two\nlines"], ["three"]]


@pytest.mark.parametrize("piece", [1, 4, 1000])
def test_the_byte_that_is_not_utf8_is_named(tmp_path, piece):
    (tmp_path / "file.txt").write_bytes("dé".encode() * 4 + b"\xff more")
    refused(r"file\.txt: text must be UTF-8; byte 12 is not", read, tmp_path / "file.txt", piece_bytes=piece)
    (tmp_path / "file.txt").write_bytes("abcé".encode()[:-1])
    refused("byte 3 is not", read, tmp_path / "file.txt", piece_bytes=piece)


@pytest.mark.parametrize("piece", [3, 1000])
def test_json_lines_hold_texts_or_objects_and_empty_ones_are_no_documents(tmp_path, piece):
    lines = [json.dumps("a\nb"), "", '""', json.dumps({"story": ""}), json.dumps({"story": "c", "id": 1})]
    (tmp_path / "file.jsonl").write_text("\n".join(lines))
    actual = [list(d) for d in documents_of_json_lines(tmp_path / "file.jsonl", "story", piece)]
    assert actual == [["a\nb"], ["c"]]


@pytest.mark.parametrize("line", ["once upon", "[1]", '{"other": "x"}', r'"\ud83d"', "[" * 100_000])
def test_the_json_line_without_text_is_named(tmp_path, line):
    (tmp_path / "file.jsonl").write_text('"fine"\n' + line)
    refused("line 2(: the text)? must be", list, documents_of_json_lines(tmp_path / "file.jsonl", "text"))
