"""A memory is stored while texts are read into it: a reading that is killed or stopped keeps what it has read."""

import os
import shlex
import signal
from pathlib import Path

import pytest

from tessera.base.errors import TesseraError
from tessera.cli.main import main
from tessera.data.tokenizers import byte_tokenizer
from tessera.memory_files import Memory, storing
from tessera.memory_files.storing import MemoryWriter, StoredBesideError
from tests.memory_files import models
from tests.memory_files.texts import TEXTS
from tests.reliability.faults import in_child

NAMES = ["a.txt", "b.txt", "c.txt"]
KINDS = ["v1", "armt", "llama"]  # pairs, a state behind each document, a cache that holds all of them


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    """The folder of a model."""
    folder = tmp_path_factory.mktemp("model")
    models.make(request.param).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def command(model, tmp_path):
    """Words that read a folder of three texts."""
    (tmp_path / "my texts").mkdir()
    for name, text in zip(NAMES, TEXTS.values()):
        (tmp_path / "my texts" / name).write_text(text)
    return ["memorize", str(model), str(tmp_path / "my texts"), "--out", str(tmp_path / "memory")]


@pytest.fixture
def expected(command, tmp_path):
    """The file of a run that nothing stops."""
    assert main([*command[:-1], str(tmp_path / "expected")]) == 0
    return (tmp_path / "expected").read_bytes()


def at_the_third_text(strike):
    """For `in_child`: store behind each document, and call `strike()` before the third is read."""
    read, seen = Memory.read, []

    def struck(memory, *arguments, **options):
        seen.append(arguments)
        if len(seen) == 3:
            strike()
        return read(memory, *arguments, **options)

    def prepare():
        storing.READING_PER_STORING = 0
        Memory.read = struck

    return prepare


def status_of(words):
    """The exit status of a command, also after a signal."""
    try:
        return main(words)
    except SystemExit as end:
        return end.code


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_keeps_what_it_has_read_and_goes_on(command, expected, tmp_path, number, capsys):
    kill = at_the_third_text(lambda: os.kill(os.getpid(), number))
    status, said = in_child(lambda: status_of(command), kill)
    assert status == (-number if number == signal.SIGKILL else 128 + number), said
    assert said.count("\n") == said.count("Go on: ") == (number == signal.SIGTERM)
    assert Memory().load(tmp_path / "memory").names == NAMES[:2]
    assert not list(tmp_path.rglob("*.tmp"))
    assert main(command) == 2  # the same command is told what to do
    assert "--append to go on behind what it holds, or --overwrite" in capsys.readouterr().err
    assert main([*command, "--append"]) == 0
    assert (tmp_path / "memory").read_bytes() == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_was_read_is_stored_when_the_reading_is_stopped(command, expected, tmp_path, error, monkeypatch, capsys):
    """Whatever stops it, and however little was read: two texts of a few bytes are not stored on the way."""

    def stop():
        raise error

    monkeypatch.setattr(Memory, "read", Memory.read)  # undone behind the test
    monkeypatch.setattr(storing, "READING_PER_STORING", storing.READING_PER_STORING)
    at_the_third_text(stop)()
    storing.READING_PER_STORING = 20
    capsys.readouterr()
    assert main(command) == (130 if error is KeyboardInterrupt else 2)
    monkeypatch.undo()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (1 if error is KeyboardInterrupt else 2), lines
    assert lines[0].startswith(f"memorize: stopped; {tmp_path / 'memory'} holds ")
    assert Memory().load(tmp_path / "memory").names == NAMES[:2]
    words = shlex.split(lines[0].partition("Go on: ")[2])
    assert words == ["tessera", *command, "--append"]
    assert main(words[1:]) == 0
    assert (tmp_path / "memory").read_bytes() == expected


def test_a_run_that_is_stopped_before_it_has_read_a_text_stores_nothing(command, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Memory, "read", stop)
    assert main(command) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not (tmp_path / "memory").exists()


def test_a_storing_that_fails_ends_the_run_at_once(command, tmp_path, monkeypatch, capsys):
    """Hours of reading would be lost at its end; what was stored stays."""
    read, save, texts, files = Memory.read, Memory.save, [], []

    def counted(memory, *arguments, **options):
        texts.append(arguments)
        return read(memory, *arguments, **options)

    def fails_at_the_second(memory, path, *arguments):
        files.append(path)
        if len(files) > 1:
            raise TesseraError(f"{path}: cannot be written (No space left on device).")
        return save(memory, path, *arguments)

    monkeypatch.setattr(storing, "READING_PER_STORING", 0)
    monkeypatch.setattr(Memory, "read", counted)
    monkeypatch.setattr(Memory, "save", fails_at_the_second)
    assert main(command) == 2
    assert (len(texts), len(files)) == (2, 2)
    assert "cannot be written" in capsys.readouterr().err
    assert Memory().load(tmp_path / "memory").names == NAMES[:1]


class SlowMemory:
    """Takes a second to read a document, and for each that it holds 10 ms to store them."""

    def __init__(self) -> None:
        self.clock, self.storing, self.names = 0.0, 0.0, []
        self.marks: dict[str, tuple[int, ...]] = {}

    def read(self) -> None:
        self.clock += 1
        self.names = [*self.names, str(len(self.names))]

    def save(self, path: Path, mark: object) -> None:
        self.storing += 0.01 * len(self.names)
        self.clock += 0.01 * len(self.names)
        self.marks[str(path)] = ()


def test_storing_takes_a_small_share_of_the_time(monkeypatch):
    memory, longest = SlowMemory(), 0
    monkeypatch.setattr(storing.time, "monotonic", lambda: memory.clock)
    writer = MemoryWriter(memory, Path("memory"), None, is_stored=False)
    for _ in range(1000):
        memory.read()
        writer.after_document()
        longest = max(longest, len(memory.names) - len(writer.stored))
    writer.finish()
    assert writer.stored == memory.names
    assert 0.03 < memory.storing / memory.clock < 0.1  # 0.01 of it is the last one's
    assert longest < 1000 / 4, "as many documents would be lost"


def test_a_file_of_another_process_is_left_and_the_run_goes_on_beside_it(tmp_path):
    file, model = tmp_path / "memory", models.make("v1")
    writer = MemoryWriter(Memory(model, byte_tokenizer()), file, None, is_stored=False)
    Memory(model, byte_tokenizer()).read("a king", "first").save(file)
    for name, text in TEXTS.items():
        writer.memory.read(text, name)
        writer.store()
    with pytest.raises(StoredBesideError, match="This memory is in .*memory-2"):
        writer.finish()
    assert Memory().load(file).names == ["first"]
    assert Memory().load(tmp_path / "memory-2").names == list(TEXTS)
    assert not (tmp_path / "memory-3").exists()
