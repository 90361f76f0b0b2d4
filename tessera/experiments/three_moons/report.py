"""The table of three moons: errors beside what the paper says, and what each seed's heads answer for."""

from collections.abc import Mapping

from tessera.experiments.experiment import Record
from tessera.experiments.three_moons.disentangling import ACCURATE, LATER, levels
from tessera.experiments.three_moons.heads import heads_of, why
from tessera.experiments.three_moons.published import FIGURE_4, FIGURE_5
from tessera.experiments.three_moons.records import ROUNDS, is_disentangled, number, outcome_of, seeds_of
from tessera.tasks.three_moons import MEAN_MODULUS, common_period, in_observations

WORDS = {
    "three_heads": "3 heads of 1 complex dimension",
    "one_head": "1 head of 3 complex dimensions",
    "three_heads_corrected": "3 heads, AdamW with bias correction",
    "one_head_corrected": "1 head, AdamW with bias correction",
    "three_heads_slow": "3 heads, 0.3 of the learning rate",
}


def table(runs: Mapping[str, Record]) -> str:
    """Markdown."""
    if not runs:
        return "No run has finished yet."
    lines = [_setting(runs), "", _curves(runs), ""]
    lines += [
        f"The paper, in short: 1 head (figure 4): {FIGURE_4['words']}. 3 heads (figure 5): {FIGURE_5['words']}.",
        "",
    ]
    for name in [name for name in WORDS if name.startswith("three_heads")]:
        if heads := seeds_of(runs, name):
            lines += [heads_of(heads, WORDS[name]), ""]
    if heads := seeds_of(runs, "three_heads"):
        lines.append(why(heads))
    return "\n".join(lines)


def _setting(runs: Mapping[str, Record]) -> str:
    made = next(iter(runs.values())).configuration
    asked, second = made["evaluation"], made["second_round"]
    return (
        f"Each memory has 54 real parameters. *As published*: {made['fit']['steps']} steps of {made['batch_size']} "
        f"sequences of {made['length']} observations with AdamW. The published framework's AdamW does not correct the "
        "bias of its averages, so that its first steps are up to 6.6 times as long; it is used here unless a row says "
        f"otherwise. *Second round* (ours): {second['fit']['steps']} more steps of "
        f"{second['batch_size']} sequences with a fresh optimizer at a peak rate of "
        f"{second['fit']['learning_rate']:g}, the loss counting from observation {second['loss_from']} on. "
        f"Error: mean absolute deviation of "
        f"{asked['horizon']} auto-regressive predictions, after every context length up to {asked['contexts']}, over "
        f"{asked['sequences']} sequences of a triple ({second['evaluation']['sequences']} after the second round). "
        "*Early* is the mean up to the shortest period. max(p) and lcm are the longest and the common period in "
        f'observations; "+ {LATER}" is {LATER} observations later, as a share of the early error, or of '
        f"{MEAN_MODULUS:.3f} (always saying 0) if that is less: some networks' continuations explode. *Accurate from*, "
        "for each seed: "
        f"the context length from which on the error stays below {ACCURATE:.0%} of the same. "
        "Means over seeds ± standard errors."
    )


def _curves(runs: Mapping[str, Record]) -> str:
    columns = ["memory", "training", "seeds", "loss", "triple", "early error"]
    columns += [f"at max(p) + {LATER}", f"at lcm + {LATER}", "max(p), lcm", "accurate from"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for name, words in WORDS.items():
        records = seeds_of(runs, name).values()
        for training, path in ROUNDS.items():
            outcomes = [outcome_of(record, path) for record in records]
            groups = {training: outcomes}
            if name.startswith("three_heads"):
                groups[f"{training}, disentangled seeds"] = [one for one in outcomes if is_disentangled(one)]
            for group, members in groups.items():
                for triple in members[0]["errors"] if members else ():
                    lines.append(_row(words, group, triple, members))
    return "\n".join(lines)


def _row(words: str, training: str, triple: str, outcomes: list[dict]) -> str:
    errors = [outcome["errors"][triple] for outcome in outcomes]
    periods = tuple(errors[0]["periods"])
    found = [levels(one["mean"], periods) for one in errors]
    places = ["never" if one["accurate_from"] is None else str(one["accurate_from"]) for one in found]
    cells = [
        words,
        training,
        str(len(outcomes)),
        number([outcome["loss"] for outcome in outcomes], "{:.6f}"),
        f"{triple} ({', '.join(f'{period:g}' for period in periods)})",
        number([one["early"] for one in found], "{:.3f}"),
        number([one["after_slowest"] for one in found], "{:.1%}"),
        number([one["after_common"] for one in found], "{:.1%}"),
        f"{in_observations(max(periods)):.0f}, {in_observations(common_period(periods)):.0f}",
        ", ".join(places),
    ]
    return "| " + " | ".join(cells) + " |"
