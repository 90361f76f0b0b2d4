"""RegBench's numbers beside the papers'."""

from collections import defaultdict
from collections.abc import Mapping

from tessera.papers.experiment import Record
from tessera.papers.regbench.published import IN_DISTRIBUTION_100, NAMES, SETTING, SPARSE_SIZES, SPARSE_TABLE_1
from tessera.papers.regbench.settings import NGRAM, RegBenchSettings
from tessera.papers.tables import markdown, over_seeds, settings_table, spread, with_error
from tessera.tasks.task import Estimate

# Name, training problems and label of a row.
Row = tuple[str, int, str]


def rows_of(records: Mapping[str, Record]) -> dict[Row, list[Record]]:
    """Of each row the records, one per seed: the best of a search by validation loss. In the order of the tables."""
    rows: dict[Row, dict[int, Record]] = defaultdict(dict)
    for record in records.values():
        settings = record.configuration
        seeds = rows[settings.name, settings.num_problems, settings.label]
        best = seeds.get(settings.seed)
        if best is None or record.outcome["training"]["best"] < best.outcome["training"]["best"]:
            seeds[settings.seed] = record
    order = [*NAMES, *sorted({name for name, _, _ in rows} - set(NAMES))]
    ordered = sorted(rows, key=lambda row: (row[1], order.index(row[0]), _steps(rows[row].values()), row[2]))
    return {row: [rows[row][seed] for seed in sorted(rows[row])] for row in ordered}


def _steps(records) -> int:
    return max(record.configuration.fit.steps if record.configuration.fit else 0 for record in records)


def score(records: list[Record], place: str, name: str) -> Estimate:
    """A score in per cent over seeds."""
    return over_seeds([record.outcome[place][name] for record in records])


def longest_trainings(records: Mapping[str, Record]) -> dict[str, dict[int, list[Record]]]:
    """Of each model and number of training problems the training of most steps; of `ngram` each number of symbols."""
    longest: dict[str, dict[int, list[Record]]] = defaultdict(dict)
    for (name, problems, _), seeds in rows_of(records).items():  # more steps come later
        longest[name][seeds[0].configuration.symbols if name == NGRAM else problems] = seeds
    return dict(longest)


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """One table for each number of training problems, the n-gram baseline, and the setting."""
    rows = rows_of(records)
    parts = {}
    for problems in sorted({problems for _, problems, _ in rows if problems}):
        chosen = {row: seeds for row, seeds in rows.items() if row[1] == problems}
        parts[f"{problems:,} training problems"] = _by_model(problems, chosen)
    counts = [seeds for (name, _, _), seeds in rows.items() if name == NGRAM]
    if counts:
        headings = ["symbols of context", "accuracy", "TVD", "last symbol"]
        parts["Counting in the problem, without training"] = markdown(headings, map(_counted, counts))
    trained = [record.configuration for record in records.values() if record.configuration.fit]
    return {**parts, "Settings": _settings(records, trained)} if trained else parts


def _by_model(problems: int, rows: Mapping[Row, list[Record]]) -> str:
    headings = ["model", "steps", "seeds", "accuracy", "paper", "TVD", "paper", "last symbol"]
    paper = ["paper"] if problems == 100 else []  # table 3 of Memory Mosaics
    headings += ["in distribution: accuracy", *paper, "TVD", *paper]
    return markdown(headings, [_cells(name, problems, seeds) for (name, _, _), seeds in rows.items()])


def _cells(name: str, problems: int, seeds: list[Record]) -> list[str]:
    known = SPARSE_TABLE_1.get(name) if problems in SPARSE_SIZES else None
    papers = known[SPARSE_SIZES.index(problems)] if known else None
    papers_inside = IN_DISTRIBUTION_100.get(name) if problems == 100 else None
    cells = [NAMES.get(name, name), f"{_steps(seeds):,}", str(len(seeds))]
    for place, published in (("held_out", papers), ("in_distribution", papers_inside)):
        for column, quantity in enumerate(("accuracy", "tvd")):
            cells.append(with_error(score(seeds, place, quantity), ".1f"))
            if place == "held_out" or problems == 100:
                cells.append(f"{published[column]:.1f}" if published else "-")
        if place == "held_out":
            cells.append(with_error(score(seeds, place, "last_accuracy"), ".1f"))
    return cells


def _counted(seeds: list[Record]) -> list[str]:
    scores = [score(seeds, "held_out", name) for name in ("accuracy", "tvd", "last_accuracy")]
    return [str(seeds[0].configuration.symbols), *(with_error(one, ".1f") for one in scores)]


def _settings(records: Mapping[str, Record], trained: list[RegBenchSettings]) -> str:
    fit_settings = [one.fit for one in trained if one.fit is not None]
    ours = {
        "width": spread(one.hidden_size for one in trained),
        "layers": spread(one.num_layers for one in trained),
        "heads": spread(one.num_heads for one in trained),
        "batch": spread(one.batch_size for one in trained),
        "epochs": spread(record.outcome["epochs"] for record in records.values() if record.configuration.fit),
        "peak learning rate": spread(fit.learning_rate for fit in fit_settings),
        "weight decay": spread(fit.weight_decay for fit in fit_settings),
        "test problems": spread(one.test for one in trained),
    }
    return settings_table(ours, SETTING)
