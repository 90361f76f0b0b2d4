"""Commands that are killed or meet a full disk, at any file operation, lose nothing, and the next call ends."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import latest_complete
from tessera.cli.main import main
from tessera.models.armt import ARMTState
from tests.reliability.conftest import TORTURE
from tests.reliability.faults import count_operations, full_disk_from, in_child, kill_at, small_files

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
NOTES = "a person's file in the run's folder\n"


@dataclass(frozen=True)
class Scenario:
    """A command in a folder of its own; what is there before, and what must hold after the fault and at the end."""

    words: tuple[str, ...]
    again: tuple[str, ...]
    setup: Callable[[Path], object] = lambda folder: None
    survives: Callable[[Path], None] = lambda folder: None
    finished: Callable[[Path], None] = lambda folder: None

    def run(self, folder: Path, fault: Callable[[], None], is_kill: bool) -> None:
        """Nothing is lost, the message is no traceback, and the next call ends as without a fault."""
        fresh(folder)
        self.setup(folder)
        status, said = in_child(lambda: main(self.words), fault)
        assert status in ((0, -signal.SIGKILL) if is_kill else (0, 2)), said
        assert "Traceback" not in said, said
        self.survives(folder)
        status, said = in_child(lambda: main(self.again))
        assert status == 0, said
        self.finished(folder)
        assert not list(folder.rglob("*.tmp"))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def scenarios(shop, folder) -> dict[str, Scenario]:
    train = ("train", str(shop.recipe), "--output", str(folder / "run"))
    resume, overwrite = (*train, "--resume"), (*train, "--overwrite")
    memorize = ("memorize", str(shop.segmented), str(shop.text), "--overwrite", "--out", str(folder / "memory"))
    plot = ("eval", str(shop.run), "--sequences", "1", "--plot", str(folder / "loss.png"))

    def old_run(folder: Path) -> None:
        shutil.copytree(shop.run, folder / "run")
        (folder / "run" / "notes.txt").write_text(NOTES)

    def old_or_new(folder: Path) -> None:
        assert (folder / "run" / "notes.txt").read_text() == NOTES
        assert any(latest_complete(run)[0] for run in (folder / "run", folder / "run" / "replaced-run"))

    def as_expected(folder: Path) -> None:
        same_weights(folder / "run", shop.run)

    return {
        "train": Scenario(train, resume, finished=as_expected),
        "train --resume": Scenario(resume, resume, finished=as_expected),
        "train --overwrite": Scenario(overwrite, overwrite, old_run, old_or_new, as_expected),
        "memorize --overwrite": Scenario(
            memorize,
            memorize,
            setup=lambda folder: shutil.copy(shop.memory, folder / "memory"),
            survives=lambda folder: (folder / "memory").read_bytes(),
            finished=lambda folder: ARMTState.load(folder / "memory"),
        ),
        "eval --plot": Scenario(plot, plot, finished=lambda folder: (folder / "loss.png").read_bytes()),
    }


NAMES = ["train", "train --resume", "train --overwrite", "memorize --overwrite", "eval --plot"]
SAMPLE = NAMES if TORTURE else ["train --overwrite", "memorize --overwrite"]


@pytest.mark.parametrize("name", SAMPLE)
@pytest.mark.parametrize("fault", [kill_at, full_disk_from], ids=["kill", "full disk"])
def test_a_fault_at_any_file_operation_loses_nothing(scenarios, folder, name, fault):
    scenario = scenarios[name]
    fresh(folder)
    scenario.setup(folder)
    places = range(1, count_operations(lambda: main(scenario.words), folder) + 1)
    for place in places if TORTURE else random.Random(1).sample(places, 1):
        scenario.run(folder, fault(place, folder), is_kill=fault is kill_at)


@pytest.mark.parametrize("limit", [10, 100, 1000, 3000, 10_000, 20_000] if TORTURE else [3000])
@pytest.mark.parametrize("name", NAMES if TORTURE else ["train"])
def test_a_write_that_fails_half_way_loses_nothing(scenarios, folder, name, limit):
    """What safetensors, tokenizers and torch write in compiled code."""
    scenarios[name].run(folder, small_files(limit), is_kill=False)


def test_kills_at_random_moments(shop, folder):
    """A run that is killed again and again, resumed each time, ends with the same weights."""
    words, chance = ("train", str(shop.recipe), "--output", str(folder / "run"), "--resume"), random.Random(0)
    fresh(folder)
    for _ in range(100 if TORTURE else 2):

        def fuse(seconds: float = chance.uniform(0, 1.0)) -> None:
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            signal.setitimer(signal.ITIMER_REAL, seconds)

        status, said = in_child(lambda: main(words), fuse)
        assert status in (0, -signal.SIGKILL), said
        if status == 0:
            same_weights(folder / "run", shop.run)
            fresh(folder)
    status, said = in_child(lambda: main(words))
    assert status == 0, said
    same_weights(folder / "run", shop.run)


@pytest.mark.parametrize("delay", [0.01 * number for number in range(20 if TORTURE else 1)])
def test_two_processes_in_one_folder(shop, folder, delay):
    """One is told who works there, and the weights are right."""
    words = ("train", str(shop.recipe), "--output", str(folder / "run"), "--resume")
    fresh(folder)
    helper = os.fork()
    if helper == 0:
        try:
            time.sleep(delay)
            status, said = in_child(lambda: main(words))
            (folder / "second.txt").write_text(f"{status}\n{said}")
        finally:  # whatever happens, the fork must not go on with the tests
            os._exit(0)
    status, said = in_child(lambda: main(words))
    os.waitpid(helper, 0)
    second_status, second_said = (folder / "second.txt").read_text().split("\n", 1)
    outcomes = [(status, said), (int(second_status), second_said)]
    assert any(status == 0 for status, _ in outcomes), outcomes
    assert all(status == 0 or (status == 2 and "one process at a time" in said) for status, said in outcomes), outcomes
    same_weights(folder / "run", shop.run)


def fresh(folder: Path) -> None:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def same_weights(run: Path, expected: Path) -> None:
    """The weights are those of a run that nobody disturbed."""
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (run, expected))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_other_weights_are_noticed(shop):
    with pytest.raises(AssertionError):
        same_weights(shop.segmented, shop.run)
