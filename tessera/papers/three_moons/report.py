"""The tables of three moons: errors by context, which moons each seed's heads follow, and why errors remain."""

from collections.abc import Mapping

from tessera.papers.experiment import Record
from tessera.papers.tables import markdown, mean_of, settings_table, spread, with_error
from tessera.papers.three_moons import common_period, in_observations
from tessera.papers.three_moons.disentangling import LATER, dedication, disentangled, gains, levels
from tessera.papers.three_moons.published import SETTING
from tessera.papers.three_moons.settings import VARIANTS

ROUNDS = {"first_round": "as published", "second_round": "second round"}


def seeds_of(records: Mapping[str, Record], name: str) -> list[Record]:
    """The finished runs of one memory, by seed."""
    return sorted(
        (record for key, record in records.items() if key.startswith(f"{name}/")),
        key=lambda record: record.configuration.seed,
    )


def is_disentangled(outcome: dict) -> bool:
    """Whether each head follows a moon of its own."""
    return disentangled(dedication(outcome["weights"]))


def outcomes_of(records: Mapping[str, Record], name: str) -> dict[str, list[dict]]:
    """What one memory's seeds came to in each round of training, and those of them that disentangled."""
    groups: dict[str, list[dict]] = {}
    for part, title in ROUNDS.items():
        seeds = [record.outcome[part] for record in seeds_of(records, name) if part in record.outcome]
        is_untrained = any("loss" not in outcome for outcome in seeds)
        if seeds:
            groups["no training" if is_untrained else title] = seeds
        if VARIANTS[name].num_heads == 3 and not is_untrained:
            groups[f"{title}, disentangled seeds"] = [outcome for outcome in seeds if is_disentangled(outcome)]
    return {title: outcomes for title, outcomes in groups.items() if outcomes}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Every table; those without a row are left out."""
    triples = dict.fromkeys(triple for record in records.values() for triple in record.outcome["first_round"]["errors"])
    parts = {f"Errors, {triple} triple": _errors(records, triple) for triple in triples}
    parts |= {"Heads of each seed": _heads(records), "Turn, leak and width": _gains(records)}
    parts["Settings"] = _settings(records)
    return {heading: table for heading, table in parts.items() if table}


def _errors(records: Mapping[str, Record], triple: str) -> str:
    headings = ["memory", "training", "seeds", "loss", "early error", f"at max(p) + {LATER}", f"at lcm + {LATER}"]
    headings += ["max(p), lcm", "accurate from"]
    rows = []
    for name, variant in VARIANTS.items():
        for title, outcomes in outcomes_of(records, name).items():
            errors = [outcome["errors"][triple] for outcome in outcomes if triple in outcome["errors"]]
            if errors:
                losses = [outcome["loss"] for outcome in outcomes if "loss" in outcome]
                rows.append([variant.title, title, len(errors), _number(losses, ".6f"), *_levels(errors)])
    return markdown(headings, rows)


def _levels(errors: list[dict]) -> list[str]:
    periods = tuple(errors[0]["periods"])
    seeds = [levels(one["mean"], periods) for one in errors]
    accurate = ["never" if one["accurate_from"] is None else str(one["accurate_from"]) for one in seeds]
    return [
        _number([one["early"] for one in seeds], ".3f"),
        _number([one["after_slowest"] for one in seeds], ".1%"),
        _number([one["after_common"] for one in seeds], ".1%"),
        f"{in_observations(max(periods)):.0f}, {in_observations(common_period(periods)):.0f}",
        ", ".join(accurate),
    ]


def _number(values: list[float | None], form: str) -> str:
    """Over seeds; nothing where there is no number, or a curve is too short."""
    numbers = [value for value in values if value is not None]
    return with_error(mean_of(numbers), form) if numbers and len(numbers) == len(values) else ""


def _heads(records: Mapping[str, Record]) -> str:
    """The moon of each head, seed by seed, after each round of training."""
    rows = []
    for name, variant in VARIANTS.items():
        for part, title in ROUNDS.items():
            for record in seeds_of(records, name) if variant.num_heads == 3 else ():
                outcome = record.outcome.get(part, {})
                if "loss" in outcome:
                    moons = ["none" if moon is None else f"moon {moon + 1}" for moon in dedication(outcome["weights"])]
                    verdict = "yes" if is_disentangled(outcome) else "no"
                    rows.append(
                        [variant.title, record.configuration.seed, title, f"{outcome['loss']:.6f}", *moons, verdict]
                    )
    headings = ["memory", "seed", "training", "loss", "head 1", "head 2", "head 3", "disentangled"]
    return markdown(headings, rows) if rows else ""


def _gains(records: Mapping[str, Record]) -> str:
    """What disentangled seeds do to a moon between memory and prediction (see `gains`)."""
    rows = []
    for title, outcomes in outcomes_of(records, "three_heads").items():
        if "disentangled" in title:
            seeds = [gains(outcome["weights"]) for outcome in outcomes]
            cells = [_number([one[quantity] for one in seeds], ".4f") for quantity in ("turn", "leak", "width")]
            rows.append([title, len(seeds), *cells])
    headings = ["training", "seeds", "turn (radians)", "leak", "width of the kernels (radians)"]
    return markdown(headings, rows) if rows else ""


def _settings(records: Mapping[str, Record]) -> str:
    trained = [record.configuration for record in records.values() if record.configuration.first_round.fit]
    if not trained:
        return ""
    rounds = [one.first_round for one in trained]
    ours = {
        "steps": spread(part.fit.steps for part in rounds),
        "batch": spread(part.batch_size for part in rounds),
        "observations": spread(one.length for one in trained),
        "peak learning rate": spread(part.fit.learning_rate for part in rounds),
        "last learning rate": spread(part.fit.min_learning_rate for part in rounds),
        "sequences of an evaluation": spread(part.evaluation.sequences for part in rounds),
        "longest context": spread(part.evaluation.contexts for part in rounds),
        "predictions": spread(part.evaluation.horizon for part in rounds),
        "inverse bandwidth": spread(one.inverse_bandwidth for one in trained),
    }
    return settings_table(ours, SETTING)
