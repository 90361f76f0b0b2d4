"""Arguments that nobody means: one line, status 2, and nothing written."""

import io
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tessera.base.locks import held
from tessera.cli.main import main

COUNTS = {"generate": ("--max-new-tokens", "--num-beams"), "eval": ("--sequences", "--batch-size", "--context")}
COUNTS |= {"info": ("--context",), "plan": ("--devices",), "ask": ("--max-new-tokens",)}
COUNTS |= {"reproduce": ("--seeds", "--workers")}
REQUIRED = {"generate": ("--prompt", "a"), "ask": ("Who?", "--memory", "m")}


@pytest.mark.parametrize(("verb", "option"), [(verb, option) for verb, names in COUNTS.items() for option in names])
@pytest.mark.parametrize("value", ["-1", "0", "1.5", "", "ten", "nan", "9" * 5000, str(2**40)])
def test_counts(refused, verb, option, value):
    refused(f"tessera {verb}: {option} must be ", verb, "what", *REQUIRED.get(verb, ()), option, value)


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("train", ("tiny", "training.batch_size=1000000000"), "training.batch_size must lie in [1, 1,000,000]; got"),
        ("info", ("tiny", "model.num_layers=1000000000"), "model.num_layers must be at most 10,000; got 1000000000."),
        ("info", ("tiny", "model={type: gpt2, n_layer: 1000000000}"), "model.n_layer must be at most 10,000; got"),
        ("info", ("tiny", "model.hidden_size=1000000000000"), "tessera: out of memory"),
        ("generate", ("RUN", "--prompt", "a", "--num-beams", "1000000000"), "num_beams must be at most 10,000; got"),
        ("reproduce", ("three_moons", "--seeds", "1000000000"), "--seeds must lie in [1, 10,000]; got 1000000000."),
        ("eval", ("RUN", "--task", "babilong", "--examples", "1000000000"), "--examples must be at most 1000000; got"),
        ("prompts", ("RUN", "--contexts", "1000000000"), "--contexts must be at most 1000000; got 1000000000."),
    ],
)
def test_counts_whose_memory_no_machine_has(refused, run_folder, verb, arguments, message):
    refused(message, verb, *(run_folder if argument == "RUN" else argument for argument in arguments))


OUTPUTS = {"eval": ("--task", "reverse", "--output"), "prompts": ("--many-shot", "banking77", "--output")}
OUTPUTS |= {"ask": ("Who?", "--memory", "m", "--output"), "generate": ("--prompt", "a", "--out")}


@pytest.mark.parametrize("verb", OUTPUTS)
def test_two_processes_do_not_write_one_file(tessera, refused, tmp_path, verb):
    """Both saw that it was new, and the later took the place of the earlier, hours of answers."""
    output = tmp_path / "answers.jsonl"
    command = (verb, tmp_path / "no model", *OUTPUTS[verb], output)
    with held(tmp_path / "answers.jsonl.lock", "", stays=False):
        refused(f"{output}: must be used by one process at a time; process {os.getpid()} on ", *command)
    status, _, err = tessera(*command)
    assert status == 2
    assert "one process" not in err
    assert not list(tmp_path.iterdir()), "a lock was left"


def test_what_another_process_wrote_just_before_is_kept(refused, tmp_path, monkeypatch):
    output = tmp_path / "answers.jsonl"

    @contextmanager
    def held_by_another_until_now(*_, **options):
        output.write_text("its answers")
        yield

    monkeypatch.setattr("tessera.base.locks.held", held_by_another_until_now)
    refused("must be a new file", "eval", tmp_path, "--task", "reverse", "--output", output)
    assert output.read_text() == "its answers"


