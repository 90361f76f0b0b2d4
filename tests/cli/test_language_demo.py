"""The demo of language models, made small, leaves everything that it promises."""

import json

import pytest

from tessera.tools import language_demo
from tessera.tools.language_demo import table

SMALL = (
    "model.hidden_size=16",
    "model.num_layers=1",
    "model.num_heads=2",
    "data.context=32",
    "tokenizer.vocab_size=300",
    "training.batch_size=2",
    "training.evaluate_sequences=2",
    "training.precision=fp32",
)
SCHEDULE = ("training.steps=6", "training.warmup_steps=1", "training.evaluate_every=3", "training.checkpoint_every=3")


@pytest.fixture(scope="module")
def small_stories(tmp_path_factory):
    path = tmp_path_factory.mktemp("stories") / "text.txt"
    path.write_text("Once upon a time there was a king who had three daughters. " * 60)
    return f"data.source={path}"


@pytest.mark.grid
def test_the_demo_leaves_both_runs_and_their_comparison(done, tmp_path, small_stories, monkeypatch):
    monkeypatch.setattr(language_demo, "STREAM_TOKENS", 20)
    output = tmp_path / "demo"
    arguments = ["demo", "language", *SMALL, *SCHEDULE, small_stories, "--output", output, "--prompt", "A king"]
    out, _ = done(*arguments)
    for run in ("mosaic", "transformer"):
        for name in ("config.json", "model.safetensors", "metrics.jsonl", "recipe.yaml", "checkpoints/checkpoint-6"):
            assert (output / run / name).exists(), name
    assert (output / "loss.png").stat().st_size > 10_000
    samples = (output / "samples.txt").read_text()
    assert samples.count("A king") == 6
    results = json.loads((output / "demo.json").read_text())
    rows = [line for line in out.splitlines() if line.startswith(("Memory Mosaic  ", "transformer, RoPE  "))]
    assert results["provenance"]["versions"]["torch"]
    for row, result in zip(rows, results["models"].values(), strict=True):
        assert f"{result['parameters']:,}" in row
        assert f"{result['validation_loss']:.4f}" in row
    assert len(rows) == 2
    assert out.rstrip().splitlines()[-1] != ""
    assert out.index("Memory Mosaic:") > out.index(rows[-1])
    assert not (output / "trial").exists()
    # A second demo replaces the first; on a slow machine it trains fewer steps.
    monkeypatch.setattr(language_demo, "seconds_per_step", lambda recipe, arguments: 3.0)
    steps = ("training.steps=400", "training.warmup_steps=40")
    out, _ = done("demo", "language", *SMALL, *steps, small_stories, "--output", output, "--minutes", 1)
    assert "400 steps of both would take 40.3 minutes here: training 6 of them" in out
    lines = (output / "mosaic" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 6
    assert json.loads((output / "demo.json").read_text())["models"] != results["models"]


def test_a_prompt_that_fills_the_context_is_said_before_training(tessera, tmp_path, small_stories):
    arguments = ["demo", "language", *SMALL, *SCHEDULE, small_stories, "--output", tmp_path / "demo"]
    status, _, err = tessera(*arguments, "--prompt", "king " * 40)
    assert (status, len(err.strip().splitlines())) == (2, 1)
    assert "--prompt must hold 1 to 31 tokens (data.context - 1); got " in err
    assert not (tmp_path / "demo" / "mosaic").exists()


def test_the_table_lines_up():
    from tessera.training.model_card import RunSummary

    summary = RunSummary("x", "x", 4_200_000, 10, 10, 0, 3.21, 1.2, None)
    lines = table({"Memory Mosaic": summary, "transformer": summary}).splitlines()
    assert len({len(line) for line in lines}) == 1
