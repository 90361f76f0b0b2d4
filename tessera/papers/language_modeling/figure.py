"""The figure of the language models: loss by depth, curves of training, and loss by kernel."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record
from tessera.papers.language_modeling.published import NAMES
from tessera.papers.language_modeling.report import MOSAIC, TRANSFORMERS, Row, by_row, loss, texts

COLORS = {MOSAIC: "#c2410c", **dict(zip(TRANSFORMERS, ("#1d4ed8", "#15803d", "#a16207")))}
MARKERS = "osD^v<>pPXh"
Rows = Mapping[Row, Mapping[int, Record]]


def draw(records: Mapping[str, Record], path: Path) -> None:
    """Draw what there are records for: of the budget's own training text, or of another if there is only that."""
    rows = by_row(next(iter(texts(records).values()), {}))
    figure = new_figure(16, 5.4)
    depth, curves, kernels = figure.subplots(1, 3)
    _by_depth(depth, rows)
    _curves(curves, rows)
    _by_kernel(kernels, rows)
    for axis in (depth, curves, kernels):
        axis.set_ylabel("loss, nats per token")
        axis.grid(alpha=0.25)
        if axis.get_lines():
            axis.legend(frameon=False, fontsize=8)
        else:
            axis.set_visible(False)
    figure.savefig(path, dpi=120)


def _by_depth(axis: Any, rows: Rows) -> None:
    for name, color in COLORS.items():
        depths = [depth for other, depth in rows if other == name]
        if depths:
            estimates = [loss(rows[name, depth]) for depth in depths]
            errors = [0.0 if one.standard_error != one.standard_error else one.standard_error for one in estimates]
            means = [one.mean for one in estimates]
            axis.errorbar(depths, means, yerr=errors, label=NAMES[name], color=color, marker="o", capsize=3)
    depths = sorted({depth for name, depth in rows if name in COLORS})
    axis.set_xscale("log", base=2)
    axis.set_xticks(depths, [str(depth) for depth in depths])
    axis.minorticks_off()
    axis.set(xlabel="blocks", title="Validation loss by depth")


def _curves(axis: Any, rows: Rows) -> None:
    for (name, depth), seeds in rows.items():
        if name not in COLORS:
            continue
        outcome = next(iter(seeds.values())).outcome
        shade = {"color": COLORS[name], "alpha": 0.3 + 0.7 * _place(depth, rows)}
        tokens, losses = zip(*outcome["training"])
        axis.plot([t / 1e6 for t in tokens], losses, lw=0.5, ls=":", **shade)
        tokens, losses = zip(*outcome["validation"])
        axis.plot([t / 1e6 for t in tokens], losses, lw=1.5, label=f"{NAMES[name]}, {depth}", **shade)
    axis.set(xlabel="tokens seen, millions", title="Validation (lines) and training (dotted), by blocks")


def _place(depth: int, rows: Rows) -> float:
    depths = sorted({depth for name, depth in rows if name in COLORS})
    return depths.index(depth) / max(1, len(depths) - 1)


def _by_kernel(axis: Any, rows: Rows) -> None:
    depths = sorted({depth for name, depth in rows if name.startswith("mosaic") and name != MOSAIC})
    names = [name for name in NAMES if any((name, depth) in rows for depth in depths)]
    for place, name in enumerate(names):
        known = [depth for depth in depths if (name, depth) in rows]
        means = [loss(rows[name, depth]).mean for depth in known]
        color = COLORS.get(name, f"C{place}")
        axis.plot(
            [depths.index(depth) for depth in known], means, color=color, marker=MARKERS[place], label=NAMES[name]
        )
    axis.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    axis.set(xlabel="blocks", title="Validation loss by kernel")
