"""`benchmarks.babilong_millions`: the training of `reproduce` is asked about longer texts, and goes on after a kill."""

import json
import sys

import pytest
import torch

from benchmarks import babilong_millions
from tessera.evaluation import questions
from tessera.evaluation.questions import right_answers
from tessera.papers.babilong.run import BUDGETS
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
    assert all(1200 < batch.contexts.shape[1] <= 1280 for _, batch in read)

    [halted] = ask("halted.json", 2).values()
    assert halted["shares"] == whole["shares"][:2]
    [continued] = ask("halted.json", 3).values()
    assert len(read) == 4
    for name in ("shares", "books", "exact_match"):
        assert continued[name] == whole[name]
    for (_, first), (_, again) in zip([read[0], read[1]], read[2:]):
        assert torch.equal(first.contexts, again.contexts)


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
