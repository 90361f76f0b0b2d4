"""Out of distribution: models that were trained on stories read novels, or any text of the user's."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from tessera.data.sources import text_source
from tessera.evaluation.display import moving_average
from tessera.evaluation.loss import EvaluationText
from tessera.papers.curves import Axes, panels
from tessera.papers.experiment import LIBRARY, Experiment, Record, Run, RunContext, RunSelection
from tessera.papers.language_modeling import run as language
from tessera.papers.language_modeling.report import Row, Rows, gain_from_context
from tessera.papers.language_modeling.run import MAIN_NAMES, MOSAIC, NAMES, POSITIONS
from tessera.papers.records import difference, grouped, mean_of
from tessera.papers.tables import markdown, with_error

NOVELS = "novels"
# Borders of the bins, in tokens of context before the predicted one: 1 to 16, 17 to 50, ...
BORDERS = (0, 16, 50, 100, 150, 255, 511)
DECAY = 0.95
MAPS = dict(zip(MAIN_NAMES, ("Oranges", "Blues", "Greens", "Purples")))


@dataclass(frozen=True)
class TextSettings:
    """One trained model on one text.

    Attributes:
        trained: its training in `language_modeling`.
        text: `NOVELS`, or a name that the user gave with `--data`. digest: of the user's text, else "".
        sequences: at most so many, spread over the text.
    """

    trained: language.LanguageSettings
    text: str
    digest: str
    sequences: int

    @property
    def seed(self) -> int:
        """Of the training."""
        return self.trained.seed


def plan(selection: RunSelection) -> list[Run]:
    """Every model of `language_modeling`, in its order, on the bundled novels or on the texts of `--data`."""
    chosen = language.texts_of(selection.data)
    places = {text.name: text.path for text in chosen}
    models = [run for run in language.plan(replace(selection, data=None)) if run.configuration.part == language.MAIN]
    count = language.SEQUENCES[selection.budget]
    return [
        Run(f"{name}/{run.key}", TextSettings(run.configuration, name, digest, count), run.cost, places)
        for name, digest in [(text.name, text.digest) for text in chosen] or [(NOVELS, "")]
        for run in models
    ]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Evaluate a trained model, which is trained first unless `language_modeling` has; nats per token."""
    settings = run.configuration
    folder = language.trained_model(settings.trained, context)
    context.report(1.0, f"reading {settings.text}")
    text = EvaluationText(text_source(run.data.get(settings.text, settings.text)), context=settings.trained.context)
    measured = language.evaluated(folder, text, settings.sequences, context)
    return {name: measured[name] for name in ("loss", "tokens", "sequences", "loss_by_position")}


def by_text(records: Mapping[str, Record]) -> dict[str, dict[Row, list[Record]]]:
    """Text -> (name, blocks) -> records by seed, in the order of tables."""
    rows = grouped(records, lambda settings: (settings.text, settings.trained.num_layers, settings.trained.name))
    texts: dict[str, dict[Row, list[Record]]] = {}
    for text, depth, name in sorted(rows, key=lambda row: (row[0], row[1], list(NAMES).index(row[2]))):
        texts.setdefault(text, {})[name, depth] = rows[text, depth, name]
    return texts


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """For each text the losses, mosaic minus transformer by depth, and each kernel minus the Gaussian one."""
    tables: dict[str, str] = {}
    for text, rows in by_text(records).items():
        depths = sorted({depth for _, depth in rows})
        transformers = [((MOSAIC, depth), (name, depth), (name, depth)) for name in POSITIONS for depth in depths]
        kernels = [((name, depth), (MOSAIC, depth), (name, depth)) for name, depth in rows if name not in MAIN_NAMES]
        tables[f"{text}: loss by position"] = _losses(rows)
        tables[f"{text}: mosaic minus transformer"] = _differences("transformer, blocks", rows, transformers)
        tables[f"{text}: gain from context"] = gain_from_context(rows)
        tables[f"{text}: kernel minus Gaussian"] = _differences("kernel, blocks", rows, kernels)
    return tables


def binned(curve: Sequence[float]) -> list[float]:
    """Mean loss in each bin of `BORDERS` that the curve reaches."""
    return [fmean(curve[low:high]) for low, high in pairwise(BORDERS) if low < len(curve)]


