"""An experiment of no length, whose runs can be told to fail."""

from dataclasses import dataclass

import torch
from torch import nn

from tessera.base.errors import TesseraError
from tessera.papers.experiment import Experiment, Run
from tessera.papers.tables import markdown, new_figure
from tessera.training.fit import FitOptions, fit


@dataclass(frozen=True)
class ToySettings:
    model: str
    seed: int
    steps: int


class Toy(Experiment):
    """Fits a line from each of its models' seeds; `failing` names runs that raise, `executed` counts calls."""

    title, source = "A line", "none"
    settings = ToySettings
    models = ("straight", "steep")

    def __init__(self):
        self.executed, self.failing, self.steps = [], set(), 5

    def runs(self, selection):
        names = self.select_models("reproduce toy", selection)
        return [
            Run(f"{name}/seed {seed}", ToySettings(name, seed, self.steps))
            for seed in range(selection.seeds or 2)
            for name in names
        ]

    def execute(self, run, context):
        self.executed.append(run.key)
        if run.key in self.failing:
            raise TesseraError(f"{run.key}: failed")
        torch.manual_seed(run.configuration.seed)
        model = nn.Linear(1, 1)
        result = fit(
            model,
            lambda step: loss(model, step),
            FitOptions(run.configuration.steps, 0.1),
            context.folder,
            report=context.report,
        )
        return result.outcome()

    def tables(self, records):
        return {"Losses": markdown(["run", "loss"], [[key, one.outcome["loss"]] for key, one in records.items()])}

    def plot(self, records, path):
        figure = new_figure(4, 3)
        figure.subplots().plot([record.outcome["loss"] for record in records.values()])
        figure.savefig(path)


def loss(model, step):
    x = torch.rand(16, 1, generator=torch.Generator().manual_seed(step))
    return (model(x) - 2 * x).square().mean()
