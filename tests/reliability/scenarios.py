"""The commands that are killed or meet a full disk, what is there before, and what must hold after."""

import io
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tessera.base.checkpoints import latest_complete
from tessera.cli.main import main
from tessera.interop import smollm2
from tessera.memory_files import Memory
from tessera.models.saving.loading import load_model, load_tokenizer
from tests.reliability.conftest import Workshop
from tests.reliability.faults import in_child
from tests.training.processes import same_weights

NOTES = "a person's file in the run's folder\n"


@dataclass(frozen=True)
class Scenario:
    """A command in a folder of its own; what is there before, and what must hold after the fault and at the end.

    `typed`: its standard input.
    """

    words: tuple[str, ...]
    again: tuple[str, ...]
    setup: Callable[[Path], object] = lambda folder: None
    survives: Callable[[Path], object] = lambda folder: None
    finished: Callable[[Path], object] = lambda folder: None
    typed: str = ""

    def call(self, words: tuple[str, ...]) -> int:
        """The command, in this process."""
        sys.stdin = io.StringIO(self.typed)
        return main(words)

    def run(self, folder: Path, fault: Callable[[], None], is_kill: bool) -> None:
        """Nothing is lost, the message is no traceback, and the next call ends as without a fault."""
        fresh(folder)
        self.setup(folder)
        status, said = in_child(lambda: self.call(self.words), fault)
        assert status in ((0, -signal.SIGKILL) if is_kill else (0, 2)), said
        assert "Traceback" not in said, said
        self.survives(folder)
        status, said = in_child(lambda: self.call(self.again))
        assert status == 0, said
        self.finished(folder)
        assert not list(folder.rglob("*.tmp"))


def of_runs(shop: Workshop, folder: Path) -> dict[str, Scenario]:
    """Of trainings, and of what is done with what they leave."""
    train = ("train", str(shop.recipe), "--output", str(folder / "run"))
    resume, overwrite = (*train, "--resume"), (*train, "--overwrite")
    plot = ("eval", str(shop.run), "--sequences", "1", "--plot", str(folder / "loss.png"))
    get = ("models", "get", "smollm2", "--output", str(folder / "smollm2"))
    decode = ("generate", str(shop.run), "--prompt", "Once", "--max-new-tokens", "3", "--compile")

    def old_run(folder: Path) -> None:
        shutil.copytree(shop.run, folder / "run")
        (folder / "run" / "notes.txt").write_text(NOTES)

    def old_or_new(folder: Path) -> None:
        assert (folder / "run" / "notes.txt").read_text() == NOTES
        assert any(latest_complete(run)[0] for run in (folder / "run", folder / "run" / "replaced-run"))

    def as_expected(folder: Path) -> None:
        same_weights(folder / "run", shop.run)

    def only_programs(folder: Path) -> None:
        names = [path.name for path in (folder / "cache" / "decoding").iterdir()]
        assert len(names) == 2  # of a layer and of the head
        assert all(len(name) == 28 and name.endswith(".pt2") for name in names), names

    return {
        "train": Scenario(train, resume, finished=as_expected),
        "train --resume": Scenario(resume, resume, finished=as_expected),
        "train --overwrite": Scenario(overwrite, overwrite, old_run, old_or_new, as_expected),
        "eval --plot": Scenario(plot, plot, finished=lambda folder: (folder / "loss.png").read_bytes()),
        "models get": Scenario(get, get, finished=lambda folder: load_model(folder / "smollm2")),
        "generate --compile": Scenario(decode, decode, finished=only_programs),
    }


def of_memories(shop: Workshop, folder: Path) -> dict[str, Scenario]:
    """Of memory files: the old one or the new one is there, whole."""
    out, text = folder / "memory", str(shop.text)
    of_armt = ("memorize", str(shop.segmented), text, "--overwrite", "--out", str(out))
    append = ("memorize", str(shop.run), text, "--append", "--out", str(out))
    several = ("memorize", str(shop.run), str(shop.recipe), text, "--out", str(out))
    merge = ("memories", "merge", str(shop.books), str(shop.kings), "--out", str(out))
    forget = ("memories", "forget", str(out), "queen")
    both = ("memories", "merge", str(out), str(shop.kings), "--out", str(out), "--overwrite")
    cite = ("ask", str(shop.run), "Who?", "--memory", str(shop.books), "--cite", "--max-new-tokens", "2")
    cite += ("--page", str(folder / "page.html"))
    chat = ("chat", str(shop.run), "--max-new-tokens", "2")

    def holds(*readings: list[str], is_optional: bool = False) -> Callable[[Path], None]:
        """Whether the file is a whole memory of these documents, or of those."""

        def check(_: Path) -> None:
            if out.exists() or not is_optional:
                memory = Memory().load(out)
                memory.verify()
                assert memory.names in readings

        return check

    def copied(source: Path) -> Callable[[Path], object]:
        return lambda folder: shutil.copy(source, out)

    def cited(folder: Path) -> None:
        assert "So they went home." in (folder / "page.html").read_text()

    kings, read, books = ["kings"], [shop.text.name], ["queen", "home"]
    twice = [*kings, *read, text]  # read again under its whole name, where it was there already
    return {
        "memorize --overwrite": Scenario(
            of_armt, of_armt, copied(shop.memory), survives=lambda _: out.read_bytes(),
            finished=lambda _: Memory(load_model(shop.segmented), load_tokenizer(shop.segmented)).load(out).verify(),
        ),
        "memorize --append": Scenario(
            append, append, copied(shop.kings), holds(kings, kings + read), holds(kings + read, twice)
        ),
        "memorize, on the way": Scenario(  # stored behind each text
            several, (*several, "--append"),
            survives=holds([shop.recipe.name], [shop.recipe.name, *read], is_optional=True),
            finished=holds([shop.recipe.name, *read]),
        ),
        "memories merge": Scenario(
            merge, (*merge, "--overwrite"),
            survives=holds(books + kings, is_optional=True), finished=holds(books + kings),
        ),
        "memories forget": Scenario(
            forget, both, copied(shop.books), holds(books, ["home"]), holds(books + kings, ["home", *kings])
        ),
        "ask --cite": Scenario(cite, cite, finished=cited),
        "chat": Scenario(
            chat, chat, survives=holds(read, is_optional=True), finished=holds(read),
            typed=f"/read {text}\nWho?\n/cite\n/save {out}\n",
        ),
    }  # fmt: skip


def pretend_package(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model in place of the one that an optional package carries."""

    def unpack(_: Path, draft: Path) -> None:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            shutil.copy(shop.run / name, draft / name)

    gguf = ModuleType("gguf")
    gguf.__spec__ = ModuleSpec("gguf", None)
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    monkeypatch.setattr(smollm2, "PACKAGE", "tessera.interop")
    monkeypatch.setattr(smollm2, "FILE", "smollm2.py")
    monkeypatch.setattr(smollm2, "_unpack", unpack)


def compile_once(shop: Workshop, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs lie below `folder`; compiling one again is copying what was compiled before."""
    compiled, kept = torch._inductor.aoti_compile_and_package, shop.folder / "compiled"
    kept.mkdir(exist_ok=True)

    def compile_or_copy(exported: torch.export.ExportedProgram, *, package_path: str, **options: object) -> str:
        known = kept / (sha256(exported.graph_module.code.encode()).hexdigest() + ".pt2")
        if not known.exists():
            shutil.move(compiled(exported, package_path=package_path, **options), known)
        return shutil.copy(known, package_path)

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_or_copy)
    monkeypatch.setenv("TESSERA_CACHE", str(folder / "cache"))


def fresh(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
