"""Commands that are hit by faults, and what must hold afterwards."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import latest_complete
from tessera.cli.main import main
from tests.reliability.faults import count_operations, full_disk_from, in_child, kill_at, small_files
from tests.reliability.verdict import Tally
from tests.reliability.workshop import Workshop

NOTES = "a person's file in the run's folder\n"


@dataclass(frozen=True)
class Scenario:
    """A command in a folder of its own: how it is set up, called, called again after the fault, and judged."""

    name: str
    shop: Workshop
    words: Callable[[Path], list[str]]
    setup: Callable[[Path], None]
    again: Callable[[Path], list[str]]
    survives: Callable[[Path], str | None]
    finished: Callable[[Path], str | None]

    def run(self, folder: Path, fault: Callable[[Path], Callable[[], None]], is_kill: bool) -> str | None:
        """None when nothing was lost, the message was one line, and the next call ended as without a fault."""
        fresh(folder)
        self.setup(folder)
        status, said = in_child(lambda: main(self.words(folder)), fault(folder))
        if "Traceback" in said or status not in ((0, -signal.SIGKILL) if is_kill else (0, 2)):
            return f"{self.name}: exit status {status}: {' '.join(said.split())[-200:]}"
        lost = self.survives(folder)
        if lost:
            return f"{self.name}: {lost}"
        status, said = in_child(lambda: main(self.again(folder)))
        if status != 0:
            return f"{self.name}: the next call fails: {' '.join(said.split())[-200:]}"
        return self.finished(folder)


def scenarios(shop: Workshop, expected: Path) -> list[Scenario]:
    """`expected`: the weights of a run that nobody disturbed."""

    def train(*options: str) -> Callable[[Path], list[str]]:
        return lambda folder: ["train", str(shop.recipe), "--output", str(folder / "run"), *options]

    def nothing(folder: Path) -> None:
        pass

    def old_run(folder: Path) -> None:
        shutil.copytree(shop.run, folder / "run")
        (folder / "run" / "notes.txt").write_text(NOTES)

    def memory(folder: Path) -> None:
        shutil.copy(shop.memory, folder / "memory")

    def as_expected(folder: Path) -> str | None:
        return same_weights(folder / "run", expected) or litter(folder)

    def old_or_new(folder: Path) -> str | None:
        if (folder / "run" / "notes.txt").read_text() != NOTES:
            return "a person's file is gone"
        places = (folder / "run", folder / "run" / "replaced-run")
        intact = [place for place in places if latest_complete(place)[0] is not None]
        return None if intact else "neither the old nor the new run has a checkpoint"

    def whole_memory(folder: Path) -> str | None:
        from tessera.models.armt import ARMTState

        ARMTState.load(folder / "memory")
        return litter(folder)

    memorize = ["memorize", str(shop.segmented), str(shop.text), "--overwrite", "--out"]
    plot = ["eval", str(shop.run), "--sequences", "1", "--plot"]
    return [
        Scenario("train", shop, train(), nothing, train("--resume"), lambda folder: None, as_expected),
        Scenario("train --resume", shop, train("--resume"), nothing, train("--resume"), lambda _: None, as_expected),
        Scenario(
            "train --overwrite", shop, train("--overwrite"), old_run, train("--overwrite"), old_or_new, as_expected
        ),
        Scenario(
            "memorize --overwrite",
            shop,
            lambda folder: [*memorize, str(folder / "memory")],
            memory,
            lambda folder: [*memorize, str(folder / "memory")],
            lambda folder: None if (folder / "memory").is_file() else "the old memory is gone",
            whole_memory,
        ),
        Scenario(
            "eval --plot",
            shop,
            lambda folder: [*plot, str(folder / "loss.png")],
            nothing,
            lambda folder: [*plot, str(folder / "loss.png")],
            lambda folder: None,
            lambda folder: None if (folder / "loss.png").stat().st_size > 1000 else "no figure",
        ),
    ]


def strike_everywhere(chosen: list[Scenario], folder: Path, share: float, chance: Random) -> list[Tally]:
    """Each scenario with a kill, and with a full disk, before each of its file operations (or a share of them)."""
    kills, disks = Tally("kill before a file operation"), Tally("full disk from a file operation on")
    for scenario in chosen:
        fresh(folder)
        scenario.setup(folder)
        number = count_operations(lambda one=scenario: main(one.words(folder)), folder)
        places = range(1, number + 1)
        for place in chance.sample(places, max(1, round(share * number))):
            cause = scenario.run(folder, lambda root, at=place: kill_at(at, root), is_kill=True)
            kills.add(cause, f"operation {place} of {number}")
            cause = scenario.run(folder, lambda root, at=place: full_disk_from(at, root), is_kill=False)
            disks.add(cause, f"operation {place} of {number}")
    return [kills, disks]


def limit_files(chosen: list[Scenario], folder: Path, limits: list[int]) -> Tally:
    """Each scenario where no file grows beyond a limit: what safetensors, tokenizers and torch write fails half way."""
    tally = Tally("writes that fail half way")
    for scenario in chosen:
        for limit in limits:
            tally.add(
                scenario.run(folder, lambda _, bytes_=limit: small_files(bytes_), is_kill=False), f"{limit} bytes"
            )
    return tally


def kill_at_random(shop: Workshop, expected: Path, folder: Path, count: int, chance: Random) -> Tally:
    """A run killed again and again at random moments, resumed each time, ends with the same weights."""
    tally = Tally("kill -9 at random moments")
    words = ["train", str(shop.recipe), "--output", str(folder / "run"), "--resume"]
    fresh(folder)
    for number in range(count):

        def fuse(seconds: float = chance.uniform(0, 1.0)) -> None:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, seconds)

        status, said = in_child(lambda: main(words), fuse)
        cause = None if status in (0, -signal.SIGKILL) else f"exit status {status}: {' '.join(said.split())[-200:]}"
        if status == 0:
            cause = cause or same_weights(folder / "run", expected)
            fresh(folder)
        tally.add(cause, f"kill {number}")
    status, said = in_child(lambda: main(words))
    tally.add(same_weights(folder / "run", expected) if status == 0 else said, "the last one")
    return tally


def two_in_one_folder(shop: Workshop, expected: Path, folder: Path, count: int, chance: Random) -> Tally:
    """Two processes resume the same run at once: one is told who works there, and the weights are right."""
    tally = Tally("two processes in one folder")
    words = ["train", str(shop.recipe), "--output", str(folder / "run"), "--resume"]
    for _ in range(count):
        fresh(folder)
        outcomes = _both(words, folder, chance.uniform(0, 0.3))
        cause = (
            same_weights(folder / "run", expected) if any(status == 0 for status, _ in outcomes) else "none finished"
        )
        for status, said in outcomes:
            if status not in (0, 2) or (status == 2 and "one process at a time" not in said):
                cause = f"exit status {status}: {' '.join(said.split())[-200:]}"
        tally.add(cause)
    return tally


def _both(words: list[str], folder: Path, delay: float) -> list[tuple[int, str]]:
    """The outcomes of two forks; the second one's is written down by a child that waits for it."""
    notes = folder / "second.txt"
    helper = os.fork()
    if helper == 0:
        time.sleep(delay)
        status, said = in_child(lambda: main(words))
        notes.write_text(f"{status}\n{said}")
        os._exit(0)
    first = in_child(lambda: main(words))
    os.waitpid(helper, 0)
    status, said = notes.read_text().split("\n", 1)
    return [first, (int(status), said)]


def fresh(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def same_weights(run: Path, expected: Path) -> str | None:
    """What differs from the weights of a run that nobody disturbed."""
    mine, theirs = load_file(run / "model.safetensors"), load_file(expected)
    same = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    return None if same else "the weights differ from those of an undisturbed run"


def litter(folder: Path) -> str | None:
    """What was left half written after the command has been called again."""
    left = [path.relative_to(folder).as_posix() for path in folder.rglob("*.tmp")]
    return f"litter: {left}" if left else None
