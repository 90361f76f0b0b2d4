"""Every way of naming text finds it, or says what is wrong."""

import gzip
import hashlib
import os
import re
from pathlib import Path

import datasets
import pytest

from tessera.data import sources
from tessera.data.sources import BUNDLED, SOURCES, STORIES, TextSource, story_files, text_files, text_source
from tessera.memory_files.document import document_paths
from tests.refusals import refused


def texts(source):
    return ["".join(document) for document in source.documents()]


def test_validation_books_are_whole_and_never_trained_on():
    training, validation = story_files("train"), story_files("validation")
    assert training
    assert validation
    assert not {path.name for path in training} & {path.name for path in validation}
    assert len(training) + len(validation) == len(list(STORIES.glob("*.txt")))


@pytest.mark.parametrize("name", BUNDLED)
def test_every_bundled_book_is_the_one_whose_origin_is_documented(name):
    readme = (BUNDLED[name] / "README.md").read_text()
    rows = re.findall(r"^\| (\S+\.txt)(?: \(validation\))? .*\| ([0-9a-f]{64}) \|$", readme, re.M)
    hashes = {}
    for path in text_files(name):
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        hashes[path.name.removesuffix(".gz")] = hashlib.sha256(data).hexdigest()
    assert dict(rows) == hashes


def test_bundled_novels_have_a_name_and_no_splits():
    source = text_source("novels")
    assert [file.stem for file in text_files("novels")] == ["great_expectations_1400", "pride_and_prejudice_1342"]
    assert not source.has_splits
    assert "".join(source.pieces()).count("Elizabeth") > 50


def test_files_folders_globs_and_lists(tmp_path):
    for name in ("b", "a"):
        (tmp_path / f"{name}.txt").write_text(name)
    (tmp_path / "other.md").write_text("not text")
    assert texts(text_source(str(tmp_path / "b.txt"))) == ["b"]
    assert texts(text_source(str(tmp_path))) == ["a", "b"]
    assert texts(text_source(str(tmp_path / "*.txt"))) == ["a", "b"]
    assert texts(text_source([str(tmp_path / "b.txt"), str(tmp_path / "a.txt")])) == ["b", "a"]


