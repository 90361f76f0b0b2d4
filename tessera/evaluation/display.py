"""What `tessera eval` shows: one model in full, several in a table, all of it as JSON, and figures of losses."""

import json
import string
from collections.abc import Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.base.dataclass_io import to_json
from tessera.base.files import is_marked, write_atomically, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Report = dict[str, Any]
COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#334155", "#ca8a04", "#db2777", "#0891b2")
LINES = ("solid", "dashed", "dotted", "dashdot")  # one for each round of the colours
MADE_BY = "Tessera figure"  # in the metadata of every figure, so that it may be replaced
LONGEST = 40  # characters of a name in a table


def training_curves(path: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], title: str = "") -> None:
    """Draw training (thin) and validation (marked) loss over tokens seen of each run's metrics into `path`."""
    figure, axes = _canvas("training tokens, millions", "loss, nats per token", title)
    lowest, highest = np.inf, 0.0
    for (name, records), look in zip(runs.items(), _looks(len(runs))):
        train = [(r["tokens"] / 1e6, r["loss"]) for r in records if r.get("loss") is not None]
        check = _validation(records)
        if train:
            label = None if check else f"{name}, training"
            axes.plot(*zip(*train), **look, linewidth=0.9, alpha=0.45, label=label)
        if check:
            label = f"{name}, validation ({check[-1][1]:.3f} at the end; thin: training)"
            axes.plot(*zip(*check), **look, linewidth=2, marker="o", markersize=4, label=label)
        settled = [loss for _, loss in train[max(1, len(train) // 20) :]] + [loss for _, loss in check]
        lowest, highest = min([lowest, *settled]), max([highest, *settled])
    if np.isfinite(lowest):
        margin = 0.08 * (highest - lowest) + 0.02
        axes.set_ylim(lowest - margin, highest + margin)
    axes.margins(x=0.02)
    if len(runs) > 2:  # would hide the curves
        figure.set_figheight(figure.get_figheight() + 0.2 * len(runs))
        figure.legend(frameon=False, loc="outside lower center")
    else:
        axes.legend(frameon=False, loc="upper right")
    save_figure(figure, path)


def _validation(records: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(millions of tokens, validation loss); steps that logged no token count lie between those that did."""
    counted = [(r["step"], r["tokens"] / 1e6) for r in records if "tokens" in r]
    if not counted:
        return []
    steps, tokens = zip(*sorted(counted))
    return [
        (float(np.interp(r["step"], steps, tokens)), r["validation_loss"]) for r in records if "validation_loss" in r
    ]


def position_curves(
    path: Path, losses: Mapping[str, Sequence[float | None]], title: str = "", average: float | None = None
) -> None:
    """Draw loss over position in the context (log scale) of each named curve into `path`.

    Losses are averaged in narrow bins; with `average`, they are `moving_average`s of that decay instead.
    """
    figure, axes = _canvas("tokens of context before the predicted one", "loss, nats per token", title)
    for (name, curve), look in zip(losses.items(), _looks(len(losses))):
        numbers = np.asarray(curve, dtype=float)
        if average is None:
            places, means = binned(numbers)
        else:
            places, means = np.arange(1, len(numbers) + 1), moving_average(numbers, average)
        axes.plot(places, means, **look, linewidth=2, label=name)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if len(losses) > 1:
        axes.legend(frameon=False)
    save_figure(figure, path)


def moving_average(curve: np.ndarray, decay: float) -> np.ndarray:
    """The exponential moving average over positions: `a_t = sum_s decay^(t-s) x_s / sum_s decay^(t-s)`, s <= t.

    Positions that are NaN are left out of both sums. The division keeps the first positions unbiased.
    """
    kept = np.isfinite(curve)
    parts = (np.where(kept, curve, 0.0), kept.astype(float))
    total, weight = (np.array([*accumulate(part, lambda total, value: decay * total + value)]) for part in parts)
    return np.divide(total, weight, out=np.full(len(curve), np.nan), where=weight > 0)


def binned(curve: np.ndarray, per_octave: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """(position, mean loss) in bins of equal width on a log scale; position t (from 1) is `curve[t - 1]`."""
    positions = np.arange(1, len(curve) + 1)
    kept = np.isfinite(curve)
    positions, curve = positions[kept], curve[kept]
    _, bins, counts = np.unique(np.floor(np.log2(positions) * per_octave), return_inverse=True, return_counts=True)
    return np.bincount(bins, positions) / counts, np.bincount(bins, curve) / counts


def _canvas(x: str, y: str, title: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _looks(count: int) -> list[dict[str, Any]]:
    """Colour and kind of line of each of so many curves: the same only after 32."""
    rounds = [divmod(number, len(COLOURS)) for number in range(count)]
    return [{"color": COLOURS[colour], "linestyle": LINES[again % len(LINES)]} for again, colour in rounds]


def is_figure(path: Path) -> bool:
    """Whether `path` is a figure that this module drew."""
    return is_marked(path, MADE_BY)


def save_figure(figure: "Figure", path: Path) -> None:
    """Write it, with a mark by which it is known later."""
    path = Path(path)
    kind = path.suffix[1:].lower() or "png"
    metadata = {"Software" if kind == "png" else "Creator": MADE_BY}
    with writing(path, "figure"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: figure.savefig(temporary, format=kind, metadata=metadata))


def short_names(folders: Sequence[str]) -> list[str]:
    """The last parts of folders' names, as many as tell them apart; of long ones, what differs.

    >>> short_names(["runs/a/model", "runs/b/model"])
    ['a/model', 'b/model']
    >>> short_names([f"{'a-long-beginning-' * 3}{number}-and-an-end" for number in (1, 23)])
    ['…1…', '…23…']
    """
    parts = [Path(folder).resolve().parts for folder in folders]
    names: list[str] = []
    for depth in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    if len(set(names)) < 2 or max(map(len, names)) <= LONGEST:
        return names
    begin = _shared(names)
    end = _shared([name[:begin:-1] for name in names])
    inner = [name[begin : len(name) - end] for name in names]
    half = LONGEST // 2
    cut = [f"{name[:half]}…{name[-half:]}" if len(name) > LONGEST + 1 else name for name in inner]
    kept = cut if len(set(cut)) == len(set(names)) else inner
    return [f"{'…' * (begin > 0)}{name}{'…' * (end > 0)}" for name in kept]


def _shared(texts: Sequence[str]) -> int:
    """How many characters all texts begin with, cut behind the last that is no letter or digit."""
    alike = "".join(letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, zip(*texts)))
    return len(alike.rstrip(string.ascii_letters + string.digits))


def print_text_reports(reports: Sequence[Report]) -> None:
    """Reports of `evaluate_text`, with "model"."""
    if len(reports) == 1:
        _print_text(reports[0])
    else:
        columns = ("nats/token", "perplexity", "bits/byte", "tokens", "text")
        rows = [
            (f"{r['loss']:.4f}", f"{r['perplexity']:.2f}", f"{r['bits_per_byte']:.4f}", f"{r['tokens']:,}", _text(r))
            for r in reports
        ]
        print_table(columns, short_names([r["model"] for r in reports]), rows)


def draw_text_reports(reports: Sequence[Report], path: Path, average: float | None) -> None:
    """Loss by position of all models into the image file `path`; see `position_curves`."""
    names = short_names([report["model"] for report in reports])
    curves = {name: report["loss_by_position"] for name, report in zip(names, reports)}
    texts = {_text(report) for report in reports}
    title = f"Loss by position: {texts.pop()}" if len(texts) == 1 else "Loss by position"
    position_curves(path, curves, title, average=average)


def print_prompt_report(report: Report) -> None:
    """What `tessera prompts` found of one model: a line for each number of shots and strategy, or each length."""
    print(f"{report['model']}: {report['data']} (mean, standard error)")
    rows: dict[str, dict] = {}
    for length, scores in report["scores"].items():
        if "documents" in scores:
            rows[f"{length} tokens, {scores['documents']:.1f} documents"] = scores
        else:
            rows |= {f"{length} shots, {strategy}": of_strategy for strategy, of_strategy in scores.items()}
    columns = tuple(name for name in next(iter(rows.values())) if name != "documents")
    print_table(columns, list(rows), [tuple(_estimate(scores[name]) for name in columns) for scores in rows.values()])


def _estimate(score: dict[str, float]) -> str:
    return f"{score['mean']:.4f} {score['standard_error']:.4f}".replace("nan", "-")  # one question has no error


def print_task_reports(reports: Sequence[Report]) -> None:
    """Reports of `task_report`, with "model": a table for each model."""
    for name, report in zip(short_names([report["model"] for report in reports]), reports):
        print(f"{name}: {report['task']}, {report['examples']} examples per length (mean, standard error)")
        columns = tuple(next(iter(report["scores"].values())))
        rows = [tuple(map(_estimate, scores.values())) for scores in report["scores"].values()]
        print_table(columns, [f"{report['length_setting']} {length}" for length in report["scores"]], rows)


def print_harness_reports(reports: Sequence[Report]) -> None:
    """Reports of `harness_report`, with "model": a line for each metric of each task, groups behind them."""
    for name, report in zip(short_names([report["model"] for report in reports]), reports):
        switched = {True: "", False: ", without long-term memories", None: ""}[report["long_term_memory"]]
        print(f"{name}{switched}")
        names, rows = [], []
        for task, values in {**report["results"], **report.get("groups", {})}.items():
            for key, value in values.items():
                metric, comma, filtered = key.partition(",")
                if not comma or metric.endswith("_stderr"):
                    continue
                error = values.get(f"{metric}_stderr,{filtered}", "")
                shots = report["n-shot"].get(task, "")
                names.append(task)
                shown = "" if filtered == "none" else filtered
                rows.append((metric, _number(value), _number(error), str(shots), shown))
        print_table(("metric", "value", "standard error", "shots", "filter"), names, rows)


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def print_json(reports: Sequence[Report]) -> None:
    """All of it; null for what JSON does not know: NaN and infinity, such as the standard error of one example."""
    print(json.dumps(to_json(reports[0] if len(reports) == 1 else list(reports)), indent=1, allow_nan=False))


def _print_text(report: Report) -> None:
    print(f"{report['tokens']:,} tokens of {_text(report)} in {report['sequences']} sequences of {report['context']}")
    print(f"loss           {report['loss']:.4f} nats/token")
    print(f"perplexity     {report['perplexity']:.2f}")
    print(f"bits per byte  {report['bits_per_byte']:.4f}")
    print("loss by position (tokens of context: nats/token)")
    curve = np.array([np.nan if value is None else value for value in report["loss_by_position"]])
    for position, loss in zip(*binned(curve, per_octave=1)):
        print(f"  {position:8.0f}: {loss:.4f}")


def _text(report: Report) -> str:
    return f"{report['data']} ({report['part']})"


def print_table(columns: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Right-aligned columns under their headings; the last may be longer than the line."""
    first = max(map(len, names), default=0)
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    for name, row in [("", columns), *zip(names, rows)]:
        print("  ".join([f"{name:<{first}}", *(f"{cell:>{width}}" for cell, width in zip(row, widths))]).rstrip())
