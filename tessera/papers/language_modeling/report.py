"""Language models by depth and by kernel, the rates that were tried, and the settings."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tessera.papers.curves import Axes, doubling, draw_curve, panels, styles
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.language_modeling import run as language
from tessera.papers.language_modeling.run import MAIN_NAMES, MOSAIC, NAMES, OTHER_KERNELS, V2, V2_KERNELS, blocks
from tessera.papers.records import difference, grouped, having, mean_of, num_seeds, spread
from tessera.papers.tables import SettingsRows, markdown, settings_of, with_error

COLORS = dict(zip((*MAIN_NAMES, V2), ("#c2410c", "#1d4ed8", "#15803d", "#a16207", "#7c3aed")))
# Here, and in both papers; of the second (table 3), those of one and eight blocks.
SETTINGS: SettingsRows = {
    "text": ("recipe.data.source", "BabiStories"),
    "vocabulary": ("recipe.tokenizer.vocab_size", 50257),
    "width": ("recipe.model.hidden_size", 768),
    "heads": ("recipe.model.num_heads", 12),
    "slots": ("recipe.model.num_persistent_slots", 2688),
    "context": ("context", 512),
    "batch": ("recipe.training.batch_size", 512),
    "steps": ("recipe.training.steps", 80000),
    "tokens": ("tokens", 80000 * 512 * 512),
    "warm-up": ("recipe.training.warmup_steps", 2000),
    "peak rate": ("learning_rate", 5e-3),
    "last rate": ("recipe.training.min_learning_rate", 1e-4),
    "weight decay": ("recipe.training.weight_decay", 0.1),
    "dropout": (lambda records: spread(map(_dropout, records)), 0.05),
    "clip": ("recipe.training.clip", 1.0),
    "precision": (lambda records: " and ".join(sorted({record.outcome["precision"] for record in records})), "bf16"),
    "seeds": (num_seeds, 1),
}
EARLY, LATE = slice(16, 50), slice(150, 255)  # tokens of context before the predicted one
Row = tuple[str, int]  # name and blocks
Rows = Mapping[Row, Sequence[Record]]


def by_row(records: Mapping[str, Record]) -> dict[Row, list[Record]]:
    """The records but for searches by name and blocks, in the order of tables; each row by seed, at its best rate.

    That is the one with the lowest mean loss (`loss_by_rate`).
    """
    rows = grouped(having(records, part=language.MAIN), lambda settings: (settings.name, settings.num_layers))
    at_best_rate: dict[Row, list[Record]] = {}
    for row in sorted(rows, key=lambda row: (list(NAMES).index(row[0]), row[1])):
        losses = loss_by_rate(rows[row])
        best = min(losses, key=losses.__getitem__)
        at_best_rate[row] = [record for record in rows[row] if record.configuration.learning_rate == best]
    return at_best_rate


def loss(record: Record) -> float:
    """On validation text at the end, nats per token."""
    return record.outcome["loss"]


def loss_by_rate(records: Sequence[Record], loss: Callable[[Record], float] = loss) -> dict[float, float]:
    """Mean loss at each rate over the seeds that were trained at every rate.

    Where there is no such seed, of the rates of the seed that has most: those of other seeds compare with none.
    """
    losses: dict[float, dict[int, float]] = {}
    for record in sorted(records, key=lambda record: record.configuration.learning_rate):
        losses.setdefault(record.configuration.learning_rate, {})[record.configuration.seed] = loss(record)
    rates_of = {
        seed: {rate for rate in losses if seed in losses[rate]} for seed in sorted(set().union(*losses.values()))
    }
    compared = max(rates_of.values(), key=len)
    seeds = [seed for seed, rates in rates_of.items() if rates >= compared]
    return {rate: fmean(losses[rate][seed] for seed in seeds) for rate in losses if rate in compared}


def _loss_cell(seeds: Sequence[Record]) -> str:
    return with_error(mean_of(list(map(loss, seeds))) if seeds else None, ".3f")


def _dropout(record: Record) -> float:
    """Of the residual stream."""
    section = record.configuration.recipe["model"]
    return section.get("residual_dropout", section.get("dropout", 0.0))


def _difference_cell(seeds: Sequence[Record], others: Sequence[Record]) -> str:
    return with_error(difference(seeds, others, loss), "+.3f")


def texts(records: Mapping[str, Record]) -> dict[str, dict[str, Record]]:
    """The records of each training text; that of the budget is called ""."""
    names = sorted({record.configuration.other_text for record in records.values()})
    return {name: having(records, other_text=name) for name in names}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Every table that there are records for; other training texts than the budget's stand in the headings."""
    tables: dict[str, str] = {}
    for text, of_text in texts(records).items():
        rows = by_row(of_text)
        made = {
            "Validation loss by depth": _by_depth(rows),
            "Validation loss by kernel": _by_kernel(rows),
            "Gain from context": gain_from_context(rows),
            "Validation loss during training": _during_training(of_text),
            "Learning rates": _rates(of_text),
            "Settings": settings_of([record for seeds in rows.values() for record in seeds], SETTINGS),
        }
        tables |= {f"{heading} ({text})" if text else heading: table for heading, table in made.items()}
    return tables


