"""`tessera eval`: which text is meant, several models beside each other, tasks."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, BertConfig, BertLMHeadModel

import tessera as library
from tessera.data import store
from tessera.data.sources import text_source
from tessera.data.store import open_or_build
from tessera.data.tokenizers import train_bpe
from tessera.data.windows import Split, ValidationWindows
from tessera.evaluation.display import moving_average
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.transformer import transformer_config
from tessera.papers.babilong.stories import examples_of, facts_of


@pytest.fixture(scope="module")
def transformer(run_folder, tmp_path_factory):
    """A transformer with 32 learned positions and the run's tokenizer, in a folder that is no run's."""
    folder = tmp_path_factory.mktemp("models") / "gpt"
    sizes = {"vocab_size": 258, "hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_positions": 32}
    AutoModelForCausalLM.from_config(transformer_config(**sizes)).save_pretrained(folder)
    load_tokenizer(run_folder).save_pretrained(folder)
    return folder


def test_the_text_that_is_named_is_the_text_that_is_read(tessera, done, refused, run_folder, corpus, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("A prince went into the dark wood and met a fox. " * 20)
    report = json.loads(tessera("eval", run_folder, "--json")[1])
    assert (report["data"], report["part"]) == (str(corpus), "the last 5 % of its tokens")
    held_out = report["tokens"]
    report = json.loads(tessera("eval", run_folder, "--json", "--data", corpus)[1])
    assert (report["data"], report["part"]) == (str(corpus), "all of it")
    assert report["tokens"] > 10 * held_out
    report = json.loads(tessera("eval", run_folder, "--json", "--data", other)[1])
    assert (report["data"], report["part"]) == (str(other), "all of it")
    recipe = (run_folder / "recipe.yaml").read_text()
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.replace("validation: null", f"validation: {other}"))
    out, _ = done("eval", tmp_path / "run")
    assert f"tokens of {other} (all of it) in" in out
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.replace("validation: null", "validation: {a: 1}"))
    refused("recipe.yaml: data.validation must be", "eval", tmp_path / "run")
    out, _ = done("eval", run_folder, "--data", "stories", "--sequences", 2, "--context", 16)
    assert "tokens of stories (validation split, 2 of " in out
    assert "sequences spread over it) in 2 sequences of 16" in out


def test_a_run_is_evaluated_on_the_tokens_that_it_has_stored(done, run_folder, corpus, tmp_path, monkeypatch):
    """Hours of tokenising were done again; a run away from its stores has the same numbers."""
    shutil.copytree(run_folder, tmp_path / "runs" / "alone")
    (tmp_path / "other.txt").write_text("Once upon a time there was a queen. " * 40)
    made, build = [], store._build
    monkeypatch.setattr(store, "_build", lambda *arguments: made.append(arguments[2]) or build(*arguments))
    losses = []
    for folder in (run_folder, tmp_path / "runs" / "alone"):
        losses.append(json.loads(done("eval", folder, "--json")[0])["loss"])
        assert len(made) == len(losses) - 1
    assert losses[0] == losses[1]
    assert not (tmp_path / "runs" / "stores").exists()
    done("eval", run_folder, "--data", tmp_path / "other.txt")
    assert len(made) == 2
    shutil.copytree(run_folder.parent / "stores", tmp_path / "runs" / "stores")
    for file in (tmp_path / "runs" / "stores").glob("*/tokens.bin"):  # a damaged store
        file.write_bytes(bytes(file.stat().st_size))
    assert json.loads(done("eval", tmp_path / "runs" / "alone", "--json")[0])["loss"] == losses[0]
    assert len(made) == 3


def test_a_text_that_has_changed_since_the_training_is_said(done, run_folder, corpus, tmp_path):
    """The last part of another text may be what the model was trained on."""
    run, text = tmp_path / "runs" / "run", tmp_path / "text.txt"
    shutil.copytree(run_folder, run)
    shutil.copy(corpus, text)
    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text().replace(str(corpus), str(text)))
    assert "has changed" not in done("eval", run)[1]
    text.write_text(text.read_text()[:800])
    assert f"eval: {text} has changed since the run began: this may be training text" in done("eval", run)[1]
    assert "has changed" not in done("eval", run, "--data", text)[1]


def test_files_are_read_by_their_endings_where_these_are_not_the_runs(tessera, refused, run_folder, corpus, tmp_path):
    """A run that was trained on JSON lines reads a book, and one that was trained on a book reads JSON lines."""
    text, rows = corpus.read_text(), tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": text}))
    trained_on_rows = shutil.copytree(run_folder, tmp_path / "run")
    recipe = (run_folder / "recipe.yaml").read_text().replace(f"source: {corpus}", f"source: {rows}")
    (trained_on_rows / "recipe.yaml").write_text(recipe.replace("format: text", "format: json_lines"))
    reports = [
        json.loads(tessera("eval", run, "--data", data, "--json")[1])
        for run in (run_folder, trained_on_rows)
        for data in (corpus, rows)
    ]
    assert len({report["loss"] for report in reports}) == 1
    refused("--data must name text files or JSON lines, and not both", "eval", run_folder, "--data", corpus, rows)
    options = ("--data", "novels", "--sequences", 1)
    assert tessera("eval", trained_on_rows, *options) == tessera("eval", run_folder, *options)
    (tmp_path / "other.json").write_text("A book.")
    refused("other.json: line 1 must be JSON", "eval", trained_on_rows, "--data", tmp_path / "other.json")


def test_several_models_in_one_table_and_one_figure(done, run_folder, transformer, corpus, tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr(
        "tessera.evaluation.display.save_figure", lambda figure, path: drawn.update({str(path): figure})
    )
    figure = tmp_path / "both.png"
    options = ("--data", corpus, "--context", 16, "--sequences", 3, "--plot", figure)
    out, _ = done("eval", run_folder, transformer, *options, "--average", 0.9)
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["tiny", "gpt"]
    curves = {line.get_label(): line.get_ydata() for line in drawn[str(figure)].axes[0].lines}
    assert list(curves) == ["tiny", "gpt"]
    reports = json.loads(done("eval", run_folder, transformer, *options[:-2], "--json")[0])
    for report, curve in zip(reports, curves.values()):
        averages = moving_average(np.array(report["loss_by_position"]), 0.9)
        assert curve.tolist() == pytest.approx(averages.tolist())


def test_a_context_beyond_the_positions_says_what_works(done, refused, transformer, corpus):
    message = "eval: --context must be at most 32, the positions that this gpt2 has learned; got 64. Use --context 32."
    said = refused(message, "eval", transformer, "--data", corpus, "--context", 64)
    assert said.startswith(message), "of one model its name is not said"
    out, _ = done("eval", transformer, "--data", corpus, "--sequences", 2)
    assert "2 sequences of 32" in out


def test_a_model_that_is_refused_does_not_lose_the_others(
    tessera, refused, run_folder, transformer, corpus, tmp_path, monkeypatch
):
    """Nothing that was measured is lost: neither what comes before it nor what comes behind."""
    options = ("--data", corpus, "--context", 64, "--sequences", 2)
    status, out, err = tessera("eval", run_folder, transformer, "nowhere", run_folder, *options)
    assert (status, [line.split()[0] for line in out.splitlines()[1:]]) == (2, ["tiny", "tiny"])
    first, second = err.splitlines()
    assert first.startswith(f"{transformer}: eval: --context must be at most 32")
    assert second.startswith("model nowhere: no such folder")
    task = ("--task", "associative_retrieval", "--lengths", 2, "--examples", 2)
    status, out, err = tessera("eval", "nowhere", run_folder, *task)
    assert (status, out.count("num_pairs 2"), err.count("\n")) == (2, 1, 1)
    status, out, err = tessera("eval", "nowhere", "neither", *task, "--output", tmp_path / "rows.jsonl")
    assert (status, out, err.count("\n"), list(tmp_path.iterdir())) == (2, "", 2, []), "an empty file is in the way"
    status, out, err = tessera("eval", "nowhere", "neither", *options, "--plot", tmp_path / "loss.png")
    assert (status, out, err.count("\n"), (tmp_path / "loss.png").exists()) == (2, "", 2, False)
    trained = {str(run_folder): None, str(transformer): SimpleNamespace(settings={"name": "babilong"})}
    monkeypatch.setattr("tessera.training.run_data.trained_task", trained.get)
    refused("one kind, or --data or --task be given; got babilong, text.", "eval", run_folder, transformer)


def test_bits_per_byte_are_of_the_bytes_that_were_scored(tessera, transformer, tmp_path, monkeypatch):
    """Of a part whose tokens are longer than those of the rest, with letters of several bytes cut at its borders."""
    text = "Зима. " * 30 + "aaaa bbbb " * 200
    (tmp_path / "text.txt").write_text(text)
    tokenizer = train_bpe([text], 300)
    model = load_model(transformer)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    command = ("eval", tmp_path / "model", "--data", tmp_path / "text.txt", "--context", 16, "--json")
    for limit in ((), ("--sequences", 2)):
        report = json.loads(tessera(*command, *limit)[1])
        store = open_or_build(text_source(str(tmp_path / "text.txt")), tokenizer, tmp_path / "cache")
        windows = ValidationWindows(Split.of(store), 16, limit[1] if limit else None)
        tokens = [token for window in windows for token in window["input_ids"].tolist()[1:]]
        num_bytes = sum(map(len, tokenizer.convert_ids_to_tokens(tokens)))
        expected = report["loss"] / math.log(2) * report["tokens"] / num_bytes
        assert report["bits_per_byte"] == pytest.approx(expected, rel=1e-6)
        assert ("sequences spread over it" in report["part"]) == bool(limit)


def test_models_are_scored_on_tasks(tessera, done, refused, tmp_path):
    torch.manual_seed(0)
    config = library.MemoryMosaicConfig(vocab_size=24, hidden_size=8, num_layers=1, num_heads=2, num_persistent_slots=4)
    for name in ("a", "b"):
        library.MemoryMosaicForCausalLM(config).save_pretrained(tmp_path / name)
    options = ("--task", "associative_retrieval", "--lengths", 2, 4, "--examples", 8)
    out, _ = done("eval", tmp_path / "a", tmp_path / "b", *options)
    assert out.count("num_pairs 2") == out.count("num_pairs 4") == 2
    reports = json.loads(tessera("eval", tmp_path / "a", tmp_path / "b", *options, "--json")[1])
    assert [report["scores"]["4"]["exact_match"]["count"] for report in reports] == [8, 8]
    assert reports[0]["model"] == str(tmp_path / "a")
    settings = reports[0]["provenance"]["configuration"]["task"]
    assert settings == {"rule": "rewrite", "key_size": 1, "num_symbols": 16}
    of_its_own_length = tessera("eval", tmp_path / "a", *options[:2], "--examples", 2, "--json")[1]
    assert list(json.loads(of_its_own_length)["scores"]) == ["10"]
    stored = tmp_path / "rows.jsonl"
    assert tessera("eval", tmp_path / "a", *options, "--output", stored)[0] == 0
    rows = [json.loads(line) for line in stored.read_text().splitlines()]
    assert [row["num_pairs"] for row in rows] == [2] * 8 + [4] * 8
    for row in rows:
        assert (row["answer"] == row["target"]) == (row["exact_match"] == 1)
        assert len(row["prompt"]) > 2 * row["num_pairs"]
    mean = sum(row["exact_match"] for row in rows[8:]) / 8
    assert mean == pytest.approx(reports[0]["scores"]["4"]["exact_match"]["mean"])
    for more, message in (
        (("--plot", "x.png"), "--plot must be left out with --task; got x.png."),
        (("--set", "num_symbols=64"), "know AssociativeRetrieval's 67 tokens; got vocab_size 24."),
    ):
        refused(message, "eval", tmp_path / "a", *options, *more)
    assert tessera("eval", tmp_path / "a", "--lengths", 3)[0] == 2


def test_a_model_that_sees_what_it_predicts_is_refused(refused, run_folder, corpus, tmp_path):
    """A BERT that is no decoder: its loss on any text is near 0 once it has learned to copy."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertLMHeadModel(BertConfig(vocab_size=258, **sizes, max_position_embeddings=32)).save_pretrained(tmp_path)
    load_tokenizer(run_folder).save_pretrained(tmp_path)
    text = ("--data", corpus, "--context", 16)
    for command in (("eval", tmp_path, *text), ("generate", tmp_path, "--prompt", "a")):
        refused("must see no later token when it predicts one; got BertLMHeadModel", *command)


def test_a_task_of_other_words_is_refused(done, refused, tmp_path):
    """Scores of a model whose token 7 is another word than the task's token 7 are 0, and say nothing."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 4}
    library.MemoryMosaicForCausalLM(library.MemoryMosaicConfig(vocab_size=1510, **sizes)).save_pretrained(tmp_path)
    train_bpe([*facts_of("qa1"), *examples_of("qa1"), *(9 * ["\nQuestion:\nAnswer:"])], 500).save_pretrained(tmp_path)
    options = ("--task", "babilong", "--examples", 2)
    refused("must have learned the tokens of task babilong; got others", "eval", tmp_path, *options)
    out, _ = done("eval", tmp_path, *options, "--set", f"tokenizer={tmp_path}", "--lengths", 1500)
    assert "length 1500" in out
