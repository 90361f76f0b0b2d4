"""The tables of induction: accuracy on successors, and how the training went."""

from collections.abc import Mapping

from tessera.papers.experiment import Record
from tessera.papers.induction.settings import MODELS, InductionSettings
from tessera.papers.tables import markdown, mean_of, over_seeds, settings_table, with_error

# The shares of right successors whose step of training is told.
LEVELS = (0.5, 0.9)
# What the papers say: a layer of memories is enough (Memory Mosaics, section 3), a transformer needs two of attention.
NEEDED_LAYERS = {"mosaic": 1, "transformer": 2, "transformer_rope": 2}
# Bietti et al. 2023, section 3; their model: attention with absolute positions, no feed-forward in the last block.
PUBLISHED = {"width": 128, "tokens of a sequence": 256, "batch": 512}


def by_model(records: Mapping[str, Record]) -> dict[str, list[Record]]:
    """The records of each model's seeds, in the order of `MODELS`."""
    groups = {name: [one for one in records.values() if one.configuration.model == name] for name in MODELS}
    return {name: seeds for name, seeds in groups.items() if seeds}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy, the course of the trainings, settings."""
    groups = by_model(records)
    return {
        "Successors of triggers": _scores(groups),
        "Trainings": _trainings(records),
        "Settings": _settings(groups),
    }


def _scores(groups: Mapping[str, list[Record]]) -> str:
    rows = []
    for name, seeds in groups.items():
        scores = [one.outcome["scores"] for one in seeds]
        cells = [with_error(over_seeds([one[key] for one in scores]), ".3f") for key in ("accuracy", "first_accuracy")]
        cells += [with_error(over_seeds([one[key] for one in scores]), ".3f") for key in ("loss", "other_loss")]
        kind, depth, label = MODELS[name]
        says = "can" if depth >= NEEDED_LAYERS[kind] else "cannot"
        rows.append([label, f"{seeds[0].outcome['parameters']:,}", len(seeds), *cells, f"*{says}*"])
    headings = ["model", "parameters", "seeds", "accuracy from the second occurrence on", "at the first"]
    headings += ["loss from the second on, nats", "loss elsewhere, nats", "the paper says"]
    return markdown(headings, rows)


def step_of(record: Record, level: float) -> int | None:
    """The first validation with at least this share of right successors."""
    return next((step for step, error in record.outcome["training"]["checks"] if 1 - error >= level), None)


def _trainings(records: Mapping[str, Record]) -> str:
    rows = []
    for key, record in records.items():
        steps = [step_of(record, level) for level in LEVELS]
        training = record.outcome["training"]
        cells = ["never" if step is None else f"{step:,}" for step in steps]
        rows.append([key, *cells, f"{1 - training['best']:.3f}", f"{training['seconds'] / 60:.1f}"])
    headings = ["run", *(f"{level:.0%} right at step" for level in LEVELS), "best validation accuracy", "minutes"]
    return markdown(headings, rows)


def _settings(groups: Mapping[str, list[Record]]) -> str:
    first: InductionSettings = next(iter(groups.values()))[0].configuration
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


def mean_accuracy(seeds: list[Record]) -> list[tuple[int, float, float]]:
    """(step, mean share of right successors over seeds, its standard error) of each validation that all seeds have."""
    curves = [dict(one.outcome["training"]["checks"]) for one in seeds]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    estimates = [mean_of([1 - curve[step] for curve in curves]) for step in steps]
    return [(step, one.mean, one.standard_error) for step, one in zip(steps, estimates)]
