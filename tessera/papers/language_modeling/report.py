"""Tables of the language models: by depth, by kernel, the rates that were tried, and the settings."""

from collections import defaultdict
from collections.abc import Mapping

from tessera.papers.experiment import Record
from tessera.papers.language_modeling.published import NAMES, SETTINGS
from tessera.papers.language_modeling.settings import MAIN, POSITIONS, SEARCH
from tessera.papers.tables import markdown, mean_of, settings_table, spread, with_error
from tessera.tasks.task import Estimate

# Name and blocks of a row.
Row = tuple[str, int]
MOSAIC = "mosaic gaussian"
TRANSFORMERS = tuple(POSITIONS)


def by_row(records: Mapping[str, Record], part: str = MAIN) -> dict[Row, dict[int, Record]]:
    """Name and blocks -> seed -> record, in the order of tables."""
    rows: dict[Row, dict[int, Record]] = defaultdict(dict)
    for record in records.values():
        settings = record.configuration
        if settings.part == part:
            rows[settings.name, settings.num_layers][settings.seed] = record
    order = list(NAMES)
    return {row: dict(sorted(rows[row].items())) for row in sorted(rows, key=lambda row: (order.index(row[0]), row[1]))}


def loss(seeds: Mapping[int, Record]) -> Estimate:
    """Validation loss over seeds, nats per token."""
    return mean_of([record.outcome["loss"] for record in seeds.values()])


def difference(seeds: Mapping[int, Record], others: Mapping[int, Record]) -> Estimate | None:
    """Validation loss minus that of others, over the seeds of both: their batches are the same."""
    both = [seed for seed in seeds if seed in others]
    return mean_of([seeds[seed].outcome["loss"] - others[seed].outcome["loss"] for seed in both]) if both else None


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
            "Settings": _settings(of_text),
        }
        tables |= {f"{heading} ({text})" if text else heading: table for heading, table in made.items() if table}
    return tables


def _by_depth(rows: Mapping[Row, Mapping[int, Record]]) -> str:
    transformers = [name for name in TRANSFORMERS if any(row[0] == name for row in rows)]
    lines = []
    for depth in sorted({depth for name, depth in rows if name in (MOSAIC, *transformers)}):
        mosaic = rows.get((MOSAIC, depth), {})
        others = [rows.get((name, depth), {}) for name in transformers]
        outcomes = [next(iter(seeds.values())).outcome for seeds in (mosaic, *others) if seeds]
        lines.append(
            [
                depth,
                " / ".join(str(len(seeds)) for seeds in (mosaic, *others)),
                " / ".join(f"{outcome['parameters']:,}" for outcome in outcomes),
                f"{max(outcome['tokens'] / outcome['parameters'] for outcome in outcomes):.2g}",
                *(with_error(loss(seeds), ".3f") if seeds else "" for seeds in (mosaic, *others)),
                *(signed(difference(mosaic, seeds)) for seeds in others),
            ]
        )
    positions = [NAMES[name].removeprefix("Transformer, ") for name in transformers]
    headings = ["blocks", "seeds", "parameters", "tokens per parameter", "mosaic"]
    headings += [f"transformer, {name}" for name in positions] + [f"mosaic - {name}" for name in positions]
    return markdown(headings, lines) if lines else ""


def _by_kernel(rows: Mapping[Row, Mapping[int, Record]]) -> str:
    depths = sorted({depth for name, depth in rows if name.startswith("mosaic") and name != MOSAIC})
    names = [name for name in NAMES if name.startswith("mosaic") and any((name, depth) in rows for depth in depths)]
    lines = []
    for name in names:
        cells = []
        for depth in depths:
            seeds = rows.get((name, depth), {})
            cells += [
                with_error(loss(seeds), ".3f") if seeds else "",
                "" if name == MOSAIC else signed(difference(seeds, rows.get((MOSAIC, depth), {}))),
            ]
        lines.append([NAMES[name], max(len(rows.get((name, depth), {})) for depth in depths), *cells])
    columns = [column for depth in depths for column in (f"{_blocks(depth)}", "minus Gaussian")]
    return markdown(["kernel", "seeds", *columns], lines) if lines else ""


def _rates(records: Mapping[str, Record]) -> str:
    losses: dict[tuple[str, int, int], dict[float, float]] = defaultdict(dict)
    for record in records.values():
        settings = record.configuration
        if settings.part == SEARCH:
            row = settings.name, settings.num_layers, settings.recipe["training"]["steps"]
            losses[row][settings.learning_rate] = record.outcome["loss"]
    rates = sorted({rate for tried in losses.values() for rate in tried})
    lines = []
    for name, depth, steps in sorted(losses, key=lambda row: (list(NAMES).index(row[0]), *row[1:])):
        tried = losses[name, depth, steps]
        best = min(tried, key=lambda rate: tried[rate])
        cells = [f"{tried[rate]:.3f}" if rate in tried else "" for rate in rates]
        cells = [f"**{cell}**" if rate == best else cell for rate, cell in zip(rates, cells)]
        lines.append([NAMES[name], depth, f"{steps:,}", *cells])
    return markdown(["model", "blocks", "steps", *(f"{rate:g}" for rate in rates)], lines) if lines else ""


def _settings(records: Mapping[str, Record]) -> str:
    trained = [record for record in records.values() if record.configuration.part == MAIN]
    if not trained:
        return ""
    main = [record.configuration for record in trained]
    training, model = ([settings.recipe[section] for settings in main] for section in ("training", "model"))
    ours = {
        "text": spread(settings.recipe["data"]["source"] for settings in main),
        "vocabulary": spread(settings.recipe["tokenizer"]["vocab_size"] or SETTINGS["vocabulary"] for settings in main),
        "width": spread(section["hidden_size"] for section in model),
        "heads": spread(section["num_heads"] for section in model),
        "slots": spread(s["num_persistent_slots"] for s in model if "num_persistent_slots" in s)
        if any("num_persistent_slots" in section for section in model)
        else "-",
        "context": spread(settings.recipe["data"]["context"] for settings in main),
        "batch": spread(section["batch_size"] for section in training),
        "steps": spread(section["steps"] for section in training),
        "tokens": spread(settings.tokens for settings in main),
        "warm-up": spread(section["warmup_steps"] for section in training),
        "peak rate": spread(section["learning_rate"] for section in training),
        "last rate": spread(section["min_learning_rate"] for section in training),
        "weight decay": spread(section["weight_decay"] for section in training),
        "dropout": spread(section.get("residual_dropout", section.get("dropout", 0.0)) for section in model),
        "clip": spread(section["clip"] for section in training),
        "precision": " and ".join(sorted({record.outcome["precision"] for record in trained})),
        "seeds": len({settings.seed for settings in main}),
    }
    return settings_table(ours, SETTINGS)


def signed(one: Estimate | None) -> str:
    """A cell for a difference: with its sign, and its standard error."""
    return "" if one is None else with_error(one, "+.3f").replace("± +", "± ")


def _blocks(number: int) -> str:
    return f"{number} block{'s' * (number > 1)}"
