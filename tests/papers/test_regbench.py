"""RegBench's runs, batches and table; and its smoke budget, end to end."""

import json
from dataclasses import replace

import pytest
import torch

from tessera.base.dataclass_io import to_json
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.curves import styles
from tessera.papers.experiment import Record, RunContext, RunSelection
from tessera.papers.regbench.report import EXPERIMENT, NAMES, longest_trainings, losses_by_block, tables
from tessera.papers.regbench.run import Batches, loss_by_block, mean_loss, scores_of
from tessera.papers.regbench.task import RegBench
from tests.refusals import refused
from tests.tasks.cases import VARIANTS

SMALL = VARIANTS["regbench"][1]


class Uniform:
    """A model that predicts every token alike, with the loss that this has."""

    device = "cpu"

    def __call__(self, input_ids, labels=None):
        class Output:
            logits = torch.zeros(*input_ids.shape, SMALL.vocab_size)
            loss = torch.tensor(float(SMALL.vocab_size)).log()

        return Output


def test_an_epoch_takes_every_problem_once_and_the_step_decides():
    examples = SMALL.sample(21, 0)
    batches = Batches(SMALL, examples, 4, seed=5)
    assert batches.per_epoch == 5
    rows = {tuple(row.tolist()): index for index, row in enumerate(examples.tokens)}
    width = examples.tokens.shape[1]
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(epoch * 5, epoch * 5 + 5):
            ids, labels = batches.at(step).tokens, batches.at(step).labels
            assert ((labels == ids) | (labels == IGNORED)).all()
            assert (ids[:, -1] != SMALL.padding).any()
            filled = torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=SMALL.padding)
            seen += [rows[tuple(row.tolist())] for row in filled]
        assert len(set(seen)) == 20
        orders.append(seen)
    assert orders[0] != orders[1]
    again = Batches(SMALL, examples, 4, seed=5)
    for step in (7, 2, 9):
        assert torch.equal(again.at(step).tokens, batches.at(step).tokens)
    assert not torch.equal(Batches(SMALL, examples, 4, 6).at(0).tokens, batches.at(0).tokens)


def test_batches_hold_problems_of_similar_length():
    examples = RegBench().sample(64, 0)
    batches = Batches(RegBench(), examples, 8, 0)
    read = sum(batches.at(step).tokens.numel() for step in range(8))
    assert read < 1.2 * int(examples.details.lengths.sum())


def test_scores_come_back_in_the_order_of_the_examples():
    examples = SMALL.sample(81, 0)
    scores = scores_of(Uniform(), SMALL, examples)
    expected = SMALL.scores(Uniform()(examples.tokens).logits, examples)
    for name, values in expected.items():
        torch.testing.assert_close(scores[name], values)
    assert mean_loss(Uniform(), SMALL, examples) == pytest.approx(float(torch.tensor(10.0).log()))


def test_choices_are_obeyed_or_refused():
    runs = EXPERIMENT.runs(RunSelection("cpu", ("mosaic_v2", "lstm"), ("biweight",), 1))
    assert [run.key for run in runs] == [
        "mosaic_v2 biweight/1000/seed 0", "lstm/1000/seed 0",
        "mosaic_v2 biweight, 8 epochs/1000/seed 0", "lstm, 8 epochs/1000/seed 0",
        "mosaic_v2 biweight, 3 epochs/2500/seed 0", "lstm, 3 epochs/2500/seed 0", "lstm, 40 epochs/100/seed 0",
    ]  # fmt: skip
    refused("unknown model 'gru'", EXPERIMENT.runs, RunSelection("cpu", ("gru",)))
    refused("Did you mean 'biweight'", EXPERIMENT.runs, RunSelection("cpu", kernels=("biwight",)))


def test_losses_by_block_are_means_over_their_labels():
    examples = SMALL.sample(21, 0)
    tokens = 8

    class Even(torch.nn.Linear):
        """A model whose logits favour the token that it reads."""

        def forward(self, input_ids, use_cache):
            logits = torch.nn.functional.one_hot(input_ids, SMALL.vocab_size).float()
            return type("Output", (), {"logits": logits})

    losses = loss_by_block(Even(1, 1), examples, block=3, tokens=tokens)
    logits = torch.nn.functional.one_hot(examples.tokens, SMALL.vocab_size).float()
    each = torch.nn.functional.cross_entropy(logits[:, :-1].mT, examples.labels[:, 1:], reduction="none")
    scored = examples.labels[:, 1:] >= 0
    for block, loss in enumerate(losses):
        places = slice(3 * block, min(3 * block + 3, tokens - 1))
        assert loss == pytest.approx(float(each[:, places].sum() / scored[:, places].sum()), abs=1e-5)
    assert len(losses) == 3
    assert len(set(losses)) == 3


