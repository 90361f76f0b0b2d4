"""ARMT on language: bits per byte by segment, differences on the same texts, trainings, settings."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.papers.armt_language.run import CONTINUED, MODELS, SegmentSettings, execute, plan
from tessera.papers.curves import panels
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.tables import (
    SettingsRows,
    markdown,
    num_seeds,
    over_seeds,
    settings_of,
    spread,
    stages_table,
    with_error,
)
from tessera.tasks.task import Estimate, estimate

# Here, and in the paper's figure on Wikitext-103, which draws the bits per byte of each segment; no number is printed.
SETTINGS: SettingsRows = {
    "base": (lambda records: f"{_bases(records)}, trained on the same stories", "GPT-2, tuned on Wikitext-103"),
    "text": (lambda records: "bundled fairy tales", "Wikitext-103"),
    "tokens of a segment": ("segment", 128),
    "memory tokens": ("recipe.model.num_memory_tokens", 16),
    "memory width of ARMT": ("recipe.model.memory_dim", 96),
    "segments in training": (lambda records: ", ".join(str(stage["length"]) for stage in _stages(records)) or None, 8),
    "segments in tests": ("tested", 15),
    "texts per step": ("recipe.training.batch_size", 32),
    "steps": (lambda records: sum(stage["steps"] for stage in _stages(records)) or None, 36_000),
    "peak learning rate": (lambda records: spread(stage["learning_rate"] for stage in _stages(records)), 1e-4),
    "weight decay": ("recipe.training.weight_decay", 0.01),
    "seeds": (num_seeds, 1),
    "vocabulary": ("base_recipe.tokenizer.vocab_size", None),
    "steps of the base": ("base_recipe.training.steps", None),
    "tested texts of each kind": ("sequences", None),
}
# Names of rows, in the order of tables and figures. The first two are readings of one model, the base.
READINGS = {
    "one_segment": "base, one segment",
    "whole_context": "base, whole context",
    CONTINUED: "base, trained on, one segment",
    "rmt": "RMT",
    "armt": "ARMT",
}
COLORS = dict(zip(READINGS, ("#6b7280", "#111827", "#a3a3a3", "#1d4ed8", "#c2410c")))
BASES = {"transformer": "GPT-NeoX", "memory_mosaic": "Memory Mosaic"}
TEXTS = {"stories": "held-out stories", "novels": "novels"}
# What is compared with the base, and with a base that was trained on as much text as the memories.
COMPARED = {"one_segment": ("whole_context", CONTINUED, "rmt", "armt"), CONTINUED: ("rmt", "armt")}
# Reading -> seed -> bits per byte (texts, segments).
Readings = Mapping[str, Mapping[int, Tensor]]


def measured(records: Mapping[str, Record]) -> dict[tuple[str, str], Readings]:
    """(base, text) -> what was measured, in the order of tables."""
    by_text: dict[tuple[str, str], dict[str, dict[int, Tensor]]] = defaultdict(lambda: defaultdict(dict))
    for record in sorted(records.values(), key=lambda record: record.configuration.seed):
        settings = record.configuration
        for text, readings in record.outcome["bits_per_byte"].items():
            for reading, bits in readings.items():
                by_text[settings.base, text][reading][settings.seed] = torch.tensor(bits, dtype=torch.float64)
    return {
        (base, text): {name: by_text[base, text][name] for name in READINGS if name in by_text[base, text]}
        for base in BASES
        for text in TEXTS
        if (base, text) in by_text
    }


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """For each base and text the bits per byte and the differences; then all trainings and settings."""
    parts: dict[str, str] = {}
    trained = max((record.configuration.trained for record in records.values()), default=0)
    for (base, text), readings in measured(records).items():
        heading = f"{BASES[base]}, {TEXTS[text]}"
        parts[f"{heading}: bits per byte"] = _by_segment(readings)
        parts[f"{heading}: differences"] = _differences(readings, trained)
    steps = {"stages: segments: steps": lambda stage: f"{stage['length']}: {stage['steps_done']}"}
    parts["Trainings"] = stages_table(records, steps, "minutes of the stages")
    parts["Settings"] = settings_of(records.values(), SETTINGS)
    return {heading: table for heading, table in parts.items() if table}


def by_segment(seeds: Mapping[int, Tensor]) -> list[float]:
    """Mean over texts and seeds of each segment."""
    return torch.stack([bits.mean(0) for bits in seeds.values()]).mean(0).tolist()


def difference(seeds: Mapping[int, Tensor], others: Mapping[int, Tensor], part: slice) -> Estimate | None:
    """Mean over the segments of `part`, minus that of others on the same texts, over the seeds of both.

    The standard error is that over texts for one seed.
    """
    both = [seed for seed in seeds if seed in others]
    return over_seeds([estimate((seeds[seed] - others[seed])[:, part].mean(1)) for seed in both]) if both else None


def _by_segment(readings: Readings) -> str:
    means = {name: by_segment(seeds) for name, seeds in readings.items()}
    rows = [[READINGS[name], len(readings[name]), *(f"{bits:.3f}" for bits in means[name])] for name in means]
    return markdown(["segment", "seeds", *range(1, max(map(len, means.values())) + 1)], rows)


def _differences(readings: Readings, trained: int) -> str:
    last = max(len(by_segment(seeds)) for seeds in readings.values())
    parts = {"1": slice(0, 1), f"2 to {trained}": slice(1, trained), f"{trained + 1} to {last}": slice(trained, last)}
    rows = [
        [READINGS[name], READINGS[other]]
        + [with_error(difference(readings[name], readings[other], part), "+.4f") for part in parts.values()]
        for other, names in COMPARED.items()
        for name in names
        if name in readings and other in readings
    ]
    return markdown(["reading", "minus", *(f"segments {part}" for part in parts)], rows)


def _bases(records: Sequence[Record]) -> str:
    return ", ".join(sorted({BASES[record.configuration.base] for record in records}))


def _stages(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Those of all trainings that start from a base."""
    recipes = [record.configuration.recipe for record in records if record.configuration.recipe]
    return recipes[0]["training"]["curriculum"] if recipes else []


