"""What the records of three moons hold: seeds, and the rounds of training of each."""

from collections.abc import Mapping

import torch

from tessera.experiments.experiment import Record
from tessera.experiments.three_moons.disentangling import dedication, disentangled
from tessera.tasks.task import estimate

ROUNDS = {"as published": (), "second round": ("second_round",)}


def seeds_of(runs: Mapping[str, Record], name: str) -> dict[int, Record]:
    """The finished runs of one memory by seed."""
    found = {record.configuration["seed"]: record for key, record in runs.items() if key.startswith(f"{name}/")}
    return dict(sorted(found.items()))


def outcome_of(record: Record, path: tuple[str, ...]) -> dict:
    """What a run came to after the published training, or after the second round."""
    found = record.outcome
    for key in path:
        found = found[key]
    return found


def is_disentangled(outcome: dict) -> bool:
    """Whether each head answers for a moon of its own."""
    return disentangled(dedication(outcome["weights"]))


def number(values: list[float | None], form: str) -> str:
    """Mean ± standard error over seeds."""
    if any(value is None for value in values):
        return "beyond the longest context"
    found = estimate(torch.tensor(values, dtype=torch.float64))
    mean = form.format(found.mean)
    return mean if len(values) == 1 else f"{mean} ± {form.format(found.standard_error)}"
