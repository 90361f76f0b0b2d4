"""RegBench's numbers beside the papers', in tables and in a figure."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from tessera.papers.curves import draw_curve, panels, styles
from tessera.papers.experiment import Record
from tessera.papers.regbench.published import IN_DISTRIBUTION_100, NAMES, SETTING, SPARSE_SIZES, SPARSE_TABLE_1
from tessera.papers.regbench.settings import LOSS_BLOCK, NGRAM
from tessera.papers.tables import grouped, markdown, score, settings_table, spread, with_error
from tessera.tasks.task import Estimate

# Name, training problems and label of a row.
Row = tuple[str, int, str]
Trainings = Mapping[str, Mapping[int, list[Record]]]
# Score, column of the paper's table, title, limits of the axis.
PANELS = (
    ("accuracy", 0, "Most likely next symbol is allowed, %", None),
    ("accuracy", 0, "The same, near the top", (90, 97)),
    ("tvd", 1, "Total variation distance to the automaton, %", None),
)


def rows_of(records: Mapping[str, Record]) -> dict[Row, list[Record]]:
    """Of each row the records, one per seed, in the order of the tables."""
    rows = grouped(records, lambda settings: (settings.name, settings.num_problems, settings.label))
    order = [*NAMES, *sorted({name for name, _, _ in rows} - set(NAMES))]
    return {row: rows[row] for row in sorted(rows, key=lambda r: (r[1], order.index(r[0]), _steps(rows[r]), r[2]))}


def _steps(records: list[Record]) -> int:
    return max(record.configuration.fit.steps if record.configuration.fit else 0 for record in records)


def longest_trainings(records: Mapping[str, Record]) -> dict[str, dict[int, list[Record]]]:
    """Of each model and number of training problems the training of most steps; of `ngram` each number of symbols."""
    longest: dict[str, dict[int, list[Record]]] = defaultdict(dict)
    for (name, problems, _), seeds in rows_of(records).items():  # more steps come later
        longest[name][seeds[0].configuration.symbols if name == NGRAM else problems] = seeds
    return dict(longest)


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """One table for each number of training problems, the n-gram baseline, and the setting."""
    rows = rows_of(records)
    parts = {}
    for problems in sorted({problems for _, problems, _ in rows if problems}):
        headings = ["model", "steps", "seeds", "accuracy", "paper", "TVD", "paper", "last symbol"]
        paper = ["paper"] if problems == 100 else []  # table 3 of Memory Mosaics
        headings += ["in distribution: accuracy", *paper, "TVD", *paper]
        cells = [_cells(name, problems, seeds) for (name, count, _), seeds in rows.items() if count == problems]
        parts[f"{problems:,} training problems"] = markdown(headings, cells)
    counted = [
        [seeds[0].configuration.symbols, *_scores(seeds, "accuracy", "tvd", "last_accuracy")]
        for (name, _, _), seeds in rows.items()
        if name == NGRAM
    ]
    if counted:
        headings = ["symbols of context", "accuracy", "TVD", "last symbol"]
        parts["Counting in the problem, without training"] = markdown(headings, counted)
    trained = [record for record in records.values() if record.configuration.fit]
    return {**parts, "Settings": _settings(trained)} if trained else parts


def _scores(seeds: list[Record], *names: str) -> list[str]:
    return [with_error(score(seeds, "held_out", name), ".1f") for name in names]


def _cells(name: str, problems: int, seeds: list[Record]) -> list[str]:
    known = SPARSE_TABLE_1.get(name) if problems in SPARSE_SIZES else None
    papers = known[SPARSE_SIZES.index(problems)] if known else None
    papers_inside = IN_DISTRIBUTION_100.get(name) if problems == 100 else None
    cells = [NAMES.get(name, name), f"{_steps(seeds):,}", str(len(seeds))]
    for strings, published in (("held_out", papers), ("in_distribution", papers_inside)):
        for column, quantity in enumerate(("accuracy", "tvd")):
            cells.append(with_error(score(seeds, strings, quantity), ".1f"))
            if strings == "held_out" or problems == 100:
                cells.append(f"{published[column]:.1f}" if published else "-")
        if strings == "held_out":
            cells += _scores(seeds, "last_accuracy")
    return cells


def _settings(trained: list[Record]) -> str:
    names = {"width": "hidden_size", "layers": "num_layers", "heads": "num_heads", "batch": "batch_size"}
    settings = [record.configuration for record in trained]
    ours = {name: spread(getattr(of_run, field) for of_run in settings) for name, field in names.items()}
    ours |= {
        "epochs": spread(record.outcome["epochs"] for record in trained),
        "peak learning rate": spread(of_run.fit.learning_rate for of_run in settings),
        "weight decay": spread(of_run.fit.weight_decay for of_run in settings),
        "test problems": spread(of_run.test for of_run in settings),
    }
    return settings_table(ours, SETTING)


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw the longest training of each model and number of problems, and losses by position."""
    trainings = longest_trainings(records)
    title = "RegBench, held-out automata. Filled: ours, longest training ± standard error. Hollow: the paper"
    with panels(path, 13, 9.6, 2, 2, title, legend="shared") as (*score_axes, loss_axis):
        for axis, (quantity, column, heading, limits) in zip(score_axes, PANELS, strict=True):
            for symbols, seeds in trainings.get(NGRAM, {}).items():
                height = score(seeds, "held_out", quantity).mean
                axis.axhline(height, color="gray", lw=0.8, ls=":")
                axis.annotate(f"counting, {symbols}", (SPARSE_SIZES[-1], height), fontsize=7, ha="right", va="bottom")
            for name, style in styles(NAMES).items():
                if name not in trainings:
                    continue
                if name in SPARSE_TABLE_1:
                    values = [row[column] for row in SPARSE_TABLE_1[name]]
                    axis.plot(SPARSE_SIZES, values, "--", markerfacecolor="none", alpha=0.6, lw=1, **style)
                points: dict[float, Estimate] = {
                    n: score(seeds, "held_out", quantity) for n, seeds in sorted(trainings[name].items())
                }
                draw_curve(axis, points, NAMES[name], lw=2, capsize=3, zorder=3, **style)
            axis.set(xscale="log", xlabel="training problems, one automaton each", title=heading)
            axis.set_xticks((100, *SPARSE_SIZES), ["100", *(f"{size / 1000:g}k" for size in SPARSE_SIZES)])
            axis.minorticks_off()
            if limits:
                axis.set_ylim(*limits)
        _draw_losses(loss_axis, trainings)


def _draw_losses(axis, trainings: Trainings) -> None:
    """Of each model the training on the fewest problems of which the losses are known."""
    for name, style in styles(NAMES).items():
        for _, seeds in sorted(trainings.get(name, {}).items()):
            curves = [loss for seed in seeds if (loss := seed.outcome.get("held_out_loss_by_block"))]
            if curves:
                means = [fmean(losses) for losses in zip(*curves)]
                positions = [LOSS_BLOCK * block for block in range(len(means))]
                axis.plot(positions, means, color=style["color"], lw=2)
                break
    axis.set(xlabel="tokens read before", title="Loss, nats per symbol, of the models trained on the fewest problems")
