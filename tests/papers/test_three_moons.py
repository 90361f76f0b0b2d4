"""Three moons: the published sequences, exact continuations, and that the criteria mean what they say."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from tessera.kernels import Triweight
from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.papers.experiment import RunContext, RunSelection
from tessera.papers.three_moons import run as module
from tessera.papers.three_moons.report import EXPERIMENT, dedication, disentangled, gains, levels
from tessera.papers.three_moons.run import BUDGETS, VARIANTS, weights
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
from tests.tolerances import REORDERED_FLOAT64


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("kernel", [None, Triweight()], ids=["gaussian", "triweight"])
def test_continuations_are_generations_from_every_context(heads, kernel, monkeypatch):
    monkeypatch.setattr(module, "SEQUENCES", 2)
    monkeypatch.setattr(module, "CONTEXTS", 7)
    norm_eps = None if kernel is None else 1e-3
    memory = LinearContextualMemory(
        6, heads, 6 // heads, kernel=kernel or "gaussian", norm_eps=norm_eps, dtype=torch.float64
    )
    examples = ThreeMoons(context=30, horizon=5).sample(3, 0)
    x = torch.cat([examples.observations, examples.future], 1).double()
    slow = [deviation(memory.generate(x[:, :c], 5), x[:, c : c + 5]) for c in range(1, 31)]
    errors = module.continuation_errors(memory, x, 5)
    torch.testing.assert_close(errors, torch.stack(slow, 1), rtol=0, atol=REORDERED_FLOAT64)


def test_repeating_the_last_observation_by_hand():
    x = torch.arange(12.0).view(1, 6, 2).repeat(3, 1, 1)
    # Two coordinates that grow by 2 at each step: 2, 4 and 6 away after one, two and three steps.
    torch.testing.assert_close(module.repetition_errors(x, 3), torch.full((3, 3), 4.0))


def test_continuations_refuse_another_delay():
    refused("must have delay 1", module.continuation_errors, LinearContextualMemory(delay=2), torch.zeros(1, 5, 6), 2)


def test_rate_factor_takes_the_bias_correction_out_of_adamw():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=1e-2, weight_decay=0.0, eps=0.0)
    expected, first, second = weight.detach().clone(), 0.0, 0.0
    for step in range(30):
        weight.grad = torch.tensor([math.cos(step), 3.0 + step], dtype=torch.float64)
        first, second = 0.9 * first + 0.1 * weight.grad, 0.999 * second + 0.001 * weight.grad**2
        expected -= 1e-2 * first / second.sqrt()
        optimizer.param_groups[0]["lr"] = 1e-2 * module.uncorrected((0.9, 0.999), step)
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected, rtol=0, atol=REORDERED_FLOAT64)


def weights_with(phi, psi, z):
    memory = LinearContextualMemory(6, 3, 2)
    for layer, matrix in zip((memory.key_extractor, memory.value_extractor, memory.output), (phi, psi, z)):
        layer.weight.data = torch.as_tensor(matrix, dtype=torch.complex64)
    return weights(memory)


def test_dedication_reads_heads_in_rows_and_in_the_columns_of_the_output():
    permutation = torch.eye(3)[[1, 2, 0]]
    turned = 1j * permutation + 0.1
    assert dedication(weights_with(turned, permutation, permutation.T)) == [1, 2, 0]
    assert dedication(weights_with(turned, permutation, permutation)) == [None, None, None]
    mixed = torch.eye(3)
    mixed[1] = torch.tensor([0.4, 1.0, 0.0])
    assert dedication(weights_with(torch.eye(3), mixed, torch.eye(3))) == [0, None, 2]


def test_gains_of_made_up_matrices():
    """A prediction one step late or early shows as the angle that the moon moves in one step."""
    step = torch.tensor(0.1)
    ahead = torch.polar(torch.ones(3), -step.expand(3)).diag()
    ahead[0, 2] = 0.25
    measured = gains(weights_with(2 * torch.eye(3), torch.eye(3), ahead))
    assert measured == pytest.approx({"turn": 0.1, "leak": 0.25, "width": 0.5 / 50**0.5})
    moons = ThreeMoons(context=1, horizon=1, periods=(1.0, 2.0, 3.0)).sample(1, 0, "test")
    now, then = (torch.view_as_complex(x[0, 0].view(3, 2)) for x in (moons.observations, moons.future))
    assert ((then / now).angle() < 0).all(), "angles of observations fall with time"


def test_disentangled_needs_three_moons():
    assert disentangled([2, 0, 1])
    assert not disentangled([0, 0, 1])
    assert not disentangled([0, 1, None])


def test_levels_of_a_made_up_curve():
    # Periods of 400 / 9 observations each and twice that: 45 observations early, then 0.01, one relapse.
    curve = [0.5] * 100 + [0.01] * 200
    names = ("early", "after_slowest", "after_common", "accurate_from")
    assert levels(curve, (1.0, 1.0, 2.0)) == dict(zip(names, (0.5, 1.0, 1.0, 101)))
    curve[250] = 0.4
    assert levels(curve, (1.0, 1.0, 2.0))["accurate_from"] == 252
    assert levels([0.5] * 60 + [float("nan")] * 60, (1.0, 1.0, 2.0))["accurate_from"] is None
    assert levels(curve[:60] + [0.5], (1.0, 1.0, 2.0)) == dict(zip(names, (0.5, None, None, None)))


def test_an_error_that_explodes_early_is_no_measure():
    """Of a network whose continuations explode, what is a tenth of that is not accurate."""
    curve = [200.0] * 70 + [18.0] * 230
    measured = levels(curve, (1.5, 2.0, 3.0))
    assert measured["early"] == pytest.approx(200.0)
    assert measured["accurate_from"] is None
    assert measured["after_slowest"] == pytest.approx(18.0 * math.pi / 2)


def settings_of(name="three_heads", **changes):
    return replace(BUDGETS["smoke"].run(name, 2).configuration, **changes)


def test_the_loss_is_clipped_and_counts_from_where_it_is_told():
    settings = settings_of()
    part = replace(settings.first_round, batch_size=3, first_step=40, loss_from=12)
    memory, task = module.build(replace(settings, seed=0)), ThreeMoons(context=30, horizon=1)
    loss = module.batch_loss(memory, task, settings, part, 5)
    examples = task.sample(3, 2_000_045)
    x = torch.cat([examples.observations, examples.future], 1)
    raw = memory(x[:, :-1])[0] - x[:, 1:]
    torch.testing.assert_close(loss, raw.clamp(-0.5, 0.5)[:, 12:].square().mean())
    assert (raw.abs() > 0.5).any()
    unclipped = module.batch_loss(memory, task, replace(settings, clip=None), part, 5)
    torch.testing.assert_close(unclipped, raw[:, 12:].square().mean())


@pytest.mark.parametrize("name", ["W_phi", "W_psi", "W_z"])
def test_a_matrix_fixed_to_the_identity_is_not_trained(name, tmp_path):
    (key,) = [key for key, variant in VARIANTS.items() if variant.changes.get("identity") == (name,)]
    (run,) = EXPERIMENT.runs(RunSelection("smoke", models=(key,)))
    outcome = EXPERIMENT.execute(run, RunContext(tmp_path))
    assert outcome["real_parameters"] == 36
    eye = torch.view_as_real(torch.eye(3, dtype=torch.complex64)).tolist()
    assert [one for one, matrix in outcome["second_round"]["weights"].items() if matrix == eye] == [name]


def test_real_matrices_have_twice_the_parameters_and_heads_all_the_same(tmp_path):
    (run,) = EXPERIMENT.runs(RunSelection("smoke", models=("three_heads_real",)))
    outcome = EXPERIMENT.execute(run, RunContext(tmp_path))
    assert outcome["real_parameters"] == 108
    assert len(dedication(outcome["first_round"]["weights"])) == 3
    blocks = torch.block_diag(*[torch.tensor([[0.0, -2.0], [2.0, 0.0]])] * 3).tolist()
    assert dedication(dict.fromkeys(("W_phi", "W_psi", "W_z"), blocks)) == [0, 1, 2]


def test_identity_matrices_predict_once_everything_was_seen():
    """The paper's analytic solution: after the common period every observation has been seen before."""
    memory = module.build(settings_of("three_heads_identity", inverse_bandwidth=5e3))
    task = ThreeMoons(context=300, horizon=5, periods=(1.5, 2.0, 3.0))
    examples = task.sample(2, 0)
    x = torch.cat([examples.observations, examples.future], 1)
    errors = module.continuation_errors(memory, x, 5).mean(0)
    slowest = math.ceil(3 * 400 / 9)
    assert errors[slowest + 5 :].max() < 0.05
    assert errors[: slowest // 3].mean() > 0.1


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


def test_scores_follow_their_formula():
    future = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]])
    error = deviation(future + torch.tensor([[0.1], [0.3]]), future)
    torch.testing.assert_close(error, torch.tensor([0.2]))
    examples = MoonExamples(future, future, torch.ones(1, 3), torch.zeros(1))
    scores = ThreeMoons().scores(future + torch.tensor([[0.1], [0.3]]), examples)
    torch.testing.assert_close(scores, {"skill": 1 - error * torch.pi / 2, "error": error})
