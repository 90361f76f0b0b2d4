"""Induction: accuracy on the successors of triggers, and while the models learn."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tessera.papers.curves import draw_learning, panels
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.induction.run import MODELS, InductionSettings, execute, plan
from tessera.papers.tables import SettingsRows, by_model, grid_table, score, settings_of, table_of, with_error

# The shares of right successors whose step of training is told.
LEVELS = (0.5, 0.9)
# What the papers say: a layer of memories is enough (Memory Mosaics, section 3), a transformer needs two of attention.
NEEDED_LAYERS = {"mosaic": 1, "transformer": 2, "transformer_rope": 2}
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


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy, the course of the trainings, settings."""
    groups = by_model(records, MODELS)
    rows = {
        name: (MODELS[name][2], f"{seeds[0].outcome['parameters']:,}", len(seeds)) for name, seeds in groups.items()
    }
    return {
        "Successors of triggers": grid_table(
            ["model", "parameters", "seeds"],
            rows,
            {
                "accuracy from the second occurrence on": "accuracy",
                "at the first": "first_accuracy",
                "loss from the second on, nats": "loss",
                "loss elsewhere, nats": "other_loss",
                "the paper says": "",
            }.items(),
            lambda name, quantity: (
                with_error(score(groups[name], "scores", quantity), ".3f") if quantity else f"*{_published(name)}*"
            ),
        ),
        "Trainings": table_of(
            records.items(),
            {
                "run": lambda row: row[0],
                **{f"{level:.0%} right at step": _step_cell(level) for level in LEVELS},
                "best validation accuracy": lambda row: f"{1 - row[1].outcome['training']['best']:.3f}",
                "minutes": lambda row: f"{row[1].outcome['training']['seconds'] / 60:.1f}",
            },
        ),
        "Settings": settings_of(records.values(), SETTINGS),
    }


def _published(name: str) -> str:
    kind, num_layers, _ = MODELS[name]
    return "can" if num_layers >= NEEDED_LAYERS[kind] else "cannot"


def accuracies(record: Record) -> list[tuple[int, float]]:
    """(step, share of right successors) of each validation."""
    return [(step, 1 - error) for step, error in record.outcome["training"]["checks"]]


def _step_cell(level: float) -> Callable[[tuple[str, Record]], str]:
    """The first validation with at least this share of right successors."""
    return lambda row: next((f"{step:,}" for step, share in accuracies(row[1]) if share >= level), "never")


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Right successors against the step of training, of each model."""
    with panels(path, 8, 4.6) as (axis,):
        for name, seeds in by_model(records, MODELS).items():
            line = "-" if _published(name) == "can" else "--"
            draw_learning(axis, list(map(accuracies, seeds)), MODELS[name][2], color=COLORS[MODELS[name][0]], ls=line)
        chance = 1 / seeds[0].configuration.task.vocab_size
        axis.axhline(chance, color="gray", lw=0.8, ls=":", label="guess")
        axis.set(xlabel="step of training", ylabel="right successors", ylim=(0, 1.02))
        axis.set_title("Successor of a trigger, from its second occurrence on\nthick: mean over seeds, thin: each seed")


EXPERIMENT = Experiment(LIBRARY["induction"], InductionSettings, plan, execute, tables, plot, tuple(MODELS))
