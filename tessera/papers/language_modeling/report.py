"""Language models by depth and by kernel, the rates that were tried, and the settings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.experiment import Record
from tessera.papers.language_modeling.settings import (
    MAIN,
    MAIN_NAMES,
    MOSAIC,
    NAMES,
    OTHER_KERNELS,
    POSITIONS,
    SEARCH,
    blocks,
)
from tessera.papers.recipe_settings import spread_of
from tessera.papers.tables import difference, grouped, markdown, mean_of, settings_table, spread, table_of, with_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = dict(zip(MAIN_NAMES, ("#c2410c", "#1d4ed8", "#15803d", "#a16207")))
# Settings of both papers; of the second (table 3), those of one and eight blocks. Heading: key of the recipe, value.
PUBLISHED = {
    "text": ("data.source", "BabiStories"),
    "vocabulary": ("tokenizer.vocab_size", 50257),
    "width": ("model.hidden_size", 768),
    "heads": ("model.num_heads", 12),
    "slots": ("model.num_persistent_slots", 2688),
    "context": ("data.context", 512),
    "batch": ("training.batch_size", 512),
    "steps": ("training.steps", 80000),
    "tokens": (None, 80000 * 512 * 512),
    "warm-up": ("training.warmup_steps", 2000),
    "peak rate": ("training.learning_rate", 5e-3),
    "last rate": ("training.min_learning_rate", 1e-4),
    "weight decay": ("training.weight_decay", 0.1),
    "dropout": (None, 0.05),
    "clip": ("training.clip", 1.0),
    "precision": (None, "bf16"),
    "seeds": (None, 1),
}
Row = tuple[str, int]  # name and blocks
Rows = Mapping[Row, Sequence[Record]]


def by_row(records: Mapping[str, Record], part: str = MAIN) -> dict[Row, list[Record]]:
    """The records of one part by name and blocks, in the order of tables; each row by seed."""
    of_part = {key: record for key, record in records.items() if record.configuration.part == part}
    rows = grouped(of_part, lambda settings: (settings.name, settings.num_layers))
    return {row: rows[row] for row in sorted(rows, key=lambda row: (list(NAMES).index(row[0]), row[1]))}


def loss(record: Record) -> float:
    """On validation text at the end, nats per token."""
    return record.outcome["loss"]


def _loss_cell(seeds: Sequence[Record]) -> str:
    return with_error(mean_of(list(map(loss, seeds))) if seeds else None, ".3f")


def _difference_cell(seeds: Sequence[Record], others: Sequence[Record]) -> str:
    return with_error(difference(seeds, others, loss), "+.3f")


def texts(records: Mapping[str, Record]) -> dict[str, dict[str, Record]]:
    """The records of each training text; that of the budget is called ""."""
    names = sorted({record.configuration.other_text for record in records.values()})
    return {
        name: {key: record for key, record in records.items() if record.configuration.other_text == name}
        for name in names
    }


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Every table that there are records for; other training texts than the budget's stand in the headings."""
    tables: dict[str, str] = {}
    for text, of_text in texts(records).items():
        rows = by_row(of_text)
        made = {
            "Validation loss by depth": _by_depth(rows),
            "Validation loss by kernel": _by_kernel(rows),
            "Learning rates": _rates(of_text),
            "Settings": _settings(rows),
        }
        tables |= {f"{heading} ({text})" if text else heading: table for heading, table in made.items() if table}
    return tables


def _by_depth(rows: Rows) -> str:
    names = [name for name in MAIN_NAMES if name == MOSAIC or any(row[0] == name for row in rows)]
    positions = {name: NAMES[name].removeprefix("Transformer, ") for name in names[1:]}

    def seeds(name: str, depth: int) -> Sequence[Record]:
        return rows.get((name, depth), ())

    def outcomes(depth: int) -> list[dict[str, float]]:
        return [seeds(name, depth)[0].outcome for name in names if seeds(name, depth)]

    def losses(name: str) -> Callable[[int], str]:
        return lambda depth: _loss_cell(seeds(name, depth))

    def differences(name: str) -> Callable[[int], str]:
        return lambda depth: _difference_cell(seeds(MOSAIC, depth), seeds(name, depth))

    return table_of(
        sorted({depth for name, depth in rows if name in names}),
        {
            "blocks": lambda depth: depth,
            "seeds": lambda depth: " / ".join(str(len(seeds(name, depth))) for name in names),
            "parameters": lambda depth: " / ".join(f"{one['parameters']:,}" for one in outcomes(depth)),
            "tokens per parameter": lambda depth: f"{max(o['tokens'] / o['parameters'] for o in outcomes(depth)):.2g}",
            "mosaic": losses(MOSAIC),
            **{f"transformer, {position}": losses(name) for name, position in positions.items()},
            **{f"mosaic - {position}": differences(name) for name, position in positions.items()},
        },
    )


