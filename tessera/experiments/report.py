"""What people look at: the table and the figure beside the results, and the page over all experiments."""

from pathlib import Path

from tessera.experiments.catalogue import EXPERIMENTS
from tessera.experiments.experiment import BUDGETS, Experiment, Record, RunSelection, as_json
from tessera.experiments.results import ResultsFile
from tessera.files import write_atomically

PAGE_HEAD = """# Experiments

The papers' synthetic experiments as they came out here, each with the command that makes it. `--budget cpu` is a
reduced setting for a machine without a GPU (each section says how reduced; three moons only has fewer seeds);
`--budget full` is the published one. A
command that was interrupted goes on where it stopped.

This page is made from `results/` by `make experiments-page`; do not edit it by hand.
"""


def write_report(name: str, experiment: Experiment, results: ResultsFile) -> Path:
    """Draw the figure and write the table of all stored runs; returns the table's path."""
    records = results.read()
    figure, table = results.path.with_suffix(".png"), results.path.with_suffix(".md")
    write_atomically(figure, lambda draft: _plot(experiment, records, draft))
    text = section(name, experiment, results.budget, records, figure.name)
    write_atomically(table, lambda draft: draft.write_text(f"# {text}", encoding="utf-8"))
    return table


def _plot(experiment: Experiment, records: dict[str, Record], draft: Path) -> None:
    # Draw under a name that ends in .png, which is how matplotlib knows the format.
    image = draft.with_name(f"{draft.name}.png")
    experiment.plot(records, image)
    image.replace(draft)


def section(name: str, experiment: Experiment, budget: str, records: dict[str, Record], figure: str) -> str:
    """An experiment's part of a page: title, command, machine, figure, table."""
    return "\n".join(
        [
            experiment.title,
            "",
            f"{experiment.source}. Made by `tessera reproduce {name} --budget {budget}`: "
            f"{_share(experiment, budget, records)}, {_machine(records)}.",
            "",
            f"![{experiment.title}]({figure})",
            "",
            experiment.table(records).strip(),
            "",
        ]
    )


def _share(experiment: Experiment, budget: str, records: dict[str, Record]) -> str:
    """How many of the command's runs are there, and how many that only its options ask for."""
    asked = {run.key: as_json(run.configuration) for run in experiment.runs(RunSelection(budget))}
    done = sum(key in asked and record.configuration == asked[key] for key, record in records.items())
    share = f"{done} runs" if done == len(asked) else f"{done} of its {len(asked)} runs"
    others = len(records) - done
    return share + (f", and {others} that its options or earlier settings made" if others else "")


def _machine(records: dict[str, Record]) -> str:
    if not records:
        return "no run yet"
    made = [record.provenance for record in records.values()]
    machines = sorted({f"{one['hardware']['cores']} cores of {one['hardware']['processor']}" for one in made})
    devices = sorted({gpu for one in made for gpu in one["hardware"]["gpus"]})
    minutes = sum(one["wall_seconds"] for one in made) / 60
    versions = sorted({f"torch {one['versions'].get('torch', 'unknown')}" for one in made})
    return f"{minutes:.1f} minutes of runs in all, {'; '.join(machines + devices + versions)}"


def page(results: Path = Path("results")) -> str:
    """`docs/experiments.md`: the `cpu` results, or the `full` ones where there are such, of every experiment."""
    parts = [PAGE_HEAD]
    for name in sorted(EXPERIMENTS):  # whatever was imported first
        experiment = EXPERIMENTS[name]
        files = [ResultsFile(results, name, budget) for budget in BUDGETS if budget != "smoke"]
        for file in (one for one in files if one.path.exists()):
            figure = f"../results/{name}/{file.budget}.png"
            parts.append("## " + section(name, experiment, file.budget, file.read(), figure))
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    Path("docs/experiments.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
