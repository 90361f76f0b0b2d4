"""Three moons: errors by context (figures 4 and 5), which moons the heads follow (figure 10), why errors remain."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.papers.curves import Axes, panels
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.records import mean_of
from tessera.papers.tables import SettingsRows, markdown, settings_of, with_error
from tessera.papers.three_moons.run import INVERSE_BANDWIDTH, TRIPLES, VARIANTS, MoonSettings, execute, plan
from tessera.papers.three_moons.task import MEAN_MODULUS, common_period, in_observations

# A head is dedicated to a moon that has at least this share of its squared moduli.
DEDICATED = 0.9
# "A few steps" after a period, and the level that counts as accurate.
LATER = 5
ACCURATE = 0.1
ROUNDS = {"first_round": "as published", "second_round": "second round"}
# Here, and in the paper, whose figures carry no numbers.
SETTINGS: SettingsRows = {
    "steps": ("first_round.fit.steps", 500),
    "batch": ("first_round.batch_size", 64),
    "observations": ("length", 800),
    "peak learning rate": ("first_round.fit.learning_rate", 1e-2),
    "last learning rate": ("first_round.fit.min_learning_rate", 5e-6),
    "sequences of an evaluation": ("first_round.evaluation.sequences", 512),
    "longest context": ("first_round.evaluation.contexts", 775),
    "predictions": ("first_round.evaluation.horizon", 25),
    "inverse bandwidth": ("inverse_bandwidth", INVERSE_BANDWIDTH),
}
SYMBOLS = {"W_phi": r"$W_\varphi$", "W_psi": r"$W_\psi$", "W_z": "$W_z$"}
# Memory of each row of panels, and the one that is not trained beside it.
PANELS = {"one_head": "one_head_identity", "three_heads": "three_heads_identity"}
Outcome = Mapping[str, Any]


def moduli(stored: dict[str, list]) -> dict[str, Tensor]:
    """How much of each moon there is in each head's component; of real matrices the norms of their 2 x 2 blocks."""
    if torch.tensor(stored["W_phi"]).ndim == 3:
        return {name: torch.view_as_complex(torch.tensor(pairs)).abs() for name, pairs in stored.items()}
    blocks = {name: torch.tensor(rows).unflatten(0, (-1, 2)).unflatten(2, (-1, 2)) for name, rows in stored.items()}
    return {name: block.square().sum((1, 3)).sqrt() for name, block in blocks.items()}


def dedication(stored: dict[str, list]) -> list[int | None]:
    """For each head of one complex component the moon (0, 1, 2) that it is dedicated to, or None, given the `weights`.

    The share of moon m in head h is `|W_hm|^2 / sum_n |W_hn|^2` (in W_z: `|W_mh|^2 / sum_n |W_nh|^2`). A head is
    dedicated to m if this share is at least 0.9 in W_phi, in W_psi and in W_z.
    """
    parts = moduli(stored)
    power = torch.stack([parts["W_phi"], parts["W_psi"], parts["W_z"].mT]).square()
    share = (power / power.sum(-1, keepdim=True)).amin(0)
    return [int(row.argmax()) if row.max() >= DEDICATED else None for row in share]


def disentangled(moons: list[int | None]) -> bool:
    """Whether every head is dedicated, each to another moon."""
    return None not in moons and len(set(moons)) == len(moons)


def gains(stored: dict[str, list]) -> dict[str, float]:
    """What a disentangled network does to a moon between memory and prediction, given its `weights`.

    `turn`: the mean angle of the diagonal of W_z W_psi, positive when predictions run ahead (angles of observations
    fall with time, since they hold the sine first). `leak`: its largest modulus off the diagonal. `width`: the mean of
    `1 / (sqrt(beta) |w|)`, the angular width of a head's kernel, with beta = 50 and w its largest entry of W_phi.
    """
    matrix = {name: torch.view_as_complex(torch.tensor(pairs)) for name, pairs in stored.items()}
    product = matrix["W_z"] @ matrix["W_psi"]
    off = product.abs() * (1 - torch.eye(len(product)))
    width = (INVERSE_BANDWIDTH**0.5 * matrix["W_phi"].abs().amax(1)).reciprocal()
    return {"turn": -product.diagonal().angle().mean().item(), "leak": off.max().item(), "width": width.mean().item()}