def plot(records: Mapping[str, Record], path: Path) -> None:
    """A column for each base and text: above the bits per byte, below minus those of the base with one segment."""
    columns = measured(records)
    trained = max(record.configuration.trained for record in records.values())
    with panels(path, 0.6 + 4.6 * len(columns), 7.4, 2, len(columns), legend="shared") as axes:
        for above, below, ((base, text), readings) in zip(axes, axes[len(columns) :], columns.items()):
            means = {name: by_segment(seeds) for name, seeds in readings.items()}
            for name, bits in means.items():
                style: dict[str, Any] = {
                    "color": COLORS[name],
                    "marker": "o",
                    "ms": 3,
                    "lw": 1.4,
                    "label": READINGS[name],
                }
                above.plot(range(1, len(bits) + 1), bits, **style)
                if "one_segment" in means:
                    changes = [ours - theirs for ours, theirs in zip(bits, means["one_segment"])]
                    below.plot(range(1, len(bits) + 1), changes, **style)
            for axis in (above, below):
                if axis.lines:
                    axis.axvline(trained + 0.5, color="black", lw=0.8, ls="--", label="longest in training")
            above.set(title=f"{BASES[base]}, {TEXTS[text]}", ylabel="bits per byte")
            below.set(xlabel="segment", ylabel="minus the base with one segment")


PUBLISHED = "The published trainings are recipes: `tessera train gpt2-wikitext-103`, then `armt-wikitext-103`."
EXPERIMENT = Experiment(LIBRARY["armt_language"], SegmentSettings, plan, execute, tables, plot, MODELS, (), PUBLISHED)
