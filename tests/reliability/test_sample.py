"""A sample of the harness; `make torture` runs all of it."""

import os
from random import Random

import pytest
from safetensors.torch import load_file

from tests.reliability import fuzz
from tests.reliability.scenarios import kill_at_random, limit_files, scenarios, strike_everywhere, two_in_one_folder
from tests.reliability.verdict import cause_of
from tests.reliability.workshop import make_workshop

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
COUNTS = {
    "calls": 150,
    "recipes": 120,
    "stages": 60,
    "command_lines": 60,
    "configurations": 15,
    "files": 10,
    "memories": 60,
    "samples": 60,
    "run_files": 3,
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return make_workshop(tmp_path_factory.mktemp("workshop"))


@pytest.mark.parametrize("name", COUNTS)
def test_bad_inputs_end_in_a_sentence(shop, tmp_path, name):
    tally = fuzz.FUZZERS[name](shop, tmp_path, COUNTS[name], Random(0))
    assert tally.tried == COUNTS[name]
    assert not tally.failed, tally.report()


def test_a_kill_and_a_full_disk_lose_nothing(shop, tmp_path):
    chosen = [one for one in scenarios(shop, shop.run / "model.safetensors") if "overwrite" in one.name]
    assert len(chosen) == 2
    check(strike_everywhere(chosen, tmp_path / "work", 0.001, Random(1)))  # one operation of each


def test_a_write_that_fails_half_way_loses_nothing(shop, tmp_path):
    check([limit_files(scenarios(shop, shop.run / "model.safetensors")[:1], tmp_path / "work", [3000])])


def test_kills_at_random_and_two_processes(shop, tmp_path):
    place = (shop, shop.run / "model.safetensors", tmp_path / "work")
    check([kill_at_random(*place, 2, Random(0)), two_in_one_folder(*place, 1, Random(0))])


def check(tallies):
    assert all(tally.tried for tally in tallies)
    assert not any(tally.failed for tally in tallies), "\n".join(tally.report() for tally in tallies)


def test_the_harness_notices_what_it_is_for(shop, tmp_path):
    """A traceback, a lost file, a wrong weight: each is counted."""
    assert cause_of(lambda: [][1]) == "IndexError outside the library"
    assert cause_of(lambda: load_file(tmp_path / "no")).startswith("FileNotFoundError")
    scenario = scenarios(shop, shop.segmented / "model.safetensors")[0]
    assert "weights differ" in scenario.run(tmp_path / "work", lambda folder: lambda: None, is_kill=False)
