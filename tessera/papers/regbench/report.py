"""RegBench's numbers beside the papers', in tables and in a figure."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from tessera.kernels import kernel_names
from tessera.papers.curves import draw_curve, panels, styles
from tessera.papers.experiment import LIBRARY, PAPER_KERNELS, Experiment, Record
from tessera.papers.records import as_cell, grouped, score, spread
from tessera.papers.regbench.run import LOSS_BLOCK, MODELS, NGRAM, RegBenchSettings, execute, plan
from tessera.papers.tables import SettingsRows, markdown, settings_of, with_error

KERNELS = "gaussian gaussian_knn uniform_knn normalized_relu relumax sparsemax biweight triweight".split()
# Names of rows, in the order of tables and figures; the last ones are not in the papers' tables.
NAMES = {
    **{f"mosaic {kernel}": PAPER_KERNELS[kernel] for kernel in KERNELS},
    "transformer": "Transformer",
    "transformer_rope": "Transformer, RoPE",
    "mamba": "Mamba",
    "lstm": "LSTM",
    "linear_transformer": "Linear transformer",
    "retnet": "RetNet",
    "gla": "Gated linear attention (GLA)",
    "mosaic_v2 gaussian": "Memory Mosaic v2",
}
# What it is here, and of the best setting of the kernels paper's search (table 5); table 1's test problems.
SETTINGS: SettingsRows = {
    "width": ("hidden_size", 128),
    "layers": ("num_layers", 2),
    "heads": ("num_heads", 8),
    "batch": ("batch_size", 32),
    "epochs": (lambda trained: spread(record.outcome["epochs"] for record in trained), "up to 200"),
    "peak learning rate": ("fit.learning_rate", 5e-4),
    "weight decay": ("fit.weight_decay", 0.01),
    "test problems": ("test", 1000),
}
SPARSE_SIZES = (1000, 2500, 5000, 10000, 20000, 40000)
# Sparse Attention as Compact Kernel Regression, table 1: (accuracy, TVD) for each of SPARSE_SIZES training problems,
# of the models that are trained here.
SPARSE_TABLE_1: dict[str, tuple[tuple[float, float], ...]] = {
    "retnet": ((51.3, 67.4), (50.5, 63.9), (81.5, 33.3), (88.4, 25.7), (90.8, 22.5), (92.6, 18.9)),
    "gla": ((51.8, 65.3), (51.1, 62.2), (82.1, 31.0), (90.2, 24.5), (91.2, 21.2), (92.9, 19.0)),
    "mamba": ((69.4, 51.0), (79.4, 41.0), (88.7, 30.6), (90.5, 28.4), (91.3, 27.0), (91.5, 27.0)),
    "transformer": ((54.5, 62.6), (92.4, 20.5), (92.7, 18.9), (94.8, 15.7), (95.1, 15.0), (95.5, 13.9)),
    "mosaic gaussian": ((93.9, 34.1), (93.7, 20.8), (94.6, 17.7), (95.0, 15.9), (95.4, 15.3), (95.4, 14.2)),
    "mosaic gaussian_knn": ((93.4, 33.3), (93.7, 19.8), (94.4, 17.2), (94.8, 16.0), (94.8, 16.0), (95.0, 14.9)),
    "mosaic uniform_knn": ((84.6, 41.1), (85.6, 28.3), (86.1, 27.2), (86.2, 26.4), (86.5, 26.4), (86.4, 26.4)),
    "mosaic normalized_relu": ((84.3, 43.6), (87.0, 29.6), (90.1, 24.6), (91.6, 21.7), (93.1, 19.4), (93.3, 18.6)),
    "mosaic relumax": ((93.8, 36.8), (94.2, 20.4), (94.3, 17.8), (94.9, 15.7), (95.4, 15.0), (95.4, 14.1)),
    "mosaic sparsemax": ((94.2, 32.5), (94.0, 19.3), (94.4, 17.1), (94.9, 15.9), (95.0, 15.0), (95.4, 14.0)),
    "mosaic biweight": ((93.8, 33.0), (94.3, 19.2), (94.7, 16.6), (95.2, 15.7), (95.0, 15.8), (95.5, 13.8)),
    "mosaic triweight": ((93.9, 32.9), (94.3, 19.0), (94.8, 16.2), (94.9, 16.1), (95.1, 15.3), (95.3, 14.4)),
}
# Memory Mosaics, table 3: (accuracy, TVD) on fresh strings of the 100 training automata.
IN_DISTRIBUTION_100: dict[str, tuple[float, float]] = {
    "mosaic gaussian": (95.9, 41.7),
    "transformer": (85.6, 30.8),
    "mamba": (92.9, 26.8),
    "linear_transformer": (81.6, 34.8),
    "gla": (87.0, 28.4),
    "lstm": (84.9, 34.3),
    "retnet": (87.6, 29.6),
}
# Name, training problems and label of a row.
Row = tuple[str, int, str]
# Score, column of the paper's table, title, limits of the axis.
PANELS = (
    ("accuracy", 0, "Most likely next symbol is allowed, %", None),
    ("accuracy", 0, "The same, near the top", (90, 97)),
    ("tvd", 1, "Total variation distance to the automaton, %", None),
)


def rows_of(records: Mapping[str, Record]) -> dict[Row, list[Record]]:
    """Of each row the records, one per seed, in the order of the tables; of equally long trainings the best last."""
    rows = grouped(records, lambda settings: (settings.name, settings.num_problems, settings.label))
    order = [*NAMES, *sorted({name for name, _, _ in rows} - set(NAMES))]
    return {row: rows[row] for row in sorted(rows, key=lambda r: (r[1], order.index(r[0]), *_length(rows[r]), r[2]))}


def _length(seeds: list[Record]) -> tuple[int, float]:
    """Steps, and minus the loss on validation problems; zeros of what is not trained."""
    if seeds[0].configuration.fit is None:
        return 0, 0.0
    return seeds[0].configuration.fit.steps, -fmean(record.outcome["training"]["best"] for record in seeds)


def longest_trainings(records: Mapping[str, Record]) -> dict[str, dict[int, list[Record]]]:
    """Of each model and number of training problems the training of most steps; of `ngram` each number of symbols."""
    longest: dict[str, dict[int, list[Record]]] = defaultdict(dict)
    for (name, problems, _), seeds in rows_of(records).items():  # the longest comes last
        longest[name][seeds[0].configuration.symbols if name == NGRAM else problems] = seeds
    return dict(longest)


def losses_by_block(records: Mapping[str, Record]) -> tuple[tuple[int, int], dict[str, list[float]]]:
    """Of the number of problems and of steps that most models were trained at: these, and the mean losses of each."""
    trainings: dict[tuple[int, int], dict[str, list[float]]] = defaultdict(dict)
    for (name, problems, _), seeds in rows_of(records).items():
        curves = [curve for record in seeds if (curve := record.outcome.get("held_out_loss_by_block"))]
        trainings[problems, _length(seeds)[0]] |= {name: list(map(fmean, zip(*curves)))} if curves else {}
    return max(trainings.items(), key=lambda training: len(training[1]))


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """One table for each number of training problems, the n-gram baseline, and the setting."""
    rows = rows_of(records)
    # Trainings of a budget for a GPU are equally long: the label says which is which.
    alike = Counter((name, problems, _length(seeds)[0]) for (name, problems, _), seeds in rows.items())
    parts = {}
    for problems in sorted({problems for _, problems, _ in rows if problems}):
        headings = ["model", "steps", "tested after", "seeds", "accuracy", "paper", "TVD", "paper", "last symbol"]
        paper = ["paper"] if problems == 100 else []  # table 3 of Memory Mosaics
        headings += ["in distribution: accuracy", *paper, "TVD", *paper]
        cells = [_cells(row, seeds, alike) for row, seeds in rows.items() if row[1] == problems]
        parts[f"{problems:,} training problems"] = markdown(headings, cells)
    counted = [
        [seeds[0].configuration.symbols, *_scores(seeds, "accuracy", "tvd", "last_accuracy")]
        for (name, _, _), seeds in rows.items()
        if name == NGRAM
    ]
    headings = ["symbols of context", "accuracy", "TVD", "last symbol"]
    parts["Counting in the problem, without training"] = markdown(headings, counted)
    trained = [record for record in records.values() if record.configuration.fit]
    return parts | {"Settings": settings_of(trained, SETTINGS)}


def _scores(seeds: list[Record], *names: str) -> list[str]:
    return [with_error(score(seeds, "held_out", name), ".1f") for name in names]


def _cells(row: Row, seeds: list[Record], alike: Mapping[tuple[str, int, int], int]) -> list[str]:
    name, problems, label = row
    known = SPARSE_TABLE_1.get(name) if problems in SPARSE_SIZES else None
    papers = known[SPARSE_SIZES.index(problems)] if known else None
    papers_inside = IN_DISTRIBUTION_100.get(name) if problems == 100 else None
    tested = spread(record.outcome["training"]["best_step"] for record in seeds)
    title = NAMES.get(name, name) + (f", {label}" if alike[name, problems, _length(seeds)[0]] > 1 else "")
    cells = [title, f"{_length(seeds)[0]:,}", as_cell(tested), str(len(seeds))]
    for strings, published in (("held_out", papers), ("in_distribution", papers_inside)):
        for column, quantity in enumerate(("accuracy", "tvd")):
            cells.append(with_error(score(seeds, strings, quantity), ".1f"))
            if strings == "held_out" or problems == 100:
                cells.append(f"{published[column]:.1f}" if published else "-")
        if strings == "held_out":
            cells += _scores(seeds, "last_accuracy")
    return cells


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw the longest training of each model and number of problems, and losses by position."""
    trainings = longest_trainings(records)
    title = "RegBench, held-out automata. Filled: ours, longest training (steps differ) ± error. Hollow: the paper"
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
                points = {n: score(seeds, "held_out", quantity) for n, seeds in sorted(trainings[name].items())}
                draw_curve(axis, points, NAMES[name], lw=2, capsize=3, zorder=3, **style)
            axis.set(xscale="log", xlabel="training problems, one automaton each", title=heading)
            axis.set_xticks((100, *SPARSE_SIZES), ["100", *(f"{size / 1000:g}k" for size in SPARSE_SIZES)])
            axis.minorticks_off()
            if limits:
                axis.set_ylim(*limits)
        (problems, steps), losses = losses_by_block(records)
        for name, style in styles(NAMES).items():
            means = losses.get(name, [])
            loss_axis.plot(range(0, LOSS_BLOCK * len(means), LOSS_BLOCK), means, color=style["color"], lw=2)
        title = f"Loss, nats per symbol, after {steps:,} steps on {problems:,} problems"
        loss_axis.set(xlabel="tokens read before", title=title)


ABOUT = LIBRARY["regbench"]
EXPERIMENT = Experiment(ABOUT, RegBenchSettings, plan, execute, tables, plot, MODELS, tuple(kernel_names()), long=True)
