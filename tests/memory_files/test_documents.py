"""Documents: their tokens and bytes, files of other kinds, folders, bundled books."""

import gzip
import random
import re
from pathlib import Path

import pytest

from tessera.data.tokenizers import byte_tokenizer, train_bpe
from tessera.memory_files.document import document_paths, read_document_text
from tests.memory_files.documents import SENTENCES, write_documents
from tests.refusals import refused


@pytest.mark.parametrize("packed", [False, True])
def test_every_token_knows_its_bytes(packed, tmp_path):
    data = "\ufeffÄ king\r\nand  a\rqueen 👑\r\n\r\nlived – in peace.\r\n".encode() * 50
    data += ("x" * 70_000).encode() + "é\r\n".encode() * 9000  # over the borders of pieces
    path = tmp_path / "text.txt"
    path.write_bytes(gzip.compress(data) if packed else data)
    # Packed, the bytes come by another way; what is made of them is the same.
    for tokenizer in (byte_tokenizer(), *([] if packed else [train_bpe([data.decode()[:4000]] * 2, 400)])):
        document = read_document_text(path, tokenizer, "text", "test")
        starts = document.starts().tolist()
        assert (starts[-1], document.size) == (len(data), len(data))
        assert starts == sorted(starts)
        numbers = document.tokens.tolist()
        for index in random.Random(0).sample(range(len(numbers) - 20), 300):
            end = index + random.Random(index).randint(1, 20)
            source = data[starts[index] : starts[end]].decode().removeprefix("\ufeff")
            text = tokenizer.decode(numbers[index:end])
            if "\ufffd" not in text:
                assert text == source.replace("\r\n", "\n").replace("\r", "\n")


def test_pdf_docx_html_and_epub(tmp_path):
    pytest.importorskip("markitdown", reason="an optional package")
    for path in write_documents(tmp_path):
        document = read_document_text(path, byte_tokenizer(), path.name, "test")
        text = bytes(document.tokens.tolist()).decode()
        assert all(sentence in text for sentence in SENTENCES), (path.name, text)
        assert document.size == len(text)
        damaged = tmp_path / f"damaged{path.suffix}"
        damaged.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
        if path.suffix != ".html":
            message = rf"damaged.*: cannot be read as {path.suffix[1:]} \((?!File conv).+\)\.$"
            refused(message, read_document_text, damaged, byte_tokenizer(), "damaged", "test")


@pytest.mark.parametrize("installed", [True, False])
def test_documents_of_a_folder(tmp_path, monkeypatch, capsys, installed):
    """Markdown always; what must be converted only where its package is there, else a warning names it."""
    monkeypatch.setattr("tessera.memory_files.document.find_spec", lambda name: name if installed else None)
    for name in ("a.txt", "b.md", "c.HTML", "d.pdf", "e.png"):
        (tmp_path / name).write_text("Kings")
    names = ["a.txt", "b.md", *(["c.HTML", "d.pdf"] if installed else [])]
    assert [path.name for path in document_paths(str(tmp_path), "ask", "--text")] == names
    warned = capsys.readouterr().err
    assert ("not e.png" if installed else "not c.HTML, d.pdf, e.png") in warned
    needed = 'c.HTML needs the package markitdown, which is not installed: pip install "tessera[documents]"'
    assert (needed in warned) != installed
    for name in ("a.txt", "b.md"):
        (tmp_path / name).unlink()
    if not installed:
        refused(f"holds no text file; {re.escape(needed)}", document_paths, str(tmp_path), "ask", "--text")


def test_an_empty_name_is_not_the_present_folder(tmp_path, monkeypatch):
    """As a shell's variable that is not set: files of the present folder were named as a reason."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.html").write_text("<p>a king</p>")
    refused("memorize: FILE must name a text; got ''", document_paths, "", "memorize", "FILE")


def test_every_bundled_book_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("the_grey_fairy_book_6746.txt", "pride_and_prejudice_1342.txt", "dracula_345.txt.gz"):
        [path] = document_paths(name, "ask", "--text")
        assert path.is_file()
        assert path.name == name
    Path("dracula_345.txt.gz").write_text("one's own")
    assert document_paths("dracula_345.txt.gz", "ask", "--text") == [Path("dracula_345.txt.gz")]


def test_packed_documents_are_refused(tmp_path):
    """Their markup would be read as text."""
    path = tmp_path / "a.html.gz"
    path.write_bytes(gzip.compress(b"<p>Kings</p>"))
    refused("a.html.gz: must be unpacked first", read_document_text, path, byte_tokenizer(), "a", "test")
