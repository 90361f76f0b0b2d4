"""RegBench's numbers beside the papers'."""

from collections.abc import Mapping
from typing import Any

from tessera.experiments.experiment import Record
from tessera.experiments.regbench.figure import name_of
from tessera.experiments.regbench.published import IN_DISTRIBUTION_100, SPARSE_SIZES, SPARSE_TABLE_1
from tessera.experiments.regbench.summary import best_records, cell, longest_trainings

TOLERANCE = 1.5


def table(runs: Mapping[str, Record]) -> str:
    """The setting, a table for each number of training problems, and what follows."""
    best = best_records(runs)
    if not best:
        return "No run yet."
    trained = [(model, record) for (model, problems), records in best.items() for record in records if problems]
    longer = {model.partition(", ")[2]: record for model, record in trained if "," in model}
    parts = [_setting([record for model, record in trained if "," not in model]), _longer(longer)]
    for problems in sorted({problems for _, problems in best}):
        rows = {model: records for (model, count), records in best.items() if count == problems}
        parts.append(_section(problems, rows))
    parts += [_conclusion(best), _transformer_behind(best), _contexts(best)]
    return "\n\n".join(part for part in parts if part)


def _setting(records: list[Record]) -> str:
    """One sentence where all runs share a setting."""
    if not records:
        return ""
    configurations = [record.configuration for record in records]
    shared = {key: value for key, value in configurations[0].items() if all(c[key] == value for c in configurations)}

    def say(key: str) -> Any:
        return shared.get(key, "various")

    epochs = sorted({record.outcome["epochs"] for record in records})
    spread = f"{epochs[0]:g}" if len(epochs) == 1 else f"{epochs[0]:g} to {epochs[-1]:g}"
    spread += " epoch" if spread == "1" else " epochs"
    return (
        f"Ours: width {say('hidden_size')}, {say('num_layers')} layers, {say('num_heads')} heads, batch "
        f"{say('batch_size')}, {spread}, peak learning rate {say('learning_rate')} (per-head scalars "
        f"{say('scalar_learning_rate_scale')} times that), weight decay {say('weight_decay')}, best of "
        f"{say('checks')} checks on {say('validation')} validation problems, tested on {say('test')} problems of "
        "automata that are in no other split. Published: width 128, 2 layers, 8 heads, batch 32, up to 200 epochs, "
        "learning rate 5e-4, tested on 1,000 problems. Numbers are per cent; ± standard error over seeds ± over test "
        "problems. TVD: total variation distance, half the sum of absolute differences. In distribution: fresh strings "
        "of training automata."
    )


def _longer(records: Mapping[str, Record]) -> str:
    """What the trainings that carry a label changed."""
    said = [
        f"*{label}*: {record.configuration['fit']['steps']:,} steps, peak learning rate "
        f"{record.configuration['learning_rate']:g}, best of {record.configuration['checks']} checks"
        for label, record in records.items()
    ]
    return f"Longer trainings, otherwise the same: {'; '.join(said)}." if said else ""