def _kernel_depths(rows: Rows) -> list[int]:
    return sorted({depth for name, depth in rows if name in OTHER_KERNELS})


def _by_kernel(rows: Rows) -> str:
    depths = _kernel_depths(rows)
    names = [name for name in (MOSAIC, *OTHER_KERNELS) if any((name, depth) in rows for depth in depths)]
    lines = []
    for name in names:
        cells: list[str] = []
        for depth in depths:
            seeds, gaussian = rows.get((name, depth), ()), rows.get((MOSAIC, depth), ())
            cells += [_loss_cell(seeds), "" if name == MOSAIC else _difference_cell(seeds, gaussian)]
        lines.append([NAMES[name], max(len(rows.get((name, depth), ())) for depth in depths), *cells])
    columns = [column for depth in depths for column in (blocks(depth), "minus Gaussian")]
    return markdown(["kernel", "seeds", *columns], lines) if lines else ""


def _rates(records: Mapping[str, Record]) -> str:
    tried = grouped(
        {key: record for key, record in records.items() if record.configuration.part == SEARCH},
        lambda settings: (settings.name, settings.num_layers, settings.recipe["training"]["steps"]),
    )
    losses = {row: {one.configuration.learning_rate: loss(one) for one in tried[row]} for row in tried}
    rates = sorted({rate for of_row in losses.values() for rate in of_row})

    def cell(rate: float) -> Callable[[tuple[str, int, int]], str]:
        def of_row(row: tuple[str, int, int]) -> str:
            text = f"{losses[row][rate]:.3f}" if rate in losses[row] else ""
            return f"**{text}**" if rate == min(losses[row], key=losses[row].__getitem__) else text

        return of_row

    return table_of(
        sorted(losses, key=lambda row: (list(NAMES).index(row[0]), *row[1:])),
        {
            "model": lambda row: NAMES[row[0]],
            "blocks": lambda row: row[1],
            "steps": lambda row: f"{row[2]:,}",
            **{f"{rate:g}": cell(rate) for rate in rates},
        },
    )


def _settings(rows: Rows) -> str:
    trained = [record for seeds in rows.values() for record in seeds]
    recipes = [record.configuration.recipe for record in trained]
    dropout = [recipe["model"].get("residual_dropout", recipe["model"].get("dropout", 0.0)) for recipe in recipes]
    ours = {heading: spread_of(recipes, key) if key else None for heading, (key, _) in PUBLISHED.items()}
    ours["tokens"] = spread(record.configuration.tokens for record in trained)
    ours["dropout"] = spread(dropout)
    ours["precision"] = " and ".join(sorted({record.outcome["precision"] for record in trained}))
    ours["seeds"] = len({record.configuration.seed for record in trained})
    return settings_table(ours, {heading: value for heading, (_, value) in PUBLISHED.items()}) if trained else ""


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Loss by depth, curves of training, loss by kernel; of the budget's text, else of another."""
    rows = by_row(next(iter(texts(records).values()), {}))
    with panels(path, 16, 5.4, columns=3) as (by_depth, curves, by_kernel):
        depths = sorted({depth for name, depth in rows if name in COLORS})
        for name, color in COLORS.items():
            _draw_losses(by_depth, rows, name, depths, {"color": color, "marker": "o"})
        by_depth.set(xlabel="blocks", ylabel="loss, nats per token", title="Validation loss by depth")
        _draw_trainings(curves, rows, depths)
        for name, style in styles(name for name in NAMES if name not in POSITIONS).items():
            _draw_losses(by_kernel, rows, name, _kernel_depths(rows), style)
        by_kernel.set(xlabel="blocks", ylabel="loss, nats per token", title="Validation loss by kernel")


def _draw_losses(axis: "Axes", rows: Rows, name: str, depths: Sequence[int], style: Mapping[str, str]) -> None:
    points = {depth: mean_of(list(map(loss, rows[name, depth]))) for depth in depths if (name, depth) in rows}
    if points:
        draw_curve(axis, points, NAMES[name], **style)
        doubling(axis, depths)


def _draw_trainings(axis: "Axes", rows: Rows, depths: Sequence[int]) -> None:
    """The first seed of each row: darker is deeper."""
    for (name, depth), seeds in rows.items():
        if name in COLORS:
            style = {"color": COLORS[name], "alpha": 0.3 + 0.7 * depths.index(depth) / max(1, len(depths) - 1)}
            for part, look in (("training", {"lw": 0.5, "ls": ":"}), ("validation", {"lw": 1.5})):
                tokens, losses = zip(*seeds[0].outcome[part])
                label = f"{NAMES[name]}, {depth}" if part == "validation" else None
                axis.plot([count / 1e6 for count in tokens], losses, label=label, **style, **look)
    axis.set(xlabel="tokens seen, millions", title="Validation (lines) and training (dotted), by blocks")