def _columns(rows: Rows) -> dict[str, Callable[[Record], float]]:
    """The loss on all tokens and in each bin, by heading."""
    length = max(len(record.outcome["loss_by_position"]) for seeds in rows.values() for record in seeds)
    bins = [f"{low + 1} to {min(high, length)}" for low, high in pairwise(BORDERS) if low < length]

    def in_bin(index: int) -> Callable[[Record], float]:
        return lambda record: binned(record.outcome["loss_by_position"])[index]

    return {"all": lambda record: record.outcome["loss"], **{name: in_bin(index) for index, name in enumerate(bins)}}


def _losses(rows: Rows) -> str:
    columns, lines = _columns(rows), []
    for (name, depth), seeds in rows.items():
        means = [mean_of(list(map(loss, seeds))) for loss in columns.values()]
        lines.append([NAMES[name], depth, len(seeds), *(with_error(mean, ".3f") for mean in means)])
    return markdown(["model", "blocks", "seeds", *columns], lines)


def _differences(heading: str, rows: Rows, pairs: Iterable[tuple[Row, Row, Row]]) -> str:
    """Ours minus theirs, seed by seed; `pairs`: ours, theirs, and which of them names the line."""
    columns, lines = _columns(rows), []
    for ours, theirs, (name, depth) in pairs:
        changes = [difference(rows.get(ours, ()), rows.get(theirs, ()), value) for value in columns.values()]
        if changes[0] is not None:
            cells = [with_error(change, "+.3f") for change in changes]
            lines.append([f"{NAMES[name]}, {depth}", changes[0].count, *cells])
    return markdown([heading, "seeds", *columns], lines)


def plot(records: Mapping[str, Record], path: Path) -> None:
    """A row for each text: mosaic and transformer by depth, then the kernels at the most blocks that they have."""
    texts = by_text(records)
    title = f"Loss by position, exponential moving average (decay {DECAY:g}), mean over seeds"
    with panels(path, 18, 0.6 + 5.0 * len(texts), len(texts), 2, title, legend="beside") as axes:
        for by_depth, by_kernel, (text, rows) in zip(axes[::2], axes[1::2], texts.items(), strict=True):
            _draw(by_depth, {row: seeds for row, seeds in rows.items() if row[0] in MAPS})
            deepest = max((depth for name, depth in rows if name not in MAPS), default=0)
            _draw(by_kernel, {row: rows[row] for row in rows if row[1] == deepest and row[0] not in POSITIONS})
            by_depth.set_title(f"{text}: mosaic and transformer, by blocks")
            by_kernel.set_title(f"{text}: kernels" + (f", blocks: {deepest}" if deepest else ""))


def _draw(axis: Axes, rows: Rows) -> None:
    from matplotlib import colormaps

    depths = sorted({depth for _, depth in rows})
    rates = {row: seeds[0].configuration.trained.learning_rate for row, seeds in rows.items()}
    lines = []
    for index, ((name, depth), seeds) in enumerate(rows.items()):
        curves = [np.asarray(record.outcome["loss_by_position"], dtype=float) for record in seeds]
        mean = moving_average(np.mean(curves, axis=0), DECAY)
        label = f"{NAMES[name]}, {depth}" if len(depths) > 1 else NAMES[name]
        if len(depths) == 1 and len({*rates.values()}) > 1:
            label += f" (rate {rates[name, depth]:g})"
        color: Any = f"C{index}"
        if len(depths) > 1:
            color = colormaps[MAPS[name]](0.4 + 0.5 * depths.index(depth) / (len(depths) - 1))
        axis.plot(np.arange(1, len(mean) + 1), mean, lw=1.4, label=label, color=color)
        lines.append(mean[len(mean) // 16 :])
    axis.set(xlabel="tokens of context before the predicted one", ylabel="loss, nats per token")
    if lines:
        low, high = min(map(np.nanmin, lines)), max(map(np.nanmax, lines))
        axis.set_ylim(low - 0.05 * (high - low) - 1e-3, high + 0.05 * (high - low) + 1e-3)


EXPERIMENT = Experiment(
    LIBRARY["out_of_distribution"], TextSettings, plan, execute, tables, plot, language.MODELS,
    language.KERNELS, language.PUBLISHED_RECIPES, takes_data=True,
)  # fmt: skip
