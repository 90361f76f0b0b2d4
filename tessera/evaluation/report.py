"""What `tessera eval` prints: one model in full, several models in a table, all of it as JSON."""

import itertools
import json
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.base.dataclass_io import to_json
from tessera.evaluation.figures import binned, position_curves

Report = dict[str, Any]
LONGEST = 40  # characters of a name in a table


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
    alike = "".join(letters[0] for letters in itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*texts)))
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
    return f"{score['mean']:.4f} {score['standard_error']:.4f}"


def print_task_reports(reports: Sequence[Report]) -> None:
    """Reports of `task_report`, with "model": a table for each model."""
    for name, report in zip(short_names([report["model"] for report in reports]), reports):
        print(f"{name}: {report['task']}, {report['examples']} examples per length (mean, standard error)")
        columns = tuple(next(iter(report["scores"].values())))
        rows = [tuple(map(_estimate, scores.values())) for scores in report["scores"].values()]
        lengths = [f"{report['length_setting']} {length}" for length in report["scores"]]
        print_table(columns, lengths, rows)


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
                rows.append(
                    (metric, _number(value), _number(error), str(shots), "" if filtered == "none" else filtered)
                )
        print_table(("metric", "value", "standard error", "shots", "filter"), names, rows)


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def print_json(reports: Sequence[Report]) -> None:
    """All of it; null for what JSON does not know: NaN and infinity, such as the standard error of one example."""
    content = to_json(reports[0] if len(reports) == 1 else list(reports))
    print(json.dumps(content, indent=1, allow_nan=False))


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
    first = max(map(len, names))
    widths = [max(len(column), *(len(row[i]) for row in rows)) for i, column in enumerate(columns)]
    for name, row in [("", columns), *zip(names, rows)]:
        print("  ".join([f"{name:<{first}}", *(f"{cell:>{width}}" for cell, width in zip(row, widths))]).rstrip())