def levels(curve: list[float], periods: tuple[float, ...]) -> dict[str, float | int | None]:
    """What a curve of errors says; entry c - 1 is for c observations.

    `early`: mean up to the shortest period. `after_slowest`, `after_common`: 5 observations after the longest and the
    common period, as shares of `early`, or of the error of always saying 0 if that is less (continuations of some
    networks explode early, and would look accurate beside that). `accurate_from`: the least context length from which
    on the error stays below a tenth of the same. None where the curve is too short, or never accurate.
    """
    shortest, slowest = in_observations(min(periods)), in_observations(max(periods))
    start = curve[: math.floor(shortest)]
    early = sum(start) / len(start)
    usual = min(early, MEAN_MODULUS)

    def share_after(period: float) -> float | None:
        context = math.ceil(period) + LATER
        return curve[context - 1] / usual if context <= len(curve) else None

    # Not `>=`: what is not a number is not below.
    last = max((context for context, error in enumerate(curve, 1) if not error < ACCURATE * usual), default=0)
    return {
        "early": early,
        "after_slowest": share_after(slowest),
        "after_common": share_after(in_observations(common_period(periods))),
        "accurate_from": last + 1 if last < len(curve) else None,
    }


def seeds_of(records: Mapping[str, Record], name: str) -> list[Record]:
    """The finished runs of one memory, by seed."""
    seeds = [record for key, record in records.items() if key.startswith(f"{name}/")]
    return sorted(seeds, key=lambda record: record.configuration.seed)


def outcomes_of(records: Mapping[str, Record], name: str) -> dict[str, list[Outcome]]:
    """What one memory's seeds came to in each round of training, and those of them that disentangled."""
    groups: dict[str, list[Outcome]] = {}
    for part, title in ROUNDS.items():
        seeds = [record for record in seeds_of(records, name) if part in record.outcome]
        outcomes = [record.outcome[part] for record in seeds]
        if not all("loss" in outcome for outcome in outcomes):
            groups["no training"] = outcomes
        elif outcomes:
            groups[title] = outcomes
            if seeds[0].configuration.num_heads == 3:
                groups[f"{title}, disentangled seeds"] = [o for o in outcomes if disentangled(dedication(o["weights"]))]
    return {title: outcomes for title, outcomes in groups.items() if outcomes}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Errors of each triple, heads, gains, settings."""
    parts = {f"Errors, {triple} triple": _errors(records, triple) for triple in TRIPLES}
    parts |= {"Heads of each seed": _heads(records), "Turn, leak and width": _gains(records)}
    trained = [record for record in records.values() if record.configuration.first_round.fit]
    return parts | {"Settings": settings_of(trained, SETTINGS)}


def _errors(records: Mapping[str, Record], triple: str) -> str:
    rows, periods = [], TRIPLES[triple]
    for name, variant in VARIANTS.items():
        for title, outcomes in outcomes_of(records, name).items():
            if measured := [outcome for outcome in outcomes if triple in outcome["errors"]]:
                seeds = [levels(outcome["errors"][triple]["mean"], periods) for outcome in measured]
                forms = {"early": ".3f", "after_slowest": ".1%", "after_common": ".1%"}
                cells = [_number([level[level_of] for level in seeds], form) for level_of, form in forms.items()]
                cells += [f"{in_observations(max(periods)):.0f}, {in_observations(common_period(periods)):.0f}"]
                cells += [", ".join(str(level["accurate_from"] or "never") for level in seeds)]
                loss = _number([outcome["loss"] for outcome in measured if "loss" in outcome], ".6f")
                rows.append([variant.title, title, len(seeds), loss, *cells])
    later = [f"at max(p) + {LATER}", f"at lcm + {LATER}", "max(p), lcm", "accurate from"]
    return markdown(["memory", "training", "seeds", "loss", "early error", *later], rows)


def _number(values: Sequence[Any], form: str) -> str:
    """Over seeds; nothing where there is no number, or a curve is too short (None)."""
    return with_error(mean_of(values), form) if values and None not in values else ""


def _heads(records: Mapping[str, Record]) -> str:
    """The moon of each head, seed by seed, after each round of training."""
    rows = []
    for name, variant in VARIANTS.items():
        for part, title in ROUNDS.items():
            for record in seeds_of(records, name):
                outcome = record.outcome.get(part, {})
                if record.configuration.num_heads == 3 and "loss" in outcome:
                    moons = dedication(outcome["weights"])
                    heads = ["none" if moon is None else f"moon {moon + 1}" for moon in moons]
                    follows = "yes" if disentangled(moons) else "no"
                    about = [variant.title, record.configuration.seed, title, f"{outcome['loss']:.6f}"]
                    rows.append([*about, *heads, follows])
    return markdown(["memory", "seed", "training", "loss", "head 1", "head 2", "head 3", "disentangled"], rows)


def _gains(records: Mapping[str, Record]) -> str:
    """What disentangled seeds do to a moon between memory and prediction (see `gains`)."""
    rows = []
    for title, outcomes in outcomes_of(records, "three_heads").items():
        if "disentangled" in title:
            seeds = [gains(outcome["weights"]) for outcome in outcomes]
            means = [_number([gain[name] for gain in seeds], ".4f") for name in ("turn", "leak", "width")]
            rows.append([title, len(seeds), *means])
    return markdown(["training", "seeds", "turn (radians)", "leak", "width of the kernels (radians)"], rows)


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Errors of both memories and each triple, and the matrices of the first seed of three heads."""
    names = [name for name in PANELS if seeds_of(records, name)]
    title = "Three moons: error of auto-regressive predictions (thick: first seed), and the moons of the heads"
    with panels(path, 5.6 * len(TRIPLES), 3.4 + 3.4 * len(names), len(names) + 1, len(TRIPLES), title) as axes:
        for axis, (name, triple) in zip(axes, product(names, TRIPLES)):
            _draw_errors(axis, records, name, triple)
        if "three_heads" in names:
            _draw_matrices(axes[-len(SYMBOLS) :], seeds_of(records, "three_heads")[0])


