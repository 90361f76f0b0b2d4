"""Loss by position in bins, and the differences of models whose batches were the same."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from tessera.papers.experiment import Record
from tessera.papers.language_modeling.published import NAMES
from tessera.papers.language_modeling.report import MOSAIC, TRANSFORMERS, Row, signed
from tessera.papers.tables import markdown, mean_of, with_error

# Borders of the bins, in tokens of context before the predicted one: 1 to 16, 17 to 50, ...
BORDERS = (0, 16, 50, 100, 150, 255, 511)
Rows = Mapping[Row, Mapping[int, Record]]


def by_text(records: Mapping[str, Record]) -> dict[str, dict[Row, dict[int, Record]]]:
    """Text -> (name, blocks) -> seed -> record, in the order of tables."""
    texts: dict[str, dict[Row, dict[int, Record]]] = defaultdict(lambda: defaultdict(dict))
    for record in records.values():
        trained = record.configuration.trained
        texts[record.configuration.text][trained.name, trained.num_layers][trained.seed] = record
    order = list(NAMES)
    return {
        text: {
            row: dict(sorted(rows[row].items())) for row in sorted(rows, key=lambda row: (row[1], order.index(row[0])))
        }
        for text, rows in sorted(texts.items())
    }


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """For each text the losses, mosaic minus transformer by depth, and each kernel minus the Gaussian one."""
    tables: dict[str, str] = {}
    for text, rows in by_text(records).items():
        depths = sorted({depth for _, depth in rows})
        pairs = [
            (f"{NAMES[name]}, {depth}", rows.get((MOSAIC, depth), {}), rows.get((name, depth), {}))
            for name in TRANSFORMERS
            for depth in depths
        ]
        kernels = [
            (f"{NAMES[name]}, {depth}", seeds, rows.get((MOSAIC, depth), {}))
            for (name, depth), seeds in rows.items()
            if name not in (MOSAIC, *TRANSFORMERS)
        ]
        made = {
            "loss by position": _losses(rows),
            "mosaic minus transformer": _differences("transformer, blocks", pairs),
            "kernel minus Gaussian": _differences("kernel, blocks", kernels),
        }
        tables |= {f"{text}: {heading}": table for heading, table in made.items() if table}
    return tables


def binned(curve: Sequence[float | None]) -> list[float]:
    """Mean loss in each bin of `BORDERS` that the curve reaches."""
    bins = [[loss for loss in curve[low:high] if loss is not None] for low, high in pairwise(BORDERS)]
    return [fmean(losses) for losses in bins if losses]


def _bins(rows: Rows) -> list[str]:
    length = max(len(record.outcome["loss_by_position"]) for seeds in rows.values() for record in seeds.values())
    return [f"{low + 1} to {min(high, length)}" for low, high in pairwise(BORDERS) if low < length]


def _losses(rows: Rows) -> str:
    lines = []
    for (name, depth), seeds in rows.items():
        columns = zip(*([r.outcome["loss"], *binned(r.outcome["loss_by_position"])] for r in seeds.values()))
        cells = [with_error(mean_of(values), ".3f") for values in columns]
        lines.append([NAMES[name], depth, len(seeds), *cells])
    return markdown(["model", "blocks", "seeds", "all", *_bins(rows)], lines)


def _differences(heading: str, pairs: Sequence[tuple[str, Mapping[int, Record], Mapping[int, Record]]]) -> str:
    lines, shown = [], {}
    for name, seeds, others in pairs:
        both = [seed for seed in seeds if seed in others]
        if both:
            shown = {(name, 0): seeds}
            differences = [
                [
                    ours - theirs
                    for ours, theirs in zip(
                        [seeds[seed].outcome["loss"], *binned(seeds[seed].outcome["loss_by_position"])],
                        [others[seed].outcome["loss"], *binned(others[seed].outcome["loss_by_position"])],
                        strict=True,
                    )
                ]
                for seed in both
            ]
            lines.append([name, len(both), *(signed(mean_of(values)) for values in zip(*differences))])
    return markdown([heading, "seeds", "all", *_bins(shown)], lines) if lines else ""