def test_a_batch_is_as_large_as_the_text(tessera, run_folder):
    """Rows that are not there take no memory."""
    assert tessera("eval", run_folder, "--batch-size", 2**31 - 1) == tessera("eval", run_folder)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--temperature", "-0.1", "must be at least 0 and be finite; got -0.1."),
        ("--temperature", "inf", "must be at least 0 and be finite; got inf."),
        ("--top-p", "0", "must lie in (0, 1] and be finite; got 0."),
        ("--top-p", "nan", "must lie in (0, 1] and be finite; got nan."),
        ("--seed", "-1", "must be at least 0; got -1."),
        ("--seed", str(2**32), f"must be at most {2**32 - 1}; got {2**32}."),
        ("--top-k", "-1", "must be at least 0; got -1."),
    ],
)
def test_sampling(refused, option, value, message):
    refused(f"{option} {message}", "generate", "what", "--prompt", "a", option, value)


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "x"])
@pytest.mark.parametrize(("verb", "option"), [("check", "--allowed"), ("ask", "--shots"), ("eval", "--num-fewshot")])
def test_numbers_that_may_be_0(refused, verb, option, value):
    refused(f"tessera {verb}: {option} must be ", verb, "what", option, value)


@pytest.mark.parametrize("verb", ["train", "info", "eval", "memorize", "demo"])
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("a\0b", "must not contain NUL"),
        (os.fsdecode(b"\xff\xfe"), "must be text in UTF-8"),
        ("\ud800", "must be text in UTF-8"),
        ("x" * 300, ""),
        ("x" * 5000, ""),
    ],
)
def test_names_that_no_file_can_have(tessera, tmp_path, monkeypatch, verb, argument, message):
    monkeypatch.chdir(tmp_path)
    more = {"memorize": ("b.txt", "--out", "memory")}.get(verb, ())
    status, _, err = tessera(verb, argument, *more)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert len(err) < 700 + len(argument)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_cannot_be_written_is_one_line():
    code = "from tessera.cli import main, tasks\ntasks.run = print\nraise SystemExit(main.main(['tasks']))"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "tessera: No space left on device\n"


def test_a_terminal_without_the_characters_shows_marks(monkeypatch, run_folder):
    """Of a locale such as Latin-1, or on Windows."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", stream)
    assert main(["generate", str(run_folder), "--prompt", "日本 é", "--max-new-tokens", "1", "--temperature", "0"]) == 0
    assert stream.buffer.getvalue().startswith("?? é".encode("latin-1"))


def test_changes_to_a_recipe_may_follow_options(tessera, done):
    expected, _ = done("info", "tiny", "model.hidden_size=64", "model.num_layers=3", "--json")
    assert tessera("info", "tiny", "model.hidden_size=64", "--json", "model.num_layers=3") == (0, expected, "")


@pytest.mark.parametrize("stray", ["more", "--steps=3"])
@pytest.mark.parametrize("command", [("info", "tiny", "--json"), ("tasks", "--import", "json")])
def test_what_is_no_change_is_refused(refused, command, stray):
    message = f"tessera {command[0]}: unrecognized arguments: {stray}. See tessera {command[0]} --help.\n"
    refused(message, *command, stray)


def test_info_of_a_run_that_is_not_finished(tessera, run_folder, tmp_path):
    shutil.copytree(run_folder / "checkpoints", tmp_path / "checkpoints")
    status, out, err = tessera("info", tmp_path, "--json")
    assert (status, out, err) == tessera("info", run_folder, "--json")
    assert status == 0


def test_info_of_a_run_before_its_first_checkpoint(tessera, refused, run_folder, tmp_path):
    """Its recipe says what it trains; a folder without one is a folder, and no recipe that is missing."""
    for name in ("recipe.yaml", "run.lock"):
        shutil.copy(run_folder / name, tmp_path)
    status, out, err = tessera("info", tmp_path, "--json", "--context", 512)
    assert (status, out, err) == tessera("info", run_folder, "--json")
    assert status == 0
    assert tessera("info", tmp_path)[1].splitlines()[-1].startswith("it has no checkpoint yet: ")
    assert "no checkpoint" not in tessera("info", run_folder)[1]
    (tmp_path / "empty").mkdir()
    refused("empty: a folder.", "info", tmp_path / "empty")
