"""Commands that are killed or meet a full disk, at any file operation, lose nothing, and the next call ends."""

import os
import random
import shutil
import signal
import threading
import time
from functools import partial

import pytest

from tessera.base.checkpoints import checkpoints, latest_complete, step_of
from tessera.cli.main import main
from tessera.memory_files import storing
from tests.reliability import scenarios
from tests.reliability.conftest import FACTOR, TORTURE, tried
from tests.reliability.faults import count_operations, full_disk_from, in_child, kill_at, small_files
from tests.reliability.scenarios import Scenario, fresh
from tests.training.processes import metrics, same_weights

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "work"


@pytest.fixture
def scenario(shop, folder, name, monkeypatch) -> Scenario:
    if name == "models get":
        scenarios.pretend_package(shop, monkeypatch)
    if name == "memorize, on the way":
        monkeypatch.setattr(storing, "READING_PER_STORING", 0)
    if name == "generate --compile":
        scenarios.compile_once(shop, folder, monkeypatch)
    return scenarios.of_runs(shop, folder).get(name) or scenarios.of_memories(shop, folder)[name]


OF_RUNS = ["train", "train --resume", "train --overwrite", "eval --plot"]
OF_MEMORIES = ["memorize --overwrite", "memorize --append", "memorize, on the way", "memories merge", "memories forget"]
OF_MEMORIES += ["ask --cite", "chat"]
NAMES = [*OF_RUNS, *OF_MEMORIES, "models get"]
OPERATIONS: dict[str, int] = {}
SAMPLE = ["train --overwrite", "memorize --append", "memories forget", "models get"]


@pytest.mark.parametrize("name", [*NAMES, "generate --compile"] if TORTURE else SAMPLE)
@pytest.mark.parametrize("fault", [kill_at, full_disk_from], ids=["kill", "full disk"])
def test_a_fault_at_any_file_operation_loses_nothing(scenario, folder, name, fault):
    if name not in OPERATIONS:  # as many for both faults
        fresh(folder)
        scenario.setup(folder)
        OPERATIONS[name] = count_operations(lambda: scenario.call(scenario.words), folder)
    places = range(1, OPERATIONS[name] + 1)
    for place in places if TORTURE else random.Random(1).sample(places, 1):
        tried(f"{'kill' if fault is kill_at else 'full disk'}, {name}")
        scenario.run(folder, fault(place, folder), is_kill=fault is kill_at)


@pytest.mark.parametrize("limit", [10, 100, 1000, 3000, 10_000, 20_000] if TORTURE else [3000])
@pytest.mark.parametrize("name", NAMES if TORTURE else ["train"])
def test_a_write_that_fails_half_way_loses_nothing(scenario, folder, name, limit):
    """What safetensors, tokenizers and torch write in compiled code."""
    tried(name)
    scenario.run(folder, small_files(limit), is_kill=False)


def test_kills_at_random_moments(shop, folder, tmp_path):
    """Wherever the run is by then: reading, training, writing or renaming."""
    expected, chance = tmp_path / "whole", random.Random(7)
    words = ("train", str(shop.recipe), "training.steps=40", "model.weight_dropout=0.1", "--resume", "--output")
    ends_well((*words, str(expected)))
    numbers = (1, 0, 2, 2, 0, 1, 2) * (14 if TORTURE else 1)
    moments = [(number, chance.uniform(0, 0.05)) for number in numbers]
    kills = kill_and_resume((*words, str(folder / "run")), folder, expected, moments)
    assert kills >= 5, "otherwise the test has tested little"


@pytest.mark.skipif(not TORTURE, reason="compiling takes a minute")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # the compiler's own
def test_kills_while_a_training_is_compiled(shop, folder, tmp_path, monkeypatch):
    """What a killed compiler leaves in its cache does no harm."""
    programs, expected, chance = tmp_path / "programs", tmp_path / "whole", random.Random(0)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(programs))
    words = ("train", str(shop.recipe), "training.compile=true", "--resume", "--output")
    began = time.monotonic()
    ends_well((*words, str(expected)))
    most = time.monotonic() - began
    for _ in range(max(2, FACTOR // 10)):
        shutil.rmtree(programs, ignore_errors=True)
        kill_and_resume(
            (*words, str(folder / "run")), folder, expected, [(0, chance.uniform(0, most)) for _ in range(3)]
        )


def kill_and_resume(words, folder, expected, moments):
    """The run is that of `expected`, however many calls were killed, so many seconds after so many checkpoints.

    Returns how many were. Counting checkpoints, not seconds, makes it the same test on a busy machine.
    """
    fresh(folder)
    run, kills = folder / "run", 0
    for number, seconds in moments:
        tried()
        fuse = partial(kill_after, run, newest(run) + 2 * number, seconds)
        status, said = in_child(lambda: main(words), fuse)
        assert status in (0, -signal.SIGKILL), said
        kills += status != 0
        if status == 0:
            same_run(run, expected)
            fresh(folder)
    ends_well(words)
    same_run(run, expected)
    return kills


def ends_well(words):
    status, said = in_child(lambda: main(words))
    assert status == 0, said


def newest(run):
    """The step of the newest checkpoint, complete or not; 0: none."""
    return max(map(step_of, checkpoints(run)), default=0)


def kill_after(run, goal, seconds):
    """Have a thread kill this process so many seconds after the checkpoint of step `goal`."""

    def wait():
        while newest(run) < goal:
            time.sleep(0.002)
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def same_run(run, expected):
    same_weights(run, expected)
    assert metrics(run, "loss") == metrics(expected, "loss")
    assert latest_complete(run)[0] == checkpoints(run)[0]


@pytest.mark.parametrize("delay", [0.01 * number for number in range(20 if TORTURE else 1)])
def test_two_processes_in_one_folder(shop, folder, delay):
    """One is told who works there, and the weights are right."""
    words = ("train", str(shop.recipe), "--output", str(folder / "run"), "--resume")
    tried()
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
