"""`tessera plan`: the lines, the JSON, what does not fit, and arguments that nobody means."""

import json
from functools import lru_cache

import pytest

from tessera.recipes.recipe import read_recipe
from tessera.tools.plan import shown_size, step_memory

RECIPE = ("tiny", "data.context=32", "model.num_layers=1")


@pytest.fixture(autouse=True)
def _counted_once(monkeypatch):
    """Every plan is of the memory that the first one counted; tests/tools/test_plan.py looks at the counting."""
    monkeypatch.setattr("tessera.tools.plan.step_memory", lambda *arguments: counted())


@lru_cache(maxsize=1)
def counted():
    return step_memory(read_recipe(RECIPE[0], RECIPE[1:]), 1, "bf16")


def test_lines_and_json_agree(done):
    options = ("--devices", "4", "--device-memory", "80GB", "--peak-flops", "312e12", "--utilization", "0.5")
    out, err = done("plan", *RECIPE, *options)
    assert err == ""
    plan = json.loads(done("plan", *RECIPE, *options, "--json")[0])
    assert plan["devices"] == 4
    assert plan["missing_memory"] == 0
    assert "\nfits\n" in out
    assert f"{plan['parameters']:,} parameters" in out
    assert f"tokens per second {plan['tokens_per_second']:12.4g}" in out
    assert plan["tokens_per_second"] == pytest.approx(
        0.5 * 4 * 312e12 * plan["tokens_per_step"] / plan["flops_per_step"]
    )
    for name, size in plan["memory"].items():
        assert any(line.startswith(name) and line.endswith(f" {shown_size(size)}") for line in out.splitlines())
    assert not any(shown_size(size).startswith("0.00") for size in plan["memory"].values() if size)


def test_what_does_not_fit_is_an_answer(done):
    out, err = done("plan", *RECIPE, "--devices", "2", "--device-memory", "1kB")
    assert err == ""
    assert f"does not fit: {shown_size(counted()['peak'] - 1000)} are missing; training.shard=true," in out


def test_settings_that_take_less_are_those_that_are_not_taken(tessera):
    one_device = ("plan", *RECIPE, "--device-memory", "1kB", "training.micro_batch_size=2")
    out = tessera(*one_device)[1]
    assert "missing; training.micro_batch_size=1, training.gradient_checkpointing=true need less\n" in out
    all_taken = ("training.micro_batch_size=1", "training.gradient_checkpointing=true", "training.shard=true")
    assert " MB are missing\n" in tessera(*one_device[:-1], "--devices", "2", *all_taken)[1]


@pytest.mark.parametrize(
    ("size", "text"),
    [(34.27e9, "34.27 GB"), (5e6, "5.00 MB"), (4.9e6, "4.90 MB"), (400, "0.40 kB"), (4, "0.00 GB"), (0, "0.00 GB")],
)
def test_sizes_have_a_unit_that_shows_them(size, text):
    assert shown_size(size) == text


@pytest.mark.parametrize("value", ["80 GB", "x", "-1", "80", "GB", "1e3GB", "80gb", "nan", "", "0GB", "9" * 400 + "GB"])
def test_bad_sizes(refused, value):
    refused("tessera plan: --device-memory ", "plan", "tiny", "--device-memory", value)
