"""Both demos, made small, leave everything that they promise."""

import json

import pytest

from tessera.base.errors import TrainingInterrupted
from tessera.papers.passwords.demo import QUESTIONS
from tessera.tools import language_demo
from tessera.training.run import train

STAGE = (
    "{length: 3, min_length: 3, steps: 2, target: 2.0, learning_rate: 1.0e-3, model: {inverse_bandwidth_scale: 3.0}}"
)
SMALL = (
    *"model.hidden_size=16 training.batch_size=2 training.evaluate_sequences=2".split(),
    f"training.curriculum=[{STAGE}]",
)


def test_the_demo_made_small_leaves_what_it_promises(tessera, done, tmp_path):
    books = [tmp_path / name for name in ("one.txt", "two.txt")]
    for book in books:
        book.write_text("There was a king who had three daughters. They lived in a castle. " * 20)
    output = tmp_path / "demo"
    out, _ = done("demo", *SMALL, "--output", output, "--books", *books)
    results = json.loads((output / "demo.json").read_text())
    right = [row["is_right"] for row in results["answers"]]
    assert f"right: {sum(right)} of {QUESTIONS}" in out
    assert out.count("What is the password of the") == QUESTIONS + 1  # and the command that asks again
    assert out.count("\n  wrong: ") == right.count(False)
    for name in ("looked.png", "answers.html", "books.memory"):
        assert (output / name).stat().st_size > 1000, name
    question = results["answers"][0]["person"]
    asked = f"What is the password of the {question}?"
    assert tessera("eval", output / "reader", "--examples", 4, "--output", tmp_path / "rows.jsonl")[0] == 0
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert all("What is the password of the" in row["prompt"] for row in rows)
    said, _ = done("ask", output / "reader", asked, "--memory", output / "books.memory")
    answer = results["answers"][0]["answer"]
    assert answer in said
    text = (output / "answers.html").read_text()
    assert all(
        row["word"] is None or f"The password of the {row['person']} is {row['word']}." in text
        for row in results["answers"]
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty.txt", "--books must hold text"),
        ("missing.txt", "missing.txt"),
        ("late.txt", "late.txt: text must be UTF-8"),  # it is read to its end
    ],
)
def test_a_book_that_cannot_be_read_is_said_before_training(refused, tmp_path, name, message):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "late.txt").write_bytes(b"A king. " * 200_000 + b"\xff")
    refused(message, "demo", *SMALL, "--output", tmp_path / "demo", "--books", tmp_path / name)
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("which", ["books", "language"])
def test_a_folder_of_others_is_left_alone(refused, tmp_path, which):
    (tmp_path / "answers.html").write_text("mine")
    refused("--output must be new, or an earlier demo's folder", "demo", which, "--output", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["answers.html"]


@pytest.mark.slow
def test_a_stopped_training_goes_on(tessera, tmp_path, monkeypatch):
    """The next demo begins where the last one was stopped; one that was finished, or is another, begins anew."""
    book = tmp_path / "book.txt"
    book.write_text("There was a king who had three daughters. They lived in a castle. " * 20)
    began = []

    def stop(recipe, run, **options):
        began.append(options)
        if len(began) == 1:
            train(recipe, run, **options)
            (run / "run.json").unlink()  # as before the end
            raise TrainingInterrupted("stopped")
        return train(recipe, run, **options)

    monkeypatch.setattr("tessera.papers.passwords.demo.train", stop)
    arguments = ("demo", *SMALL, "--output", tmp_path / "demo", "--books", book)
    assert tessera(*arguments)[0] == 130
    assert tessera(*arguments)[0] == tessera(*arguments)[0] == tessera("demo", "seed=3", *arguments[1:])[0] == 0
    assert [options["resume"] for options in began] == [False, True, False, False]


def test_options_of_the_other_demo_are_refused(refused, tmp_path):
    for arguments in (("language", "--seed", 1), ("books", "--minutes", 1), ("--prompt", "A")):
        refused("come with `tessera demo", "demo", *arguments, "--output", tmp_path / "demo")
    refused("must be books or language; got novels", "demo", "novels", "--output", tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


LANGUAGE = (
    "demo language model.hidden_size=16 model.num_layers=1 model.num_heads=2 data.context=32 tokenizer.vocab_size=300 "
    "training.batch_size=2 training.evaluate_sequences=2 training.precision=fp32"
).split()
SCHEDULE = ("training.steps=6", "training.warmup_steps=1", "training.evaluate_every=3", "training.checkpoint_every=3")


@pytest.fixture(scope="module")
def small_stories(tmp_path_factory):
    path = tmp_path_factory.mktemp("stories") / "text.txt"
    path.write_text("Once upon a time there was a king who had three daughters. " * 60)
    return f"data.source={path}"


@pytest.mark.grid
def test_the_demo_leaves_both_runs_and_their_comparison(done, tmp_path, small_stories, monkeypatch):
    monkeypatch.setattr(language_demo, "SAMPLE_TOKENS", 20)
    output = tmp_path / "demo"
    out, _ = done(*LANGUAGE, *SCHEDULE, small_stories, "--output", output, "--prompt", "A king")
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
    monkeypatch.setattr(language_demo, "seconds_per_step", lambda *_: 3.0)
    steps = ("training.steps=400", "training.warmup_steps=40")
    out, _ = done(*LANGUAGE, *steps, small_stories, "--output", output, "--minutes", 1)
    assert "400 steps of both would take 40.3 minutes here: training 6 of them" in out
    lines = (output / "mosaic" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 6
    assert json.loads((output / "demo.json").read_text())["models"] != results["models"]


def test_a_prompt_that_fills_the_context_is_said_before_training(tessera, tmp_path, small_stories):
    arguments = [*LANGUAGE, *SCHEDULE, small_stories, "--output", tmp_path / "demo"]
    status, _, err = tessera(*arguments, "--prompt", "king " * 40)
    assert (status, len(err.strip().splitlines())) == (2, 1)
    assert "--prompt must hold 1 to 31 tokens (data.context - 1); got " in err
    assert not (tmp_path / "demo" / "mosaic").exists()
