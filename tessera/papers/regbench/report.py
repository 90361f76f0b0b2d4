"""RegBench's numbers beside the papers', in tables and in a figure."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from tessera.papers.experiment import Record
from tessera.papers.regbench.published import IN_DISTRIBUTION_100, NAMES, SETTING, SPARSE_SIZES, SPARSE_TABLE_1
from tessera.papers.regbench.settings import LOSS_BLOCK, NGRAM
from tessera.papers.tables import markdown, new_figure, over_seeds, settings_table, spread, with_error
from tessera.tasks.task import Estimate

# Name, training problems and label of a row.
Row = tuple[str, int, str]
Trainings = Mapping[str, Mapping[int, list[Record]]]
MARKERS = "osv^<>DPX*hdpH8"
COLORS = [f"C{place}" for place in range(10)] + ["black", "gold", "navy", "lime", "magenta"]
# Score, column of the paper's table, title, limits of the axis.
PANELS = (
    ("accuracy", 0, "Most likely next symbol is allowed, %", None),
    ("accuracy", 0, "The same, near the top", (90, 97)),
    ("tvd", 1, "Total variation distance to the automaton, %", None),
)


def rows_of(records: Mapping[str, Record]) -> dict[Row, list[Record]]:
    """Of each row the records, one per seed, in the order of the tables."""
    rows: dict[Row, list[Record]] = defaultdict(list)
    for record in sorted(records.values(), key=lambda record: record.configuration.seed):
        settings = record.configuration
        rows[settings.name, settings.num_problems, settings.label].append(record)
    order = [*NAMES, *sorted({name for name, _, _ in rows} - set(NAMES))]
    return {row: rows[row] for row in sorted(rows, key=lambda r: (r[1], order.index(r[0]), _steps(rows[r]), r[2]))}


def _steps(records: list[Record]) -> int:
    return max(record.configuration.fit.steps if record.configuration.fit else 0 for record in records)


def score(records: list[Record], place: str, name: str) -> Estimate:
    """A score in per cent over seeds."""
    return over_seeds([record.outcome[place][name] for record in records])


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
    for place, published in (("held_out", papers), ("in_distribution", papers_inside)):
        for column, quantity in enumerate(("accuracy", "tvd")):
            cells.append(with_error(score(seeds, place, quantity), ".1f"))
            if place == "held_out" or problems == 100:
                cells.append(f"{published[column]:.1f}" if published else "-")
        if place == "held_out":
            cells += _scores(seeds, "last_accuracy")
    return cells


def _settings(trained: list[Record]) -> str:
    names = {"width": "hidden_size", "layers": "num_layers", "heads": "num_heads", "batch": "batch_size"}
    settings = [record.configuration for record in trained]
    ours = {name: spread(getattr(one, field) for one in settings) for name, field in names.items()}
    ours |= {
        "epochs": spread(record.outcome["epochs"] for record in trained),
        "peak learning rate": spread(one.fit.learning_rate for one in settings),
        "weight decay": spread(one.fit.weight_decay for one in settings),
        "test problems": spread(one.test for one in settings),
    }
    return settings_table(ours, SETTING)


def draw(trainings: Trainings, path: Path) -> None:
    """Draw `trainings[model][training problems]`, the records of each seed, into `path`."""
    figure = new_figure(13, 9.6)
    *score_axes, loss_axis = figure.subplots(2, 2).flat
    for axis, (quantity, column, title, limits) in zip(score_axes, PANELS, strict=True):
        for symbols, seeds in trainings.get(NGRAM, {}).items():
            height = score(seeds, "held_out", quantity).mean
            axis.axhline(height, color="gray", lw=0.8, ls=":")
            axis.annotate(f"counting, {symbols}", (SPARSE_SIZES[-1], height), fontsize=7, ha="right", va="bottom")
        for place, name in enumerate(NAMES):
            style = {"color": COLORS[place], "marker": MARKERS[place]}
            _draw_model(axis, name, trainings.get(name, {}), quantity, column, style)
        axis.set(xscale="log", xlabel="training problems, one automaton each", title=title)
        axis.set_xticks((100, *SPARSE_SIZES), ["100", *(f"{size / 1000:g}k" for size in SPARSE_SIZES)])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        if limits:
            axis.set_ylim(*limits)
    _draw_losses(loss_axis, trainings)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle("RegBench, held-out automata. Filled: ours, longest training ± standard error. Hollow: the paper")
    figure.savefig(path, dpi=120)


def _draw_model(axis, name: str, ours: Mapping[int, list[Record]], quantity: str, column: int, style: dict) -> None:
    if not ours:
        return
    if name in SPARSE_TABLE_1:
        values = [row[column] for row in SPARSE_TABLE_1[name]]
        axis.plot(SPARSE_SIZES, values, "--", markerfacecolor="none", alpha=0.6, lw=1, **style)
    estimates = {problems: score(seeds, "held_out", quantity) for problems, seeds in sorted(ours.items())}
    means, errors = ([point[field] for point in estimates.values()] for field in (0, 1))
    axis.errorbar(list(estimates), means, yerr=errors, label=NAMES[name], lw=2, capsize=3, zorder=3, **style)


def _draw_losses(axis, trainings: Trainings) -> None:
    """Of each model the training on the fewest problems of which the losses are known."""
    for place, name in enumerate(NAMES):
        for problems, seeds in sorted(trainings.get(name, {}).items()):
            curves = [loss for seed in seeds if (loss := seed.outcome.get("held_out_loss_by_block"))]
            if curves:
                means = [fmean(losses) for losses in zip(*curves)]
                positions = [LOSS_BLOCK * block for block in range(len(means))]
                axis.plot(positions, means, color=COLORS[place], lw=2, label=f"{NAMES[name]}, {problems:,} problems")
                break
    axis.set(xlabel="tokens read before", title="Loss, nats per symbol, of the models trained on the fewest problems")
    axis.grid(alpha=0.25)
    if axis.lines:
        axis.legend(fontsize=8, frameon=False)
