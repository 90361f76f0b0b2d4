"""The training loop of the experiments: the same weights whether or not it was killed, the best ones, early ends."""

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from tessera.base.errors import TesseraError
from tessera.training.checkpoint import Checkpoints
from tessera.training.distributed import Processes
from tessera.training.fit import FitOptions, ReportLog, fit
from tessera.training.loop import StagePlan, train_stages, unreported

OPTIONS = FitOptions(steps=30, learning_rate=0.05, weight_decay=0.1, evaluate_every=4, checkpoint_seconds=0.0)


class Killed(Exception):
    pass


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1))


def data(step):
    return torch.randn(16, 3, generator=torch.Generator().manual_seed(step))


def train(net, folder, options=OPTIONS, kill_at=None, **arguments):
    def loss_at(step):
        if step == kill_at:
            raise Killed
        x = data(step)
        return (net(x) - x.sum(1, keepdim=True)).square().mean()

    return fit(net, loss_at, options, folder, **arguments)


def validation(net):
    x = data(10**6)
    return (net(x) - x.sum(1, keepdim=True)).square().mean().item()


def test_a_killed_training_ends_with_the_same_weights(tmp_path):
    at_once, parts = model(), model()
    torch.manual_seed(5)
    first = train(at_once, tmp_path / "whole", validate=lambda: validation(at_once))
    torch.manual_seed(5)
    for step in (7, 19):
        with pytest.raises(Killed):
            train(parts, tmp_path / "parts", kill_at=step, validate=partial(validation, parts))
        torch.manual_seed(99)
        parts = model()
    second = train(parts, tmp_path / "parts", validate=lambda: validation(parts))
    assert all(torch.equal(a, b) for a, b in zip(at_once.parameters(), parts.parameters()))
    assert {**first.outcome(), "seconds": 0.0} == {**second.outcome(), "seconds": 0.0}


class Alone(Processes):
    """One of two processes, beside which there is no other."""

    def all_reduce(self, tensors):
        pass


@pytest.mark.parametrize("count", [1, 2])
def test_each_of_several_processes_draws_its_own_random_numbers_also_after_a_kill(count, tmp_path):
    drawn = {}
    for rank, kill_at in ((0, None), (1, None), (1, 5)):
        numbers, kills = drawn.setdefault((rank, kill_at), {}), [kill_at]
        while len(numbers) < 8:
            net = model()

            def loss_at(step, net=net, numbers=numbers, kills=kills):
                if step in kills:
                    kills.clear()
                    raise Killed
                numbers[step] = torch.rand(()).item()
                return net(data(step)).square().mean()

            plan = StagePlan(replace(OPTIONS, steps=8), loss_at)
            checkpoints = Checkpoints(tmp_path / f"{rank} {kill_at}", net)
            with suppress(Killed):
                train_stages(net, [plan], checkpoints, ReportLog([plan], unreported), processes=Alone(rank, count))
    assert drawn[1, None] == drawn[1, 5]
    assert len(set(drawn[0, None].values())) == 8
    shared = set(drawn[0, None].values()) & set(drawn[1, None].values())
    assert len(shared) == (8 if count == 1 else 0)


def test_the_best_weights_win_although_it_was_killed_after_them(tmp_path):
    net, seen = model(), []

    def validate(values):
        seen.append(net[0].weight.clone())
        return next(values)

    with pytest.raises(Killed):
        train(net, tmp_path, kill_at=9, validate=partial(validate, iter([3.0, 1.0])))
    net = model()
    result = train(net, tmp_path, validate=partial(validate, iter([2.0, 5.0, 4.0, 6.0, 7.0, 8.0])))
    assert (result.best, result.best_step, len(result.checks)) == (1.0, 8, 8)
    assert torch.equal(net[0].weight, seen[1])
    assert not torch.equal(net[0].weight, seen[2])


def test_a_target_and_patience_end_it_early_for_good(tmp_path):
    net = model()
    values = iter([3.0, 2.0, 0.5])
    assert train(net, tmp_path / "target", validate=lambda: next(values), target=0.5).steps == 12
    assert train(net, tmp_path / "target", kill_at=12, validate=lambda: 9.0, target=0.5).steps == 12
    impatient = FitOptions(steps=30, learning_rate=0.05, evaluate_every=4, patience=2)
    values = iter([1.0, 2.0, 3.0, 0.0])
    assert train(net, tmp_path / "patience", impatient, validate=lambda: next(values)).steps == 12


def test_it_learns_and_reports(tmp_path):
    net, reports = model(), []
    options = FitOptions(steps=200, learning_rate=0.02)

    def loss_at(step):
        return (net(data(step)) - data(step).sum(1, keepdim=True)).square().mean()

    result = fit(net, loss_at, options, tmp_path, report=lambda share, note: reports.append((share, note)))
    assert result.loss < 1.0
    assert validation(net) < 0.3
    assert [share for share, _ in reports] == pytest.approx([1 / 200, *(step / 200 for step in range(20, 201, 20))])


def test_a_loss_that_is_not_finite_stops_it(tmp_path):
    net = model()
    with pytest.raises(TesseraError, match="training: loss must be finite; got NaN or infinity at step 1"):
        fit(net, lambda step: net(data(step)).sum() * math.nan, FitOptions(30, 0.1), tmp_path)


def test_some_scalars_learn_at_rates_of_their_own(tmp_path):
    class Scaled(nn.Module):
        scalar_parameters = ("scale", "offset")

        def __init__(self):
            super().__init__()
            self.scale, self.offset = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

        def forward(self, x):
            return self.scale * x.sum(1, keepdim=True) + self.offset

    scaled = Scaled()
    scales = {"scale": 0.0, "named_in_other_models": 3.0}
    train(scaled, tmp_path, FitOptions(steps=3, learning_rate=0.05, scalar_learning_rate_scales=scales))
    assert scaled.scale.item() == 1.0
    assert scaled.offset.item() != 1.0
