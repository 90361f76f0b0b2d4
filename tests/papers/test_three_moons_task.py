"""Three moons: the published sequences, the triples, the scores. (The contract tests are in test_contract.py.)"""

from itertools import combinations

import pytest
import torch

from tessera.papers.three_moons.task import (
    CANDIDATES,
    HELD_OUT,
    STEP,
    TRAINING,
    MoonExamples,
    ThreeMoons,
    common_period,
    deviation,
    positions_of,
)
from tests.golden_files import load
from tests.refusals import refused
from tests.tasks.cases import case_of


def test_published_sequences_bit_by_bit():
    tensors, description = load("G_moons", "G0_planets_data")
    for fact in description["sequences"]:
        periods, start = torch.tensor([fact["period_triple"]]), torch.tensor([fact["start_point"]])
        actual = positions_of(periods, start, 801)[0]
        assert torch.equal(actual[:-1], tensors[f"seq{fact['sequence']}/x"])
        assert torch.equal(actual[1:], tensors[f"seq{fact['sequence']}/y"])


def test_triples_are_those_of_smallest_common_period():
    ordered = sorted(common_period(triple) for triple in combinations(CANDIDATES, 3))
    assert sorted(common_period(triple) for triple in TRAINING + HELD_OUT) == ordered[:9]
    assert len(set(TRAINING + HELD_OUT)) == 9
    assert pytest.approx(400 / 9) == 1 / STEP


def test_training_draws_every_training_triple_and_nothing_else():
    task = ThreeMoons(context=2, horizon=1)
    assert case_of(task).held_apart(task.sample(400, 0)) == set(TRAINING)
    for split in ("validation", "test"):
        assert case_of(task).held_apart(task.sample(50, 0, split)) == set(HELD_OUT)


def test_start_points_are_the_published_range():
    start = ThreeMoons(context=1, horizon=1).sample(200_000, 0).start
    assert (start.min(), start.max()) == (0, 8398)


def test_sequences_of_one_triple_and_the_cut():
    task = ThreeMoons(context=5, horizon=3, periods=(1.5, 2.0, 3.0))
    examples = task.sample(4, 1)
    assert examples.observations.shape == (4, 5, 6)
    assert examples.future.shape == (4, 3, 6)
    assert case_of(task).held_apart(examples) == {(1.5, 2.0, 3.0)}
    positions = positions_of(examples.periods, examples.start, 8)
    assert torch.equal(torch.cat([examples.observations, examples.future], 1), positions)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ThreeMoons(context=0), "context must be at least 1"),
        (lambda: ThreeMoons(horizon=5000), "horizon must be at least 1, and at most 5000 - context"),
        (lambda: ThreeMoons(periods=(1.0, 2.0, 3.0)).sample(1, 0), "periods must be one of the train triples"),
        (lambda: ThreeMoons(periods=TRAINING[0]).sample(1, 0, "test"), "periods must be one of the test triples"),
        (lambda: ThreeMoons().sample(1, 0, "tset"), "split must be one of train, validation, test"),
    ],
)
def test_refusals(call, message):
    refused(message, call)


def test_scores_follow_their_formula():
    future = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    error = deviation(future + torch.tensor([[0.1], [0.3]]), future)
    torch.testing.assert_close(error, torch.tensor([0.2]))
    examples = MoonExamples(future, future, torch.ones(1, 3), torch.zeros(1))
    scores = ThreeMoons().scores(future + torch.tensor([[0.1], [0.3]]), examples)
    torch.testing.assert_close(scores, {"skill": 1 - error * torch.pi / 2, "error": error})
