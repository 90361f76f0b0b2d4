"""Induction: accuracy on the successors of triggers, and while the models learn."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tessera.papers.curves import draw_learning, panels
from tessera.papers.experiment import Record
from tessera.papers.induction.settings import MODELS
from tessera.papers.tables import grouped, score, settings_table, table_of, with_error

# The shares of right successors whose step of training is told.
LEVELS = (0.5, 0.9)
# What the papers say: a layer of memories is enough (Memory Mosaics, section 3), a transformer needs two of attention.
NEEDED_LAYERS = {"mosaic": 1, "transformer": 2, "transformer_rope": 2}
COLORS = {"mosaic": "tab:purple", "transformer": "tab:blue", "transformer_rope": "tab:orange"}
# Bietti et al. 2023, section 3; their model: attention with absolute positions, no feed-forward in the last block.
PUBLISHED = {"width": 128, "tokens of a sequence": 256, "batch": 512}


def by_model(records: Mapping[str, Record]) -> dict[str, list[Record]]:
    """The records of each model's seeds, in the order of `MODELS`."""
    return grouped(records, lambda settings: settings.model, MODELS)


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy, the course of the trainings, settings."""
    groups = by_model(records)
    return {
        "Successors of triggers": table_of(
            groups.items(),
            {
                "model": lambda row: MODELS[row[0]][2],
                "parameters": lambda row: f"{row[1][0].outcome['parameters']:,}",
                "seeds": lambda row: len(row[1]),
                "accuracy from the second occurrence on": _cell("accuracy"),
                "at the first": _cell("first_accuracy"),
                "loss from the second on, nats": _cell("loss"),
                "loss elsewhere, nats": _cell("other_loss"),
                "the paper says": lambda row: _published(*MODELS[row[0]]),
            },
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
        "Settings": _settings(groups),
    }


def _cell(name: str) -> Callable[[tuple[str, list[Record]]], str]:
    return lambda row: with_error(score(row[1], "scores", name), ".3f")


def _published(kind: str, num_layers: int, label: str) -> str:
    return "*can*" if num_layers >= NEEDED_LAYERS[kind] else "*cannot*"


def accuracies(record: Record) -> list[tuple[int, float]]:
    """(step, share of right successors) of each validation."""
    return [(step, 1 - error) for step, error in record.outcome["training"]["checks"]]


def _step_cell(level: float) -> Callable[[tuple[str, Record]], str]:
    """The first validation with at least this share of right successors."""
    return lambda row: next((f"{step:,}" for step, share in accuracies(row[1]) if share >= level), "never")


def _settings(groups: Mapping[str, list[Record]]) -> str:
    first = next(iter(groups.values()))[0].configuration
    ours = {
        "width": first.hidden_size,
        "heads": first.num_heads,
        "tokens of a sequence": first.task.length,
        "triggers": f"{first.task.num_triggers}, {first.task.triggers}",
        "batch": first.batch_size,
        "steps": first.fit.steps,
        "peak learning rate": first.fit.learning_rate,
        "test sequences": first.test,
    }
    return settings_table(ours, PUBLISHED)


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Right successors against the step of training, of each model."""
    with panels(path, 8, 4.6) as (axis,):
        for name, seeds in by_model(records).items():
            kind, num_layers, label = MODELS[name]
            line = "-" if num_layers >= NEEDED_LAYERS[kind] else "--"
            draw_learning(axis, [accuracies(one) for one in seeds], label, color=COLORS[kind], ls=line)
        chance = 1 / seeds[0].configuration.task.vocab_size
        axis.axhline(chance, color="gray", lw=0.8, ls=":", label="guess")
        axis.set(xlabel="step of training", ylabel="right successors", ylim=(0, 1.02))
        axis.set_title("Successor of a trigger, from its second occurrence on\nthick: mean over seeds, thin: each seed")
