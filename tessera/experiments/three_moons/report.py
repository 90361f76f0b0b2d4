"""The table and the figure of three moons."""

from collections.abc import Mapping
from pathlib import Path

from tessera.experiments.experiment import Record
from tessera.experiments.three_moons.disentangling import ACCURATE, DEDICATED, LATER
from tessera.tasks.task import Estimate, estimate
from tessera.tasks.three_moons import common_period, in_observations
from tessera.tasks.three_moons.plot import draw_errors, draw_moduli
from tessera.tasks.three_moons.published import FIGURE_4, FIGURE_5, FIGURE_10

WORDS = {"three_heads": "3 heads of 1 complex dimension", "one_head": "1 head of 3 complex dimensions"}


def table(runs: Mapping[str, Record]) -> str:
    """Errors of both memories beside what the paper says of them, and what each seed's heads answer for."""
    if not runs:
        return "No run has finished yet."
    lines = [_setting(runs), "", _curves(runs), ""]
    heads = seeds_of(runs, "three_heads")
    if heads:
        lines += [_heads(heads), ""]
    lines += [f'The paper, 1 head (figure 4): "{FIGURE_4["words"]}". 3 heads (figure 5): "{FIGURE_5["words"]}".']
    return "\n".join(lines)


def seeds_of(runs: Mapping[str, Record], name: str) -> dict[int, Record]:
    """The finished runs of one memory by seed."""
    found = {key: record for key, record in runs.items() if key.startswith(f"{name}/")}
    return {record.configuration["seed"]: record for _, record in sorted(found.items())}


def _setting(runs: Mapping[str, Record]) -> str:
    made = next(iter(runs.values())).configuration
    asked = made["evaluation"]
    return (
        f"Each memory: 54 real parameters, {made['fit']['steps']} steps of {made['batch']} sequences of "
        f"{made['length']} observations. Errors: mean absolute deviation of {asked['horizon']} auto-regressive "
        f"predictions, over {asked['sequences']} sequences of a triple, after every context length up to "
        f"{asked['contexts']}. *Early* is the mean up to the shortest period. max(p) and lcm are the longest and the "
        f'common period in observations; "+ {LATER}" is {LATER} observations later, as a share of the early error. '
        f"*Accurate from*: the context length from which on the error stays below {ACCURATE:.0%} of the early one. "
        "Means over seeds ± standard errors."
    )


def _curves(runs: Mapping[str, Record]) -> str:
    columns = ["memory", "seeds", "training loss", "triple", "early error"]
    columns += [f"at max(p) + {LATER}", f"at lcm + {LATER}", "max(p), lcm", "accurate from"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, words in WORDS.items():
        records = list(seeds_of(runs, name).values())
        for triple in records[0].outcome["errors"] if records else ():
            lines.append(_row(words, triple, records))
    return "\n".join(lines)


def _row(words: str, triple: str, records: list[Record]) -> str:
    errors = [record.outcome["errors"][triple] for record in records]
    periods = errors[0]["periods"]
    slowest, common = in_observations(max(periods)), in_observations(common_period(tuple(periods)))
    found = [one["levels"] for one in errors]
    starts = [one["accurate_from"] for one in found]
    places = ", ".join("never" if start is None else str(start) for start in starts)
    cells = [
        words,
        str(len(records)),
        _number([record.outcome["loss"] for record in records], "{:.5f}"),
        f"{triple} ({', '.join(f'{period:g}' for period in periods)})",
        _number([one["early"] for one in found], "{:.3f}"),
        _number([one["after_slowest"] for one in found], "{:.1%}"),
        _number([one["after_common"] for one in found], "{:.1%}"),
        f"{slowest:.0f}, {common:.0f}",
        places,
    ]
    return "| " + " | ".join(cells) + " |"


def _number(values: list[float | None], form: str) -> str:
    import torch

    if any(value is None for value in values):
        return "beyond the longest context"
    found: Estimate = estimate(torch.tensor(values, dtype=torch.float64))
    mean = form.format(found.mean)
    return mean if len(values) == 1 else f"{mean} ± {form.format(found.standard_error)}"


def _heads(records: dict[int, Record]) -> str:
    done = sum(record.outcome["disentangled"] for record in records.values())
    lines = [
        f"**Disentangled: {done} of {len(records)} seeds.** A head is dedicated to a moon that has at least "
        f"{DEDICATED:.0%} of the head's squared moduli in W_phi, in W_psi and in W_z; a network is disentangled if its "
        f'heads are dedicated to three different moons. The paper (figure 10): "{FIGURE_10["words"]}".',
        "",
        "| seed | head 1 | head 2 | head 3 | disentangled |",
        "|---|---|---|---|---|",
    ]
    for seed, record in records.items():
        moons = ["none" if moon is None else f"moon {moon + 1}" for moon in record.outcome["dedicated"]]
        lines.append(f"| {seed} | {' | '.join(moons)} | {'yes' if record.outcome['disentangled'] else 'no'} |")
    return "\n".join(lines)


def plot(runs: Mapping[str, Record], path: Path) -> None:
    """Errors against the context length for both memories and both triples, and the first seed's matrices."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in ("one_head", "three_heads") if seeds_of(runs, name)]
    figure = pyplot.figure(figsize=(12, 1 + 3.4 * max(1, len(names)) + 3.2), constrained_layout=True)
    grid = figure.add_gridspec(len(names) + 1, 6, height_ratios=[1.1] * len(names) + [1])
    for row, name in enumerate(names):
        records = list(seeds_of(runs, name).values())
        for column, triple in enumerate(records[0].outcome["errors"]):
            errors = [record.outcome["errors"][triple] for record in records]
            periods = tuple(errors[0]["periods"])
            axis = figure.add_subplot(grid[row, 3 * column : 3 * column + 3])
            title = f"{WORDS[name]}, {triple} triple {periods}"
            draw_errors(axis, [one["mean"] for one in errors], periods, title)
            axis.legend(fontsize=8, loc="lower left")
    if "three_heads" in names:
        first = next(iter(seeds_of(runs, "three_heads").values()))
        for column, (name, moduli) in enumerate(first.outcome["moduli"].items()):
            axis = figure.add_subplot(grid[-1, 2 * column : 2 * column + 2])
            rows, columns = ("moon", "head") if name == "W_z" else ("head", "moon")
            symbol = {"W_phi": r"$W_\varphi$", "W_psi": r"$W_\psi$", "W_z": "$W_z$"}[name]
            draw_moduli(axis, moduli, f"moduli of {symbol}, 3 heads, seed {first.configuration['seed']}", rows, columns)
    figure.suptitle("Three moons: error of 25 auto-regressive predictions, and what the heads answer for")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
