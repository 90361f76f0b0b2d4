"""The figure: loss by position on each text, all models in one picture."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tessera.evaluation.figures import moving_average
from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record
from tessera.papers.language_modeling.published import NAMES
from tessera.papers.language_modeling.report import MOSAIC, TRANSFORMERS, Row
from tessera.papers.out_of_distribution.report import by_text

DECAY = 0.95
MAPS = {MOSAIC: "Oranges", **dict(zip(TRANSFORMERS, ("Blues", "Greens", "YlOrBr")))}


def draw(records: Mapping[str, Record], path: Path) -> None:
    """A row for each text: mosaic and transformer by depth, then the kernels at the most blocks that they have."""
    texts = by_text(records)
    figure = new_figure(14, 0.6 + 5.0 * len(texts))
    for (by_depth, by_kernel), (text, rows) in zip(figure.subplots(len(texts), 2, squeeze=False), texts.items()):
        _draw(by_depth, {row: seeds for row, seeds in rows.items() if row[0] in MAPS})
        deepest = max((depth for name, depth in rows if name not in MAPS), default=0)
        mosaics = {row: seeds for row, seeds in rows.items() if row[1] == deepest and row[0] not in TRANSFORMERS}
        _draw(by_kernel, mosaics)
        by_depth.set_title(f"{text}: mosaic and transformer, by blocks")
        by_kernel.set_title(f"{text}: kernels" + (f", blocks: {deepest}" if deepest else ""))
    figure.suptitle(f"Loss by position, exponential moving average (decay {DECAY:g}), mean over seeds")
    figure.savefig(path, dpi=110)


def _draw(axis: Any, rows: Mapping[Row, Mapping[int, Record]]) -> None:
    depths = sorted({depth for _, depth in rows})
    for place, ((name, depth), seeds) in enumerate(rows.items()):
        curves = [np.asarray(record.outcome["loss_by_position"], dtype=float) for record in seeds.values()]
        mean = moving_average(np.mean(curves, axis=0), DECAY)
        label = f"{NAMES[name]}, {depth}" if len(depths) > 1 else NAMES[name]
        axis.plot(np.arange(1, len(mean) + 1), mean, lw=1.4, label=label, color=_color(name, depth, depths, place))
    axis.set(xlabel="tokens of context before the predicted one", ylabel="loss, nats per token")
    axis.grid(alpha=0.25)
    axis.set_visible(bool(rows))
    if rows:
        axis.legend(frameon=False, fontsize=8)
        settled = [line.get_ydata()[len(line.get_ydata()) // 16 :] for line in axis.get_lines()]
        low, high = min(np.nanmin(values) for values in settled), max(np.nanmax(values) for values in settled)
        axis.set_ylim(low - 0.05 * (high - low) - 1e-3, high + 0.05 * (high - low) + 1e-3)


def _color(name: str, depth: int, depths: list[int], place: int) -> Any:
    if len(depths) < 2:
        return f"C{place}"
    from matplotlib import colormaps

    return colormaps[MAPS[name]](0.4 + 0.5 * depths.index(depth) / (len(depths) - 1))