def _by_depth(rows: Rows) -> str:
    names = [name for name in COLORS if name == MOSAIC or any(row[0] == name for row in rows)]
    others = {name: NAMES[name].replace("Transformer", "transformer").replace("Mosaic", "mosaic") for name in names[1:]}
    lines = []
    for depth in sorted({depth for name, depth in rows if name in names}):
        by_name = {name: rows.get((name, depth), ()) for name in names}
        outcomes = [seeds[0].outcome for seeds in by_name.values() if seeds]
        lines.append(
            [
                depth,
                " / ".join(str(len(seeds)) for seeds in by_name.values()),
                " / ".join(f"{outcome['parameters']:,}" for outcome in outcomes),
                f"{max(outcome['tokens'] / outcome['parameters'] for outcome in outcomes):.2g}",
                *map(_loss_cell, by_name.values()),
                *(_difference_cell(by_name[MOSAIC], by_name[name]) for name in others),
            ]
        )
    differences = [f"mosaic - {heading.removeprefix('transformer, ')}" for heading in others.values()]
    first = ["blocks", "seeds", "parameters", "tokens per parameter"]
    return markdown([*first, "mosaic", *others.values(), *differences], lines)


def gain_from_context(rows: Rows) -> str:
    """The loss at `LATE`, by how many nats it is below that at `EARLY`, and how much more than with learned positions.

    Those use no more than a few tokens of context: their loss says how hard the predicted tokens are.
    """

    def late(record: Record) -> float:
        return fmean(record.outcome["loss_by_position"][LATE])

    def gain(record: Record) -> float:
        return fmean(record.outcome["loss_by_position"][EARLY]) - late(record)

    lines = []
    for (name, depth), seeds in rows.items():
        if name in MAIN_NAMES and all(len(record.outcome["loss_by_position"]) >= LATE.stop for record in seeds):
            cells = [mean_of(list(map(gain, seeds))), difference(seeds, rows.get(("transformer", depth), ()), gain)]
            cells[1:] = [None] if name == "transformer" else cells[1:]
            loss_late = with_error(mean_of(list(map(late, seeds))), ".3f")
            lines.append([NAMES[name], depth, len(seeds), loss_late, *(with_error(cell, "+.3f") for cell in cells)])
    return markdown(["model", "blocks", "seeds", "151 to 255", "gain", "beyond learned positions"], lines)


def _kernel_depths(rows: Rows) -> list[int]:
    return sorted({depth for name, depth in rows if name in (*OTHER_KERNELS, *V2_KERNELS)})


def _by_kernel(rows: Rows) -> str:
    depths = _kernel_depths(rows)
    lines = []
    for gaussian, others in ((MOSAIC, OTHER_KERNELS), (V2, V2_KERNELS)):
        for name in (gaussian, *others):
            at_depths = [(rows.get((name, depth), ()), rows.get((gaussian, depth), ())) for depth in depths]
            counts = [len(seeds) for seeds, _ in at_depths]
            if any(counts) and any((other, depth) in rows for other in others for depth in depths):
                lines.append([NAMES[name], max(counts) if len({*counts} - {0}) == 1 else " / ".join(map(str, counts))])
                for seeds, theirs in at_depths:
                    lines[-1] += [_loss_cell(seeds), "" if name == gaussian else _difference_cell(seeds, theirs)]
    columns = [heading for depth in depths for heading in (blocks(depth), "minus Gaussian")]
    return markdown(["kernel", "seeds", *columns], lines)


