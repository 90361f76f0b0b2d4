"""What is trained, scored and shown in the induction experiment."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import one_hot

from tessera.models.sizes import num_parameters
from tessera.papers.curves import learning_curve
from tessera.papers.experiment import Record, RunSelection
from tessera.papers.induction.report import EXPERIMENT, SCORED_AT_ONCE, accuracies, build, logits_of
from tessera.papers.induction.task import Induction, InductionDetails, shakespeare_bigrams
from tessera.papers.induction.task import drawn as drawn_with
from tessera.tasks.task import TokenExamples
from tessera.training.fit import FitOptions, fit


def test_models_have_as_many_parameters_for_each_block():
    sizes = {}
    for run in EXPERIMENT.runs(RunSelection("cpu", seeds=1)):
        model = build(run.configuration)
        sizes[run.configuration.model] = num_parameters(model)
    assert len(sizes) == 5
    assert sizes["mosaic-1"] == pytest.approx(sizes["transformer_rope-1"], rel=0.03)
    assert sizes["transformer-1"] - sizes["transformer_rope-1"] == 64 * 64, "learned positions"


def test_scores_do_not_depend_on_how_many_are_scored_at_once():
    settings = EXPERIMENT.runs(RunSelection("smoke"))[0].configuration
    model, task = build(settings).eval(), settings.task
    examples = task.sample(SCORED_AT_ONCE + 3, 0)
    at_once = task.scores(model(input_ids=examples.tokens).logits, examples)
    for name, values in task.scores(logits_of(model, examples), examples).items():
        torch.testing.assert_close(values, at_once[name], equal_nan=True)


@pytest.mark.grid
def test_a_block_of_memories_learns_induction(tmp_path):
    settings = EXPERIMENT.runs(RunSelection("smoke"))[0].configuration
    task = Induction(32, 3)
    model = build(replace(settings, task=task, hidden_size=32))
    options = FitOptions(200, 1e-2, warmup_ratio=0.05, clip=1.0, scalar_learning_rate_scale=10.0)

    def loss_at(step):
        batch = task.sample(16, step)
        return model(input_ids=batch.tokens, labels=batch.labels).loss

    fit(model, loss_at, options, tmp_path)
    examples = task.sample(64, 0, "test")
    assert task.scores(logits_of(model, examples), examples)["accuracy"].nanmean() > 0.9


def test_curves_are_means_over_the_validations_that_all_seeds_have():
    seeds = [Record(None, {"training": {"checks": checks}}, {}) for checks in ([[50, 0.8], [100, 0.05]], [[50, 0.6]])]
    curve = learning_curve([accuracies(seed) for seed in seeds])
    assert {step: round(point.mean, 6) for step, point in curve.items()} == {50: 0.3}


def test_the_bigrams_are_those_of_tiny_shakespeare():
    bigrams = shakespeare_bigrams()
    assert (len(bigrams.characters), bigrams.counts.sum().item()) == (65, 1_115_394 - 1)
    assert "".join(bigrams.characters[i] for i in Induction(16, 5).sample(1, 0).details.triggers[0]) == " etoa"
    q, u = map(bigrams.characters.index, "qu")
    assert bigrams.counts[q].argmax() == u
    assert (bigrams.counts.sum(1) > 0).all(), "something follows every character"


def test_characters_follow_each_other_as_often_as_in_the_table():
    bigrams = shakespeare_bigrams()
    i = bigrams.characters.index("h")
    uniform = (torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000
    drawn = drawn_with(bigrams.counts[torch.full((100_000,), i)], uniform).bincount(minlength=65)
    expected = bigrams.counts[i] / bigrams.counts[i].sum()
    assert ((drawn / 100_000 - expected).abs() <= 2e-5).all()
    assert (drawn[bigrams.counts[i] == 0] == 0).all()
    first = drawn_with(bigrams.counts.sum(1), uniform).bincount(minlength=65) / 100_000
    assert (first - bigrams.counts.sum(1) / bigrams.counts.sum()).abs().max() <= 2e-5


@pytest.mark.parametrize("triggers", ["frequent", "drawn"])
def test_a_trigger_is_followed_by_its_successor_and_the_rest_by_bigrams(triggers):
    examples, bigrams = Induction(200, 3, triggers).sample(40, 0), shakespeare_bigrams()
    details = examples.details
    for tokens, keys, values in zip(examples.tokens, details.triggers, details.successors):
        assert len(set(keys.tolist())) == 3
        successor = dict(zip(keys.tolist(), values.tolist()))
        for now, after in zip(tokens.tolist(), tokens[1:].tolist()):
            assert after == successor[now] if now in successor else bigrams.counts[now, after] > 0
    assert len(details.triggers.unique(dim=0)) == (1 if triggers == "frequent" else 40)
    assert len(details.successors.unique(dim=0)) == 40
    assert details.successors.unique().numel() > 50, "successors are drawn from all characters"


def test_scores_of_a_sequence_by_hand():
    # Triggers 1 and 2; 1 is followed by 5, 2 by 1.
    tokens = torch.tensor([[1, 5, 2, 1, 5, 1, 5, 7, 2, 1]])
    task = Induction(10, 2)
    examples = TokenExamples(tokens, tokens, InductionDetails(torch.tensor([[1, 2]]), torch.tensor([[5, 1]])))
    assert task.occurrences(examples).tolist() == [[1, 0, 1, 2, 0, 3, 0, 0, 2, 4]]
    right = one_hot(tokens.roll(-1, 1), 65).double()
    right[0, 3] = 0  # the second time of trigger 1 is not known,
    right[0, 2] = right[0, 7] = 0  # nor the first of trigger 2 or what follows 7
    scores = {name: value.item() for name, value in task.scores(20 * right, examples).items()}
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["first_accuracy"] == 0.5
    uniform = torch.tensor(65.0).log().item()
    assert scores["loss"] == pytest.approx(uniform / 3, abs=1e-6)
    assert scores["other_loss"] == pytest.approx(uniform / 4, abs=1e-6)