def test_folders_are_read_with_what_lies_below_and_say_what_is_left_out(tmp_path, heard):
    for name in ("one.txt", "TWO.TXT", "more/three.txt", "more/.hidden.txt", "other.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "four.txt.gz").write_bytes(gzip.compress(b"four"))
    assert texts(text_source(str(tmp_path))) == ["four", "one.txt", "TWO.TXT", "more/three.txt"]
    assert "only its .txt, .text files are read, not other.md" in heard.text
    (tmp_path / "more" / "rows.JSONL").write_text('"row"\n')
    assert texts(text_source(str(tmp_path), format="json_lines")) == ["row"]


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_no_document(tmp_path, content):
    """It was an end token."""
    for name, held in (("a", b"one"), ("b", content), ("c", b"two")):
        (tmp_path / f"{name}.txt").write_bytes(held)
    assert ["".join(pieces) for pieces in text_source(str(tmp_path)).documents()] == ["one", "two"]


def test_signs_of_a_glob_in_names_and_folders_beside_files(tmp_path):
    for name in ("notes [1].txt", "a.txt", "sub.txt/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(text_source(str(tmp_path / "notes [1].txt"))) == ["notes [1].txt"]
    assert texts(text_source(str(tmp_path / "[as]*"))) == ["a.txt"]


@pytest.mark.parametrize("name", ["", "nowhere.txt", "./no/such/*.txt", "data/corpas.jsonl", "data/corpas.JSON.gz"])
def test_text_that_does_not_exist_is_named(name):
    refused(re.escape(repr(name)), text_source, name)


def test_a_format_that_is_none_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('"text"')
    path = str(tmp_path / "a.jsonl")  # it would be text
    refused("format must be text or json_lines; got 'jsonl'", text_source, path, format="jsonl")


@pytest.mark.parametrize("name", ["a.jsonl", "A.NDJSON", "a.json"])
def test_json_lines_are_not_read_as_text(tmp_path, name):
    """Models learned their brackets and keys."""
    (tmp_path / name).write_text('{"text": "one"}\n')
    refused(f"a.*: format must be json_lines for {name}; got text. Or rename it", text_source, str(tmp_path / name))
    (tmp_path / "b.txt").write_text("two")
    refused("format must be json_lines", text_source, [str(tmp_path / "b.txt"), str(tmp_path / name)])
    assert texts(text_source(str(tmp_path / name), format="json_lines")) == ["one"]


def test_identity_changes_with_the_text_and_with_nothing_else_of_the_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = text_source(str(path)).identity
    path.replace(tmp_path / "b.txt")
    os.utime(tmp_path / "b.txt", (0, 0))
    assert text_source(str(tmp_path / "b.txt")).identity == before
    path.write_text("other")
    assert text_source(str(path)).identity != before
    assert text_source(str(path), separator="x").identity != text_source(str(path)).identity


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def failing(path):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "a.txt").write_text("one")
    monkeypatch.setattr(sources, "checksum", failing)
    refused(r"a\.txt: cannot be read \(Permission denied\)\.", text_source, str(tmp_path / "a.txt"))


def test_a_source_of_ones_own_is_known_by_its_name_and_what_it_says_of_its_text(monkeypatch):
    def registered(name, documents, *identity):
        monkeypatch.setitem(SOURCES._entries, name, lambda split: TextSource(name, lambda: iter(documents), identity))
        return text_source(name)

    source = registered("mine", [iter(["ki", "ng"]), "one queen"], 1)
    assert [list(document) for document in source.documents()] == [["king"], ["one", " queen"]]
    assert registered("mine", [], 1).identity == source.identity
    assert registered("mine", [], 2).identity != source.identity
    assert registered("other", [], 1).identity != source.identity
    refused("its name must be none of stories, novels, test_books; got novels", registered, "novels", ["a king"])
    refused("its identity must be of values that JSON has; got .*PosixPath", registered, "mine", [], Path("a.txt"))


def test_a_folder_below_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    """Its texts were left out without a word."""
    for name in ("open", "closed", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text(name)
    listed = os.scandir

    def scandir(path):
        if os.path.basename(os.fspath(path)) in ("closed", ".hidden"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    message = r"closed: cannot be read \(Permission denied\)\.$"
    refused(message, text_source, str(tmp_path))
    refused(message, document_paths, str(tmp_path), "memorize", "FILE")
    for pattern in ("**/*.txt", "*/*.txt", "**/a.txt", "**"):
        refused(message, text_source, str(tmp_path / pattern))
        refused(message, document_paths, str(tmp_path / pattern), "memorize", "FILE")
    assert texts(text_source(str(tmp_path / "op*" / "*.txt"))) == ["open"]
    (tmp_path / "closed").rename(tmp_path / "opened")
    assert texts(text_source(str(tmp_path))) == ["open", "closed"]


def test_a_misspelt_file_is_not_asked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    for name, options in (("texts/corpas", {}), ("corpora/stories", {"format": "json_lines"})):
        refused("no such text file", text_source, name, **options)


@pytest.fixture
def dataset_folder(tmp_path):
    rows = {"story": ["first", "", "second"]}
    saved = datasets.DatasetDict({name: datasets.Dataset.from_dict(rows) for name in ("train", "validation")})
    saved.save_to_disk(tmp_path / "data")
    return f"hf://{tmp_path / 'data'}"


def test_rows_of_a_dataset_are_documents(dataset_folder):
    source = text_source(dataset_folder, "validation", text_column="story")
    assert texts(source) == ["first", "second"]
    assert source.has_splits


def test_a_saved_dataset_without_splits_has_no_validation_split(tmp_path):
    datasets.Dataset.from_dict({"text": ["first", "second"]}).save_to_disk(tmp_path / "data")
    training, validation = (text_source(f"hf://{tmp_path / 'data'}", split) for split in ("train", "validation"))
    assert texts(training) == ["first", "second"]
    assert not training.has_splits, "its end is held out, as of files"
    assert training.identity == validation.identity


def test_data_files_load_as_a_dataset(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    assert texts(text_source(f"hf://{tmp_path}")) == ["one", "two"]


@pytest.mark.parametrize(
    ("rows", "got"), [(["first", "a\0king"], "be without NUL; got one .character 1."), ([1, 2], "be text; got int")]
)
def test_rows_that_are_no_text_are_named(tmp_path, rows, got):
    datasets.Dataset.from_dict({"story": rows}).save_to_disk(tmp_path / "data")
    source = text_source(f"hf://{tmp_path / 'data'}", text_column="story")
    refused(f"story of row {int(rows[0] == 'first')}: the text must {got}", texts, source)


def test_a_missing_column_and_a_missing_split_are_named(dataset_folder):
    refused("no column 'stori'. Did you mean 'story'", text_source, dataset_folder, text_column="stori")
    refused("split 'test' cannot be loaded", text_source, dataset_folder, "test", text_column="story")


@pytest.mark.parametrize("name", ["hf://", "hf:///", "hf://..", "hf:// ", "hf://a b"])
def test_names_that_no_dataset_has_are_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(r"^dataset [^\n]*\Z", text_source, name)