def _section(problems: int, rows: dict[str, list[Record]]) -> str:
    known = problems in SPARSE_SIZES
    lines = [
        f"### {problems:,} training problems" if problems else "### Without training",
        "",
        "| model | accuracy | paper | difference | TVD | paper | last symbol | in distribution: accuracy | TVD |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for model, records in rows.items():
        accuracy, tvd, last = (cell(records, "held_out", score) for score in ("accuracy", "tvd", "last_accuracy"))
        inside = [_beside(records, model, problems, column) for column in (0, 1)]
        row = SPARSE_TABLE_1.get(model.split(",")[0])
        paper = row[SPARSE_SIZES.index(problems)] if known and row else None
        theirs = [f"{value:.1f}" for value in paper] if paper else ["-", "-"]
        difference = f"{accuracy.mean - paper[0]:+.1f}" if paper else "-"
        lines.append(
            f"| {name_of(model)} | {accuracy} | {theirs[0]} | {difference} | {tvd} | {theirs[1]} | "
            f"{last.mean:.1f} | {inside[0]} | {inside[1]} |"
        )
    return "\n".join(lines)


def _beside(records: list[Record], model: str, problems: int, column: int) -> str:
    """In distribution; table 3 of Memory Mosaics has numbers for 100 problems."""
    if records[0].outcome["in_distribution"] is None:
        return "-"
    one = cell(records, "in_distribution", ("accuracy", "tvd")[column])
    if problems != 100 or model not in IN_DISTRIBUTION_100:
        return f"{one.mean:.1f}"
    return f"{one.mean:.1f} (paper {IN_DISTRIBUTION_100[model][column]})"


def _conclusion(best: Mapping[tuple[str, int], list[Record]]) -> str:
    """How far from the papers, counted for each length of training."""
    lines = []
    for training in dict.fromkeys(_training(model) for model, _ in best):
        near, far = [], []
        for (model, problems), records in best.items():
            base = model.split(",")[0]
            if _training(model) != training or base not in SPARSE_TABLE_1 or problems not in SPARSE_SIZES:
                continue
            paper = SPARSE_TABLE_1[base][SPARSE_SIZES.index(problems)][0]
            difference = cell(records, "held_out", "accuracy").mean - paper
            words = f"{name_of(base)} at {problems:,} ({difference:+.2f})"
            (near if abs(difference) <= TOLERANCE else far).append(words)
        if near or far:
            count = f"{len(near)} of {len(near) + len(far)} within {TOLERANCE} accuracy points of the paper"
            lines.append(f"- {training}: {count}." + (f" Not: {', '.join(far)}." if far else ""))
    return "\n".join(lines)


def _training(model: str) -> str:
    """Of a name of `best_records`, how long it was trained."""
    _, comma, label = model.partition(", ")
    return f"Trained for {label}" if comma else "Trained for the budget's epochs"


def _transformer_behind(best: Mapping[tuple[str, int], list[Record]]) -> str:
    """What the benchmark is known for: the mosaics learn to learn from examples too few for a transformer."""
    said = []
    for model, problems in best:
        base, comma, label = model.partition(",")
        other = f"mosaic gaussian{comma}{label}"
        if base == "transformer" and (other, problems) in best and problems in SPARSE_SIZES:
            place = SPARSE_SIZES.index(problems)
            ours = [cell(best[name, problems], "held_out", "accuracy").mean for name in (other, model)]
            theirs = [SPARSE_TABLE_1[name][place][0] for name in ("mosaic gaussian", base)]
            when = f"{problems:,}{comma}{label}"
            said.append(f"{ours[0] - ours[1]:.1f} at {when} (paper: {theirs[0] - theirs[1]:.1f})")
    return f"Accuracy points by which the transformer is behind the Gaussian mosaic: {'; '.join(said)}." if said else ""


def _contexts(best: Mapping[tuple[str, int], list[Record]]) -> str:
    """How far back a model must look for its accuracy: counting says what is to be had from so many symbols."""
    counts = {
        records[0].configuration["symbols"]: cell(records, "held_out", "accuracy").mean
        for (_, problems), records in best.items()
        if not problems
    }
    reached: dict[int, list[str]] = {}
    for (model, problems), records in longest_trainings(best).items():
        accuracy = cell(records, "held_out", "accuracy").mean
        needed = [symbols for symbols, share in sorted(counts.items()) if accuracy < share]
        if problems and needed:
            reached.setdefault(needed[0], []).append(f"{name_of(model)} at {problems:,} ({accuracy:.1f})")
    lines = [
        f"- less than counting with {symbols} ({counts[symbols]:.1f}): {', '.join(reached[symbols])}"
        for symbols in sorted(reached)
    ]
    head = "How many symbols back a model looks (longest trainings), by the accuracy of counting what followed so many:"
    return "\n".join([head, "", *lines]) if lines else ""
