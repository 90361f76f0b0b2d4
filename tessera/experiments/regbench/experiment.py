"""RegBench: which models learn regular languages from the context, and from how many examples they learn to."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.experiments.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection
from tessera.experiments.regbench.batches import Batches, mean_loss, scores_of
from tessera.experiments.regbench.figure import draw
from tessera.experiments.regbench.plan import COUNTING, MODELS, runs_of
from tessera.experiments.regbench.settings import Setting
from tessera.experiments.regbench.summary import points
from tessera.experiments.regbench.table import table
from tessera.kernels import kernel_names
from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.tasks.regbench import RegBench
from tessera.tasks.regbench.ngram_baseline import ngram_log_probabilities
from tessera.tasks.task import TokenExamples, estimate
from tessera.training.fit import fit


class RegBenchExperiment(Experiment):
    """Sparse Attention as Compact Kernel Regression, table 1; Memory Mosaics, figure 9 and table 3."""

    title = "RegBench: in-context learning of regular languages"
    source = "Sparse Attention as Compact Kernel Regression, table 1; Memory Mosaics, section 7 and table 3"
    models = (*MODELS, COUNTING)
    kernels = tuple(kernel_names())

    def runs(self, selection: RunSelection) -> list[Run]:
        """All kernels and the transformer at 1,000 problems first, then other seeds, then more problems."""
        return runs_of(selection)

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train on `problems` automata; score the best weights on held-out ones and on their fresh strings."""
        asked = run.configuration
        setting = Setting(**{field.name: asked[field.name] for field in fields(Setting)})
        task = RegBench()
        if asked["model"] == COUNTING:
            return _untrained(task, setting, asked["symbols"])
        train = task.sample(asked["problems"], asked["seed"])
        validation = task.sample(setting.validation, 0, "validation")
        model = build_small_model(
            asked["model"],
            vocab_size=task.vocab_size,
            hidden_size=setting.hidden_size,
            num_layers=setting.num_layers,
            num_heads=setting.num_heads,
            kernel=asked["kernel"] or "gaussian",
            seed=asked["seed"],
            max_positions=task.max_tokens,
        ).to(context.device)
        batches = Batches(train, setting.batch_size, asked["seed"], context.device)
        options = setting.options(asked["problems"])
        done = fit(
            model,
            lambda step: model(**batches.at(step)).loss,
            options,
            context.folder,
            report=context.report,
            validate=lambda: mean_loss(model, validation),
        )
        return {
            "parameters": num_parameters(model),
            "epochs": round(done.steps / batches.per_epoch, 2),
            "training": done.outcome(),
            "held_out": _scored(model, task, task.sample(setting.test, 0, "test")),
            "in_distribution": _scored(model, task, _known(task, train, setting.test)),
        }

    def table(self, runs: Mapping[str, Record]) -> str:
        """See `table.py`."""
        return table(runs)

    def plot(self, runs: Mapping[str, Record], path: Path) -> None:
        """See `figure.py`."""
        draw(points(runs), path)


def _untrained(task: RegBench, setting: Setting, symbols: int) -> dict[str, Any]:
    """A yardstick: counts of what followed the last `symbols` symbols (or fewer) in the problem itself."""
    examples = task.sample(setting.test, 0, "test")
    scores = _estimates(task.scores(ngram_log_probabilities(task, examples, symbols), examples))
    none = {"best": 0.0, "steps": 0, "seconds": 0.0}
    return {"parameters": 0, "epochs": 0.0, "training": none, "held_out": scores, "in_distribution": None}


def _known(task: RegBench, train: TokenExamples, count: int) -> TokenExamples:
    rows = torch.arange(min(count // 2, len(train)))
    return task.fresh_strings(task.select(train, rows), seed=1)


def _scored(model: Any, task: RegBench, examples: TokenExamples) -> dict[str, dict[str, float]]:
    return _estimates(scores_of(model, task, examples))


def _estimates(scores: dict[str, Tensor]) -> dict[str, dict[str, float]]:
    """Mean and standard error of each score in per cent."""
    return {name: estimate(100 * values)._asdict() for name, values in scores.items()}


EXPERIMENTS.add("regbench", RegBenchExperiment())
