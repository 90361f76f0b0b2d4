"""Curves over the number of pairs from the outcomes of several runs: means and standard errors over seeds."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

NAMES = {
    "armt": "ARMT",
    "armt_no_correction": "ARMT, no correction",
    "rmt": "RMT",
    "prmt": "PRMT",
    "mamba": "Mamba",
    "mosaic": "Memory Mosaic",
}


class Curve(NamedTuple):
    """One model (or a variant of one) on one rule: values and standard errors by number of pairs.

    `exact_match` and `capacity` map pairs to (mean, standard error): over seeds where there are several, over held-out
    contexts of the only one otherwise.
    """

    model: str
    variant: str | None
    rule: str
    seeds: int
    trained_pairs: int
    exact_match: dict[int, tuple[float, float]]
    capacity: dict[int, tuple[float, float]]

    @property
    def label(self) -> str:
        """What a legend calls it."""
        name = NAMES.get(self.model, self.model)
        return name if self.variant is None else f"{name}, {self.variant}"


def curves(runs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Curve]:
    """One curve per model, variant and rule of (configuration, outcome), in the order of `NAMES`, variants last."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for configuration, outcome in runs:
        key = (configuration["model"], configuration["ablation"], configuration["rule"])
        groups.setdefault(key, []).append(outcome)
    order = {name: place for place, name in enumerate(NAMES)}
    found = [
        Curve(
            *key,
            len(outcomes),
            max(outcome["trained_pairs"] for outcome in outcomes),
            _pooled(outcomes, "exact_match"),
            _pooled(outcomes, "capacity"),
        )
        for key, outcomes in groups.items()
    ]
    return sorted(found, key=lambda one: (one.variant is not None, order.get(one.model, len(order))))


def _pooled(outcomes: list[Mapping[str, Any]], name: str) -> dict[int, tuple[float, float]]:
    pooled = {}
    for pairs in sorted({int(pairs) for outcome in outcomes for pairs in outcome[name]}):
        found = [outcome[name][str(pairs)] for outcome in outcomes if str(pairs) in outcome[name]]
        means, count = [value[0] for value in found], len(found)
        mean = sum(means) / count
        spread = (sum((one - mean) ** 2 for one in means) / (count - 1) / count) ** 0.5 if count > 1 else found[0][1]
        pooled[pairs] = (mean, spread)
    return pooled