def test_a_run_trains_and_scores(tmp_path):
    records = {}
    for run in EXPERIMENT.runs(RunSelection("smoke", models=("mosaic", "transformer", "ngram"))):
        outcome = to_json(EXPERIMENT.execute(run, RunContext(tmp_path / run.key.replace("/", "_"))))
        json.dumps(outcome, allow_nan=False)
        if run.configuration.fit:
            assert outcome["training"]["steps"] == run.configuration.fit.steps
            assert len(outcome["held_out_loss_by_block"]) == 20
        assert outcome["held_out"]["accuracy"][2] == 4
        records[run.key] = Record(run.configuration, outcome, {})
    accuracies = [one.outcome["held_out"]["accuracy"][0] for key, one in records.items() if key.startswith("ngram")]
    assert len(accuracies) == 4
    assert accuracies[0] < accuracies[1] < accuracies[2]
    parts = tables(records)
    assert list(parts) == ["12 training problems", "Counting in the problem, without training", "Settings"]
    assert "| Gaussian | 3 | 3 | 1 |" in parts["12 training problems"]
    assert "| Transformer | 3 | 3 | 1 |" in parts["12 training problems"]
    assert "| test problems | 4 | 1,000 |" in parts["Settings"]


def record(kernel, seed, accuracy, best=1.0, problems=1000, **changes):
    runs = EXPERIMENT.runs(RunSelection("cpu", ("mosaic",), (kernel,), seed + 1))
    run = next(r for r in runs if f"seed {seed}" in r.key)
    values = {"accuracy": accuracy, "tvd": 20.0, "last_accuracy": 97.0}
    scores = {name: [value, 0.3, 500] for name, value in values.items()}
    training = {"best": best, "best_step": 400 + 200 * seed}
    outcome = {"training": training, "epochs": 4.0, "held_out": scores, "in_distribution": scores}
    return Record(replace(run.configuration, num_problems=problems, **changes), outcome, {})


def test_a_longer_training_stands_on_its_own():
    short = record("gaussian", 0, 92.0)
    fit = replace(short.configuration.fit, steps=10**6)
    longer = record("gaussian", 0, 93.5, best=0.9, label="8 epochs", fit=fit)
    text = tables({"a": longer, "b": short})["1,000 training problems"]
    assert "| Gaussian | 500 | 400 | 1 | 92.0 ± 0.3 | 93.9 |" in text
    assert "| Gaussian | 1,000,000 | 400 | 1 | 93.5 ± 0.3 | 93.9 |" in text
    for runs in ({"a": short, "b": longer}, {"b": longer, "a": short}):
        assert longest_trainings(runs) == {"mosaic gaussian": {1000: [longer]}}


def test_rows_say_which_weights_were_tested():
    """The best on problems of new automata: what is learned of the training automata may still have grown."""
    seeds = {str(seed): record("gaussian", seed, 92.0) for seed in (0, 1)}
    assert "| Gaussian | 500 | 400 to 600 | 2 | 92.0 ± 0.0 |" in tables(seeds)["1,000 training problems"]


def test_losses_that_are_drawn_together_are_of_equal_trainings():
    """A model trained on 100 problems would look bad beside one trained on 1,000."""
    runs = {"few": record("gaussian", 0, 90.0, problems=100), "knn": record("gaussian_knn", 0, 92.0)}
    runs |= {str(seed): record("gaussian", seed, 92.0) for seed in (0, 1)}
    curves = {"few": [3.0, 2.0], "knn": [2.0, 1.5], "0": [1.0, 0.5], "1": [2.0, 1.0]}
    for key, curve in curves.items():
        runs[key].outcome["held_out_loss_by_block"] = curve
    losses = {"mosaic gaussian": [1.5, 0.75], "mosaic gaussian_knn": [2.0, 1.5]}
    assert losses_by_block(runs) == ((1000, 500), losses)


def test_models_of_a_figure_look_different():
    looks = [(look["color"], look["marker"]) for look in styles(NAMES).values()]
    assert len({color for color, _ in looks}) == len({marker for _, marker in looks}) == len(NAMES)