def _during_training(records: Mapping[str, Record]) -> str:
    """After each fifth of the tokens, every model at its best rate by then; nothing where one rate was tried."""
    tried = grouped(having(records, part=language.MAIN), lambda s: (s.num_layers, list(NAMES).index(s.name)))
    checks = next(iter(tried.values()))[0].outcome["validation"] if tried else []
    has_one_rate = any(len({one.configuration.learning_rate for one in row}) == 1 for row in tried.values())
    if has_one_rate or len(checks) < 5:
        return ""
    fifths = range(len(checks) // 5 - 1, len(checks), len(checks) // 5)

    def best(row: Sequence[Record], check: int) -> float:
        def loss_then(record: Record) -> float:
            return record.outcome["validation"][check][1]

        return min(loss_by_rate(row, loss_then).values())

    lines = [
        [depth, [*NAMES.values()][name], *(f"{best(tried[depth, name], check):.3f}" for check in fifths)]
        for depth, name in sorted(tried)
    ]
    return markdown(["blocks", "model", *(f"{checks[check][0]:,} tokens" for check in fifths)], lines)


def _rates(records: Mapping[str, Record]) -> str:
    search = having(records, part=language.SEARCH) or records
    tried = grouped(search, lambda s: (list(NAMES).index(s.name), s.num_layers, s.recipe["training"]["steps"]))
    losses = {row: loss_by_rate(tried[row]) for row in sorted(tried)}
    if search is records and all(len({one.configuration.learning_rate for one in row}) == 1 for row in tried.values()):
        return ""
    rates = sorted({record.configuration.learning_rate for record in search.values()})
    lines = []
    for (name, depth, steps), of_row in losses.items():
        marks = {rate: "**" * (loss == min(of_row.values())) for rate, loss in of_row.items()}
        cells = [f"{marks[rate]}{of_row[rate]:.3f}{marks[rate]}" if rate in of_row else "" for rate in rates]
        for one in tried[name, depth, steps]:
            if (rate := one.configuration.learning_rate) not in of_row:
                cells[rates.index(rate)] += f" {one.outcome['loss']:.3f} (seed {one.configuration.seed})"
        lines.append([[*NAMES.values()][name], depth, f"{steps:,}", *map(str.strip, cells)])
    return markdown(["model", "blocks", "steps", *(f"{rate:g}" for rate in rates)], lines)


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Loss by depth, curves of training, loss by kernel where there are several; of the budget's text, else another."""
    rows = by_row(next(iter(texts(records).values()), {}))
    has_kernels = bool(_kernel_depths(rows))
    with panels(path, 16 if has_kernels else 11, 5.4, columns=2 + has_kernels) as (by_depth, curves, *by_kernel):
        depths = sorted({depth for name, depth in rows if name in COLORS})
        for name, color in COLORS.items():
            _draw_losses(by_depth, rows, name, depths, {"color": color, "marker": "o"})
        by_depth.set(xlabel="blocks", ylabel="loss, nats per token", title="Validation loss by depth")
        _draw_trainings(curves, rows, depths)
        for axis in by_kernel:
            for name, style in styles(name for name in NAMES if name not in language.POSITIONS).items():
                _draw_losses(axis, rows, name, _kernel_depths(rows), style)
            axis.set(xlabel="blocks", ylabel="loss, nats per token", title="Validation loss by kernel")


def _draw_losses(axis: Axes, rows: Rows, name: str, depths: Sequence[int], style: Mapping[str, Any]) -> None:
    points = {depth: mean_of(list(map(loss, rows[name, depth]))) for depth in depths if (name, depth) in rows}
    if points:
        draw_curve(axis, points, NAMES[name], **style)
        doubling(axis, depths)


def _draw_trainings(axis: Axes, rows: Rows, depths: Sequence[int]) -> None:
    """The first seed of each row: darker is deeper. What lies above all losses after a tenth is cut off."""
    highest = 0.0
    for (name, depth), seeds in rows.items():
        if name in COLORS:
            alpha = 0.3 + 0.7 * depths.index(depth) / max(1, len(depths) - 1)
            for part, look in (("training", {"lw": 0.5, "ls": ":"}), ("validation", {"lw": 1.5, "ls": "-"})):
                tokens, losses = zip(*seeds[0].outcome[part])
                label = f"{NAMES[name]}, {depth}" if part == "validation" else None
                axis.plot(
                    [count / 1e6 for count in tokens], losses, label=label, color=COLORS[name], alpha=alpha, **look
                )
                late = [value for count, value in zip(tokens, losses) if count >= 0.1 * tokens[-1]]
                highest = max([highest, *late]) if part == "validation" else highest
    axis.set(xlabel="tokens seen, millions", title="Validation (lines) and training (dotted), by blocks")
    if highest:
        axis.set_ylim(top=highest + 0.1)


EXPERIMENT = Experiment(
    LIBRARY["language_modeling"], language.LanguageSettings, language.plan, language.execute, tables, plot,
    language.MODELS, language.KERNELS, language.PUBLISHED_RECIPES, takes_data=True, long=True,
)  # fmt: skip
