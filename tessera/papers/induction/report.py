"""Induction: which models of one and two blocks say again what followed a trigger, and how soon they learn it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.evaluation.task_scores import score_batches
from tessera.models.sizes import num_parameters
from tessera.papers.curves import draw_learning, panels
from tessera.papers.experiment import LIBRARY, Experiment, Record, Run, RunContext, seed_by_seed
from tessera.papers.induction.task import Induction
from tessera.papers.records import by_model, score
from tessera.papers.tables import SettingsRows, markdown, settings_of, with_error
from tessera.papers.task_stage import TaskStage, small_model, train_on_tasks
from tessera.tasks.task import Estimate, TokenExamples
from tessera.training.fit import FitOptions

# Name: model of `MODELS`, blocks, name in tables and figures, and whether the papers say that it can: a layer of
# memories is enough (Memory Mosaics, section 3), a transformer needs two of attention.
MODELS = {
    "mosaic-1": ("mosaic", 1, "Memory Mosaic, 1 block", "can"),
    "transformer-1": ("transformer", 1, "transformer, absolute positions, 1 block", "cannot"),
    "transformer_rope-1": ("transformer_rope", 1, "transformer, rotary positions, 1 block", "cannot"),
    "transformer-2": ("transformer", 2, "transformer, absolute positions, 2 blocks", "can"),
    "transformer_rope-2": ("transformer_rope", 2, "transformer, rotary positions, 2 blocks", "can"),
}
SEEDS = {"smoke": 1, "cpu": 3}
SCORED_AT_ONCE = 128  # sequences
# The shares of right successors whose step of training is told.
LEVELS = (0.5, 0.9)
COLORS = {"mosaic": "tab:purple", "transformer": "tab:blue", "transformer_rope": "tab:orange"}
# Here, and in Bietti et al. 2023, section 3 (attention with absolute positions, no feed-forward in the last block).
SETTINGS: SettingsRows = {
    "width": ("hidden_size", 128),
    "heads": ("num_heads", None),
    "tokens of a sequence": ("task.length", 256),
    "triggers": (lambda records: f"{(task := records[0].configuration.task).num_triggers}, {task.triggers}", None),
    "batch": ("batch_size", 512),
    "steps": ("fit.steps", None),
    "peak learning rate": ("fit.learning_rate", None),
    "test sequences": ("test", None),
}


@dataclass(frozen=True)
class InductionSettings:
    """One training and its test.

    Attributes:
        task: of training, validation and test. batch_size, fit: of the training. validation, test: sequences.
    """

    model: str
    seed: int
    hidden_size: int
    num_heads: int
    task: Induction
    batch_size: int
    fit: FitOptions
    validation: int = 128
    test: int = 1000

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        return Run(f"{model}/seed {seed}", replace(self, model=model, seed=seed), 1.0 + MODELS[model][1])


_FIT = FitOptions(
    1500, 3e-3, warmup_ratio=0.05, weight_decay=0.1, betas=(0.9, 0.95), clip=1.0, scalar_learning_rate_scale=10.0,
    evaluate_every=50,
)  # fmt: skip
BUDGETS = {
    "smoke": InductionSettings(
        "mosaic-1", 0, 16, 2, Induction(16), 8, replace(_FIT, steps=8, evaluate_every=4), validation=8, test=16
    ),
    "cpu": InductionSettings("mosaic-1", 0, 64, 4, Induction(64), 32, _FIT),
}
plan = partial(seed_by_seed, budgets=BUDGETS, seeds=SEEDS, models=MODELS)


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on sequences drawn for each step; test the best weights on others."""
    settings, task = run.configuration, run.configuration.task
    model = build(settings).to(context.device)
    validation = task.sample(settings.validation, 0, "validation")

    def scores_of(examples: TokenExamples) -> dict[str, Estimate]:
        return score_batches(task, [examples], partial(logits_of, model))

    stage = TaskStage("training", (task,), settings.batch_size, settings.fit, settings.seed * 10_000_000)
    trained = train_on_tasks(model, [stage], context, validate=lambda: 1 - scores_of(validation)["accuracy"].mean)
    scores = scores_of(task.sample(settings.test, 0, "test"))
    return {"parameters": num_parameters(model), **trained, "scores": scores}


def build(settings: InductionSettings) -> PreTrainedModel:
    """The model before its training."""
    kind, num_layers, *_ = MODELS[settings.model]
    sizes = {"vocab_size": settings.task.vocab_size, "max_positions": settings.task.length}
    return small_model(settings, kind, num_layers=num_layers, **sizes)


@torch.no_grad()
def logits_of(model: PreTrainedModel, examples: TokenExamples) -> Tensor:
    """What the task's scores take, (B, T, vocabulary), of few examples at a time."""
    rows = examples.tokens.to(model.device).split(SCORED_AT_ONCE)
    return torch.cat([model(input_ids=tokens).logits.cpu() for tokens in rows])


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy, the course of the trainings, settings."""
    scored = {
        "accuracy from the second occurrence on": "accuracy",
        "at the first": "first_accuracy",
        "loss from the second on, nats": "loss",
        "loss elsewhere, nats": "other_loss",
    }
    learned, trained = [], []
    for name, seeds in by_model(records, MODELS).items():
        _, _, title, published = MODELS[name]
        scores = [with_error(score(seeds, "scores", quantity), ".3f") for quantity in scored.values()]
        learned.append([title, f"{seeds[0].outcome['parameters']:,}", len(seeds), *scores, f"*{published}*"])
    for key, record in records.items():
        training = record.outcome["training"]
        steps = [next((f"{n:,}" for n, share in accuracies(record) if share >= level), "never") for level in LEVELS]
        trained.append([key, *steps, f"{1 - training['best']:.3f}", f"{training['seconds'] / 60:.1f}"])
    at_levels = [f"{level:.0%} right at step" for level in LEVELS]
    return {
        "Successors of triggers": markdown(["model", "parameters", "seeds", *scored, "the paper says"], learned),
        "Trainings": markdown(["run", *at_levels, "best validation accuracy", "minutes"], trained),
        "Settings": settings_of(records.values(), SETTINGS),
    }


def accuracies(record: Record) -> list[tuple[int, float]]:
    """(step, share of right successors) of each validation."""
    return [(step, 1 - error) for step, error in record.outcome["training"]["checks"]]


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Right successors against the step of training, of each model."""
    with panels(path, 8, 4.6) as (axis,):
        for name, seeds in by_model(records, MODELS).items():
            kind, _, title, published = MODELS[name]
            line = "-" if published == "can" else "--"
            draw_learning(axis, list(map(accuracies, seeds)), title, color=COLORS[kind], ls=line)
        axis.axhline(1 / seeds[0].configuration.task.vocab_size, color="gray", lw=0.8, ls=":", label="guess")
        axis.set(xlabel="step of training", ylabel="right successors", ylim=(0, 1.02))
        axis.set_title("Successor of a trigger, from its second occurrence on\nthick: mean over seeds, thin: each seed")


EXPERIMENT = Experiment(LIBRARY["induction"], InductionSettings, plan, execute, tables, plot, tuple(MODELS))
