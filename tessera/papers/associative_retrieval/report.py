"""The tables of associative retrieval: exact match by number of pairs, capacity, norms, and what each training took."""

from collections.abc import Mapping
from typing import NamedTuple

from tessera.papers.associative_retrieval import models
from tessera.papers.associative_retrieval.published import NAMES, SETTING
from tessera.papers.associative_retrieval.questions import numbers_kept
from tessera.papers.associative_retrieval.settings import KEY_SIZE, RetrievalSettings
from tessera.papers.experiment import Record
from tessera.papers.tables import markdown, over_seeds, settings_table, spread, with_error
from tessera.tasks.task import Estimate

# Heading -> rule, quantity, factor.
BY_PAIRS = {
    "Rewrite, exact match in per cent": ("rewrite", "exact_match", 100.0),
    "Remember, exact match in per cent": ("remember", "exact_match", 100.0),
    "Remember, estimated pairs in memory": ("remember", "capacity", 1.0),
}


class Curve(NamedTuple):
    """One model (or a variant of one) on one rule; `exact_match` and `capacity` by number of pairs, over seeds.

    Of one seed the standard error is over held-out contexts. settings: of one of its runs.
    """

    model: str
    variant: str | None
    rule: str
    trained_pairs: int
    exact_match: dict[int, Estimate]
    capacity: dict[int, Estimate]
    settings: RetrievalSettings

    @property
    def label(self) -> str:
        """What tables and legends call it."""
        name = NAMES.get(self.model, self.model)
        return name if self.variant is None else f"{name}, {self.variant}"


def curves(records: Mapping[str, Record]) -> list[Curve]:
    """One curve per model, variant and rule, in the order of `NAMES`, variants last."""
    groups: dict[tuple[str, str | None, str], list[dict]] = {}
    settings = {}
    for record in records.values():
        group = (record.configuration.model, record.configuration.ablation, record.configuration.rule)
        groups.setdefault(group, []).append(record.outcome)
        settings[group] = record.configuration
    order = list(NAMES)
    return [
        Curve(
            model,
            variant,
            rule,
            max(outcome["trained_pairs"] for outcome in outcomes),
            _by_pairs(outcomes, "exact_match"),
            _by_pairs(outcomes, "capacity"),
            settings[model, variant, rule],
        )
        for (model, variant, rule), outcomes in sorted(
            groups.items(), key=lambda item: (item[0][1] is not None, order.index(item[0][0]))
        )
    ]


def _by_pairs(outcomes: list[dict], quantity: str) -> dict[int, Estimate]:
    lengths = sorted({int(pairs) for outcome in outcomes for pairs in outcome[quantity]})
    seeds = {n: [outcome[quantity][str(n)] for outcome in outcomes if str(n) in outcome[quantity]] for n in lengths}
    return {pairs: over_seeds(values) for pairs, values in seeds.items()}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Every table; those without a row are left out."""
    every_curve, parts = curves(records), {}
    for heading, (rule, quantity, scale) in BY_PAIRS.items():
        chosen = [curve for curve in every_curve if curve.rule == rule]
        if chosen:
            parts[heading] = _curves_table(chosen, quantity, scale)
    parts["Rewrite, norm of the normaliser (of the matrix)"] = _norms(records)
    parts["Trainings"] = _trainings(records)
    parts["Settings"] = _settings(records)
    return {heading: table for heading, table in parts.items() if table}


def _curves_table(chosen: list[Curve], quantity: str, scale: float) -> str:
    pairs = sorted({n for curve in chosen for n in getattr(curve, quantity)})
    rows = []
    for curve in chosen:
        values = getattr(curve, quantity)
        cells = [with_error(_scaled(values[n], scale), ".1f") if n in values else "" for n in pairs]
        rows.append([curve.label, _numbers_kept(curve.settings), curve.trained_pairs, *cells])
    return markdown(["pairs", "numbers kept", "trained to", *pairs], rows)


def _numbers_kept(settings: RetrievalSettings) -> str:
    """What the model carries on from a text, which does not depend on its training; of a growing state, per pair."""
    model = models.build(settings.model, settings.sizes, settings.seed).eval()
    after_one, after_two = (numbers_kept(model, settings.task(pairs), settings.seed) for pairs in (1, 2))
    return f"{after_one:,}" if after_one == after_two else f"{after_two - after_one:,} for each pair"


def _scaled(one: Estimate, factor: float) -> Estimate:
    return Estimate(factor * one.mean, factor * one.standard_error, one.count)


def _norms(records: Mapping[str, Record]) -> str:
    """After so many rewritten pairs, of models with association matrices."""
    outcomes = {key: record.outcome for key, record in records.items() if "/rewrite/" in key}
    norms = {key: outcome["norms"] for key, outcome in outcomes.items() if outcome.get("norms")}
    lengths = sorted({int(n) for one in norms.values() for n in one["normaliser"]})
    rows = [
        [key, *(f"{one['normaliser'][str(n)]:.0f} ({one['matrix'][str(n)]:.0f})" for n in lengths)]
        for key, one in norms.items()
    ]
    return markdown(["run", *lengths], rows) if rows else ""


def _trainings(records: Mapping[str, Record]) -> str:
    rows = []
    for key, record in records.items():
        stages = record.outcome["stages"]
        lengths = [f"{one['length']} ({one['settings'][KEY_SIZE]})" for one in stages]
        steps = [f"{name}: {one['steps_done']} of {one['steps']}" for name, one in zip(lengths, stages)]
        best = [f"{one['best']:.3f} ({one['target']:g})" for one in stages]
        minutes = sum(one["seconds"] for one in stages) / 60
        rows.append([key, f"{record.outcome['parameters']:,}", "; ".join(steps), "; ".join(best), f"{minutes:.1f}"])
    headings = ["run", "parameters", "stages: pairs (key size): steps", "best exact match (target)", "minutes"]
    return markdown(headings, rows)


def _settings(records: Mapping[str, Record]) -> str:
    configurations = [record.configuration for record in records.values()]
    if not configurations:
        return ""
    first, sizes = configurations[0], configurations[0].sizes
    ours = {
        "layers": sizes.num_layers,
        "width": sizes.hidden_size,
        "memory tokens": spread(one.sizes.num_memory_tokens for one in configurations),
        "memory width": spread(one.sizes.memory_dim for one in configurations),
        "batch": first.batch_size,
        "questions to each context": first.questions,
        "peak learning rate": spread(stage.learning_rate for one in configurations for stage in one.curriculum.stages),
        "standard deviation of initial weights": sizes.initializer_range,
    }
    for rule in ("rewrite", "remember"):
        curricula = [one.curriculum.stages for one in configurations if one.rule == rule]
        if curricula:
            longest = max(curricula, key=len)
            ours[f"pairs in the stages of {rule}"] = ", ".join(str(stage.length) for stage in longest)
    ours["steps in all"] = spread(sum(stage.steps for stage in one.curriculum.stages) for one in configurations)
    ours["seeds"] = len({one.seed for one in configurations})
    return settings_table(ours, SETTING)
