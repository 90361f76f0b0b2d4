"""`benchmarks.babilong_millions`: the training of `reproduce` is asked about longer texts, and goes on after a kill."""

import json
import sys

import pytest
import torch

from benchmarks import babilong_millions, babilong_written
from tessera.evaluation import questions
from tessera.evaluation.questions import right_answers
from tessera.papers.babilong.run import BUDGETS, MODELS
from tessera.papers.runner import Job
from tessera.recall import long_memories


@pytest.fixture
def ask(tmp_path, monkeypatch):
    def ask(out, texts, *more):
        arguments = "--model armt_mosaic --budget smoke --tokens 1250 --together 2 --trainings".split()
        arguments += [str(tmp_path), "--texts", str(texts), "--out", str(tmp_path / out), *more]
        monkeypatch.setattr(sys, "argv", ["", *arguments])
        babilong_millions.main()
        return json.loads((tmp_path / out).read_text())

    return ask


def test_texts_are_answered_by_the_training_of_reproduce_and_none_twice(ask, tmp_path, monkeypatch):
    run = BUDGETS["smoke"].run("armt_mosaic", "qa1", 0)
    read, folders = [], []

    def answered(model, batch):
        read.append((model, batch))
        return right_answers(model, batch)

    monkeypatch.setattr(babilong_millions, "right_answers", answered)
    monkeypatch.setattr(babilong_millions, "train_recipe_stages", lambda *arguments: folders.append(arguments[3]))
    [(key, whole)] = ask("whole.json", 3).items()
    assert folders == [Job("babilong", tmp_path / "smoke").folder(run)]
    assert key == "armt_mosaic/qa1/seed 0/1280 tokens"
    assert len(whole["shares"]) == len(whole["books"]) == 3
    assert [len(batch.contexts) for _, batch in read] == [2, 1]
    labels = [row for _, batch in read for row in batch.labels]
    assert whole["asked"] == [sum(bool((question >= 0).any()) for question in row) for row in labels]
    assert all(1200 < batch.contexts.shape[1] <= 1280 for _, batch in read)

    [halted] = ask("halted.json", 2).values()
    assert halted["shares"] == whole["shares"][:2]
    [continued] = ask("halted.json", 3).values()
    assert len(read) == 4
    for name in ("shares", "books", "exact_match"):
        assert continued[name] == whole[name]
    for (_, first), (_, again) in zip([read[0], read[1]], read[2:]):
        assert torch.equal(first.contexts, again.contexts)


def test_a_record_that_does_not_count_its_questions_is_made_again(ask, tmp_path, monkeypatch):
    monkeypatch.setattr(babilong_millions, "train_recipe_stages", lambda *arguments: None)
    [(key, whole)] = ask("whole.json", 2).items()
    (tmp_path / "earlier.json").write_text(json.dumps({key: {"shares": [9.0], "books": [0]}}))
    [again] = ask("earlier.json", 2).values()
    assert (again["shares"], again["asked"]) == (whole["shares"], whole["asked"])


@pytest.mark.parametrize("model", ["armt_mosaic", "armt_mosaic_uncut"])
def test_what_is_written_of_books_and_how_many_facts_are_cut(model, tmp_path, monkeypatch):
    """A memory of random weights writes every segment: its matrix is as long as the changes together at most."""

    def with_random_weights(trained, *others):
        for weight in trained.parameters():
            torch.nn.init.normal_(weight, std=0.1)

    monkeypatch.setattr(babilong_millions, "train_recipe_stages", with_random_weights)
    monkeypatch.setattr(babilong_written, "CONTEXTS", 4)
    out = tmp_path / "written.json"
    arguments = f"--model {model} --budget smoke --tokens 1280 --trainings {tmp_path} --out {out}".split()
    monkeypatch.setattr(sys, "argv", ["", *arguments])
    babilong_written.main()
    [(key, record)] = json.loads(out.read_text()).items()
    seed = MODELS[model].first_seed
    assert key == f"{model}/qa1/seed {seed}/validation/1280 tokens"
    assert len(record["written"]) == record["segments"]
    assert (record["segments"] == 20) == (model == "armt_mosaic"), "sentences end earlier"
    assert record["cut_facts"]["of"] == 80
    assert (record["cut_facts"]["cut"] > 0) == (model == "armt_mosaic")
    for layer, length in enumerate(record["length_at_the_end"]):
        assert 0 < length <= sum(segment["change"][layer] for segment in record["written"])


@pytest.mark.grid
def test_a_mosaic_reads_a_long_text_through_an_index(ask, monkeypatch):
    """In blocks behind its state: the answers are those of one pass, and what the index read is counted."""
    monkeypatch.setattr(babilong_millions, "train_recipe_stages", lambda *arguments: None)
    monkeypatch.setattr(questions, "BLOCK", 300)
    monkeypatch.setattr(long_memories, "SHORTEST", 512)
    monkeypatch.setattr(long_memories, "SCANNED_HEAD", 1.0)
    found, logits = [], questions.question_logits

    def kept(model, batch):
        found.append(logits(model, batch))
        return found[-1]

    monkeypatch.setattr(questions, "question_logits", kept)
    [indexed] = ask("indexed.json", 1, "--model", "mosaic_unseen", "--together", "1").values()
    [reading] = indexed["through_the_index"]
    assert reading["queries"] > 0
    assert 0 < reading["pairs_read"] <= reading["pairs"]

    monkeypatch.setattr(questions, "BLOCK", 1 << 20)
    monkeypatch.setattr(long_memories, "SHORTEST", 1 << 20)
    [whole] = ask("whole.json", 1, "--model", "mosaic_unseen", "--together", "1").values()
    assert whole["through_the_index"] == [{"queries": 0, "pairs_read": 0, "pairs": 0}]
    assert torch.allclose(*found, atol=1e-4)
    assert whole["shares"] == indexed["shares"]


def test_a_run_that_is_not_planned_is_refused_in_one_line(ask, capsys):
    for more in (("--kind", "qa9"), ("--seed", "-1")):
        with pytest.raises(SystemExit, match="2"):
            ask("none.json", 1, *more)
        assert (
            "--kind and --seed must be of a run of `tessera reproduce babilong`; got armt_mosaic/"
            in capsys.readouterr().err
        )