def _draw_errors(axis: Axes, records: Mapping[str, Record], name: str, triple: str) -> None:
    """Deviation of the continuation against the number of observations before it; vertical lines are periods."""
    for index, (part, title) in enumerate(ROUNDS.items()):
        curves = _curves(records, name, part, triple)
        for number, curve in enumerate(curves):
            label = f"{title} ({len(curves)} seed{'s' * (len(curves) > 1)})"
            style = {"alpha": 0.35, "linewidth": 0.6} if number else {"label": label, "linewidth": 1.4}
            axis.plot(range(1, len(curve) + 1), curve, color=f"C{index}", zorder=2 if number else 3, **style)
    for other, form in ((PANELS[name], "C2-"), ("repeat_last", "C3-")):
        for curve in _curves(records, other, "first_round", triple):
            axis.plot(range(1, len(curve) + 1), curve, form, linewidth=0.9, label=VARIANTS[other].title)
    axis.axhline(MEAN_MODULUS, color="gray", linestyle=":", linewidth=1, label="always 0")
    periods = TRIPLES[triple]
    marks = [(in_observations(period), f"$p_{i}$", "black") for i, period in enumerate(sorted(periods), 1)]
    marks += [(in_observations(common_period(periods)), "lcm", "red")]
    longest = max((len(line.get_xdata()) for line in axis.lines), default=0)
    for context, words, color in marks:
        if context <= longest:
            axis.axvline(context, color=color, linewidth=1.0)
            axis.text(context, MEAN_MODULUS * 1.24, f" {words}", color=color, fontsize=8, va="top")
    axis.set(title=f"{VARIANTS[name].title}, {triple} triple {periods}", ylim=(0, MEAN_MODULUS * 1.25))
    axis.set(xlim=(0, None), xlabel="context length (observations)", ylabel="mean absolute deviation")


def _curves(records: Mapping[str, Record], name: str, part: str, triple: str) -> list[list[float]]:
    outcomes = [seed.outcome[part]["errors"] for seed in seeds_of(records, name) if part in seed.outcome]
    return [errors[triple]["mean"] for errors in outcomes if triple in errors]


def _draw_matrices(axes: Sequence[Axes], record: Record) -> None:
    """The moduli of the matrices with their numbers."""
    parts = moduli(record.outcome["first_round"]["weights"])
    for axis, (name, matrix) in zip(axes, parts.items(), strict=True):
        axis.grid(False)
        axis.imshow(matrix.tolist(), cmap="viridis", vmin=0)
        for (i, j), value in np.ndenumerate(matrix.numpy()):
            color = "w" if value < matrix.max() / 2 else "k"
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
        for ticks, count in ((axis.set_xticks, matrix.shape[1]), (axis.set_yticks, matrix.shape[0])):
            ticks(range(count), [str(number + 1) for number in range(count)])
        axis.set(**dict(zip(("xlabel", "ylabel"), ("head", "moon") if name == "W_z" else ("moon", "head"))))
        axis.set_title(f"|{SYMBOLS[name]}|, 3 heads, seed {record.configuration.seed}, as published", fontsize=10)


PUBLISHED = "The first round of --budget cpu is the published training."
ABOUT = LIBRARY["three_moons"]
EXPERIMENT = Experiment(ABOUT, MoonSettings, plan, execute, tables, plot, tuple(VARIANTS), (), PUBLISHED)
