"""Every verb does its work, and every mistake is one message and status 2."""

import json
import math
import os
import shutil
from importlib.metadata import version

import pytest
import torch
from transformers import AutoTokenizer

from tessera.cli.main import SECONDS_FOR_THE_FIRST, VERBS, main
from tessera.models.saving.loading import load_model
from tessera.recipes.recipe import read_recipe
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import open_data


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(capsys, verb):
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 8


def test_where_a_mistake_came_from_is_shown_to_who_asks_for_it(tessera, monkeypatch):
    said = tessera("info", "nonsense")[2]
    monkeypatch.setenv("TESSERA_DEBUG", "1")
    status, _, shown = tessera("info", "nonsense")
    assert status == 2
    assert said.count("\n") == 1
    assert shown.startswith("Traceback")
    assert shown.endswith(said)


@pytest.mark.parametrize(
    "command",
    [
        ("eval", "no-model", "--plot", "{}/a.png"),
        ("compare", "no-run", "--plot", "{}/a.png"),
        ("generate", "no-model", "--prompt", "a", "--out", "{}/a.md"),
        ("inspect", "no-model", "--text", "no.txt", "-o", "{}/a.html"),
        ("inspect", "no-model", "--text", "no.txt", "-o", "a.html", "--save", "{}/a"),
        ("memorize", "no-model", "grimms_fairy_tales_2591.txt", "--out", "{}/a"),
        ("ask", "no-model", "Who?", "--text", "grimms_fairy_tales_2591.txt", "--output", "{}/a"),
        ("convert", "no.pt", "{}/a"),
    ],
)
def test_outputs_in_folders_that_do_not_exist_are_refused_before_the_work(refused, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    refused("must lie in an existing folder; got 'folder/a", *(word.format("folder") for word in command))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_figures_replace_figures_alone(refused, run_folder, corpus, tmp_path, kind):
    path = tmp_path / "notes.png"
    path.write_text("mine") if kind == "file" else os.mkfifo(path)
    for command in (("eval", run_folder, "--data", corpus), ("compare", run_folder)):
        refused("must be a new file or a figure to replace", *command, "--plot", path)
    assert kind == "pipe" or path.read_text() == "mine"


def test_the_version_is_said(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"tessera {version('tessera')}\n"


def test_under_torchrun_the_first_process_refuses(tessera, monkeypatch):
    """The others wait until they are ended with it; one whose mistake is its own says it then."""
    waited = []
    monkeypatch.setattr("tessera.cli.main.time.sleep", waited.append)
    for rank, expected in (("0", []), ("1", [SECONDS_FOR_THE_FIRST])):
        waited.clear()
        monkeypatch.setenv("RANK", rank)
        status, out, err = tessera("train", "no-such-recipe")
        assert (status, out, len(err.splitlines()), waited) == (2, "", 1, expected)


def test_greedy_generation_is_that_of_the_model(done, run_folder):
    out, _ = done("generate", run_folder, "--prompt", "Once", "--max-new-tokens", 5, "--temperature", 0)
    tokens = load_model(run_folder).generate(torch.tensor([list(b"Once")]), max_new_tokens=5, do_sample=False)
    assert out.strip("\n") == bytes(tokens[0].tolist()).decode(errors="replace").strip("\n")
    beams = ("--max-new-tokens", 3, "--num-beams", 2)
    assert done("generate", run_folder, "--prompt", "Once", *beams)[0].startswith("Once"), "beams too are printed"


def test_sampling_depends_on_the_seed(tessera, run_folder):
    options = ("generate", run_folder, "--prompt", "Once", "--max-new-tokens", 12, "--temperature", 1.5, "--top-k", 0)
    texts = [tessera(*options, "--seed", seed)[1] for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_evaluation_reports_every_measure(done, run_folder, tmp_path):
    figure = tmp_path / "curve.png"
    report = json.loads(done("eval", run_folder, "--json", "--plot", figure, "--context", 8)[0])
    assert report["perplexity"] == pytest.approx(math.exp(report["loss"]))
    assert len(report["loss_by_position"]) == 7
    assert sum(report["loss_by_position"]) / 7 == pytest.approx(report["loss"])
    assert report["provenance"]["versions"]["torch"]
    assert figure.stat().st_size > 1000


def test_evaluation_of_a_run_is_its_validation_loss(tessera, run_folder):
    trained = json.loads((run_folder / "run.json").read_text())["result"]
    _, out, _ = tessera("eval", run_folder, "--json", "--sequences", 2)
    # the same float32 forward pass, in a batch of another size
    assert json.loads(out)["loss"] == pytest.approx(trained["validation_loss"], rel=1e-5)
    assert json.loads(out)["bits_per_byte"] == pytest.approx(trained["validation_bits_per_byte"], rel=1e-5)


def test_info_of_a_recipe_and_of_a_folder(done, run_folder):
    report = json.loads(done("info", run_folder, "--json", "--context", 16)[0])
    assert report["parameters"] == load_model(run_folder).num_parameters()
    assert sum(report["parameters_by_part"].values()) == report["parameters"]
    out, _ = done("info", "tiny", "model.num_layers=4")
    assert "FLOPs per token" in out


@pytest.mark.usefixtures("short_books")
def test_info_of_a_recipe_counts_the_words_of_its_task_and_the_positions_of_its_longest_stage(tessera, tmp_path):
    stages = {"curriculum": [{"length": 3, "steps": 1}, {"length": 2, "steps": 1}]}
    task = {"task": {"name": "babilong", "vocab_size": 250}, "context": 64}
    model = {"type": "transformer", "hidden_size": 16, "num_layers": 1, "num_heads": 2}
    (tmp_path / "own.yaml").write_text(json.dumps({"model": model, "data": task, "training": stages}))
    recipe = read_recipe(tmp_path / "own.yaml")
    trained = starting_model(recipe, open_data(recipe, tmp_path, saved_tokenizer=False).tokenizer, context=3 * 64)
    _, out, _ = tessera("info", tmp_path / "own.yaml", "--json")
    assert json.loads(out)["parameters"] == trained.num_parameters()


NO_SPLITS = "eval: --split must be left out for {corpus}, which has no splits; got 'test'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "{run}", "--prompt", ""], "the prompt must hold at least one token"),
        (["generate", "nowhere", "--prompt", "a"], "nowhere: no such folder"),
        (["generate", "{run}"], "tessera generate: "),
        (["generate", "{run}", "--prompt", "a", "--prompts", "stories"], "tessera generate: "),
        (["eval", "{run}", "--data", "nowhere.txt"], "'nowhere.txt': no such text file"),
        (["eval", "{run}", "--context", "1"], "--context must be at least 2"),
        (
            ["eval", "{run}", "--context", "1000000"],
            "Use more text or a smaller context (data.context of a recipe, --context of eval).",
        ),
        (["eval", "{run}", "--split", "test"], NO_SPLITS),
        (["eval", "{run}", "--split", "test", "--data", "{corpus}"], NO_SPLITS),
        (["eval", "{run}", "--examples", "3"], "--examples must be left out"),
        (["eval", "{run}", "--seed", "3"], "--seed must be left out"),
        (["eval", "{run}", "--tasks", "arc_easy", "--examples", "3"], "--examples must be left out"),
        (["eval", "{run}", "--tasks", "arc_easy", "--seed", "3"], "--seed must be left out"),
        (["info", "nowhere"], "recipe nowhere: no such file"),
        (["info", "{run}", "model.num_layers=2"], "must be left out for a model folder"),
        (["train", "tiny", "training.stps=3"], "Did you mean 'steps'"),
        (["train", "tiny", "--resume", "--overwrite"], "exclude each other"),
        (["plan", "tiny", "--utilization", "0"], "--utilization must lie in (0, 1]"),
        (["plan", "tiny", "--utilization", "40"], "--utilization must lie in (0, 1]"),
        (["plan", "tiny", "--peak-flops", "-1"], "--peak-flops must be above 0"),
    ],
)
def test_mistakes_are_one_line_and_status_2(refused, run_folder, corpus, arguments, message):
    words = (argument.format(run=run_folder, corpus=corpus) for argument in arguments)
    refused(message.format(corpus=corpus), *words)


@pytest.mark.parametrize("verb", [["generate", "--prompt", "Once"], ["eval", "--sequences", "1"]])
def test_a_tokenizer_larger_than_the_model_is_refused(refused, run_folder, tmp_path, verb):
    shutil.copytree(run_folder, tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    tokenizer.add_tokens(["Once"])
    tokenizer.save_pretrained(tmp_path / "run")
    refused("the tokenizer must fit the model (vocab_size 258); got token id 258", verb[0], tmp_path / "run", *verb[1:])


def test_an_interrupt_is_status_130(tessera, monkeypatch):
    monkeypatch.setattr("tessera.cli.info.run", lambda arguments: (_ for _ in ()).throw(KeyboardInterrupt))
    status, _, err = tessera("info", "tiny")
    assert (status, "interrupted" in err) == (130, True)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 10 GiB"),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 10 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_is_one_line(monkeypatch, capsys, error):
    monkeypatch.setattr("tessera.cli.tasks.run", lambda arguments: (_ for _ in ()).throw(error))
    assert main(["tasks"]) == 2
    assert capsys.readouterr().err.startswith("tessera: out of memory (")


def test_other_errors_of_ours_are_not_hidden(monkeypatch):
    monkeypatch.setattr("tessera.cli.tasks.run", lambda arguments: (_ for _ in ()).throw(RuntimeError("a mistake")))
    with pytest.raises(RuntimeError, match="a mistake"):
        main(["tasks"])
