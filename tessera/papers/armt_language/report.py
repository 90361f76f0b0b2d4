"""Tables of ARMT on language: bits per byte by segment, differences on the same texts, trainings, settings."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessera.papers.armt_language.published import BASES, READINGS, SETTINGS, TEXTS
from tessera.papers.experiment import Record
from tessera.papers.tables import markdown, over_seeds, settings_table, spread, with_error
from tessera.tasks.task import Estimate, estimate

# Reading -> seed -> bits per byte (texts, segments).
Readings = Mapping[str, Mapping[int, Tensor]]
# What is compared with the base, and with a base that was trained on as much text as the memories.
COMPARED = {"one_segment": ("whole_context", "continued", "rmt", "armt"), "continued": ("rmt", "armt")}


def measured(records: Mapping[str, Record]) -> dict[tuple[str, str], Readings]:
    """(base, text) -> what was measured, in the order of tables."""
    by_text: dict[tuple[str, str], dict[str, dict[int, Tensor]]] = defaultdict(lambda: defaultdict(dict))
    for record in records.values():
        settings = record.configuration
        for text, readings in record.outcome["bits_per_byte"].items():
            for reading, bits in readings.items():
                by_text[settings.base, text][reading][settings.seed] = torch.tensor(bits, dtype=torch.float64)
    return {(base, text): _in_order(by_text[base, text]) for base in BASES for text in TEXTS if (base, text) in by_text}


def _in_order(readings: Readings) -> dict[str, dict[int, Tensor]]:
    return {name: dict(sorted(readings[name].items())) for name in READINGS if name in readings}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """For each base and text the bits per byte and the differences; then all trainings and settings."""
    parts: dict[str, str] = {}
    trained = max((record.configuration.trained for record in records.values()), default=0)
    for (base, text), readings in measured(records).items():
        heading = f"{BASES[base]}, {TEXTS[text]}"
        parts[f"{heading}: bits per byte"] = _by_segment(readings)
        differences = _differences(readings, trained)
        if differences:
            parts[f"{heading}: differences"] = differences
    if records:
        parts["Trainings"] = _trainings(records)
        parts["Settings"] = _settings(records)
    return parts


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
    rows = [[READINGS[name], len(readings[name]), *(f"{one:.3f}" for one in means[name])] for name in means]
    return markdown(["segment", "seeds", *range(1, max(map(len, means.values())) + 1)], rows)


def _differences(readings: Readings, trained: int) -> str:
    last = max(len(by_segment(seeds)) for seeds in readings.values())
    parts = {"1": slice(0, 1), f"2 to {trained}": slice(1, trained), f"{trained + 1} to {last}": slice(trained, last)}
    rows = []
    for other, names in COMPARED.items():
        for name in names:
            if name in readings and other in readings:
                changes = [difference(readings[name], readings[other], part) for part in parts.values()]
                rows.append([READINGS[name], READINGS[other], *map(_signed, changes)])
    return markdown(["reading", "minus", *(f"segments {part}" for part in parts)], rows) if rows else ""


def _signed(one: Estimate | None) -> str:
    return "" if one is None else with_error(one, "+.4f").replace("± +", "± ")


def _trainings(records: Mapping[str, Record]) -> str:
    rows: list[list[Any]] = []
    for key, record in records.items():
        stages = record.outcome["stages"]
        lengths = "; ".join(f"{one['length']}: {one['steps_done']}" for one in stages) or "-"
        minutes = f"{sum(one['seconds'] for one in stages) / 60:.1f}" if stages else "-"
        rows.append([key, f"{record.outcome['parameters']:,}", lengths, minutes])
    return markdown(["run", "parameters", "stages: segments: steps", "minutes of the stages"], rows)


def _settings(records: Mapping[str, Record]) -> str:
    configurations = [one.configuration for one in records.values()]
    recipes = [one.recipe for one in configurations if "num_memory_tokens" in one.recipe.get("model", {})]
    sections = [recipe["model"] for recipe in recipes]
    stages = [recipe["training"]["curriculum"] for recipe in recipes]
    bases = sorted({BASES[one.base] for one in configurations})
    ours = {
        "base": ", ".join(bases) + ", trained on the same stories",
        "text": "bundled fairy tales",
        "tokens of a segment": spread(one.segment for one in configurations),
        "memory tokens": spread(section["num_memory_tokens"] for section in sections) if sections else "-",
        "memory width of ARMT": spread([s["memory_dim"] for s in sections if "memory_dim" in s] or ["-"]),
        "segments in training": ", ".join(str(one["length"]) for one in stages[0]) if stages else "-",
        "segments in tests": spread(one.tested for one in configurations),
        "texts per step": spread(recipe["training"]["batch_size"] for recipe in recipes) if recipes else "-",
        "steps": spread(sum(one["steps"] for one in some) for some in stages) if stages else "-",
        "peak learning rate": spread(one["learning_rate"] for some in stages for one in some) if stages else "-",
        "weight decay": spread(recipe["training"]["weight_decay"] for recipe in recipes) if recipes else "-",
        "seeds": len({one.seed for one in configurations}),
        "vocabulary": spread(one.base_recipe["tokenizer"]["vocab_size"] for one in configurations),
        "steps of the base": spread(one.base_recipe["training"]["steps"] for one in configurations),
        "tested texts of each kind": spread(one.sequences for one in configurations),
    }
    return settings_table(ours, SETTINGS)
