"""The results of an experiment: a file of records, its figure and tables, and the tables in docs/experiments/."""

import json
import re
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tessera.base.dataclass_io import from_json, to_json
from tessera.base.errors import TesseraError, first_line
from tessera.base.files import expect_writable, write_atomically, write_text_atomically
from tessera.base.locks import folder_held
from tessera.papers.experiment import EXPERIMENTS, Record, RunSelection
from tessera.papers.tables import markdown

FORMAT = 1
# What stands between these two lines of a page is generated; everything else is written by hand.
BEGIN, END = r"<!-- table (?P<name>\w+)/(?P<budget>\w+): (?P<heading>.+?) -->\n", "<!-- end of table -->"
MARKED = re.compile(f"(?P<begin>{BEGIN}).*?{END}", re.DOTALL)


@dataclass(frozen=True)
class ResultsFile:
    """`results/<experiment>/<budget>.json`; the figure and the table lie beside it under the same name.

    `read` and `add` raise `TesseraError`: it is not such a file, or of another version; it is left as it is.
    """

    folder: Path
    experiment: str
    budget: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.folder / self.experiment / f"{self.budget}.json"

    def prepare(self) -> None:
        """Make the folder, before anything is trained that could not be stored."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            got = f"{self.path.parent} ({error.strerror})"
            raise TesseraError(f"reproduce: --output must be a folder that can be written; got {got}.") from None
        expect_writable(self.path, "reproduce", "--output")

    def read(self) -> dict[str, Record]:
        """The records by key; empty when there is no file yet."""
        if not self.path.exists():
            return {}
        advice = "Move it away, or choose another --output."
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            header, runs = stored["header"], {key: Record(**record) for key, record in stored["runs"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            got = f"{type(error).__name__}: {first_line(error)}"
            raise TesseraError(f"{self.path}: must be a results file of Tessera; got {got}. {advice}") from None
        if header != self.header():
            raise TesseraError(f"{self.path}: must be of {self.header()}; got {header}. {advice}")
        settings = EXPERIMENTS[self.experiment].settings
        try:
            typed = {key: from_json(settings, record.configuration, key) for key, record in runs.items()}
        except TesseraError as error:
            problem = str(error).splitlines()[0]
            expected = "must hold settings of this version of Tessera"
            raise TesseraError(f"{self.path}: {expected}; got {problem} {advice}") from None
        return {key: replace(record, configuration=typed[key]) for key, record in runs.items()}

    def header(self) -> dict[str, Any]:
        """What must agree before records stand beside each other."""
        version = EXPERIMENTS[self.experiment].version
        return {"format": FORMAT, "experiment": self.experiment, "version": version, "budget": self.budget}

    def add(self, key: str, record: Record) -> None:
        """Store one record beside what other processes have stored meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with folder_held(self.path.parent):
            records = {**self.read(), key: record}
            stored = {"header": self.header(), "runs": {name: to_json(records[name]) for name in sorted(records)}}
            write_text_atomically(self.path, json.dumps(stored, indent=1, allow_nan=False) + "\n")


def write_report(results: ResultsFile) -> Path:
    """Draw the figure and write the tables of all stored runs; returns the tables' path."""
    records = results.read()
    figure, tables = results.path.with_suffix(".png"), results.path.with_suffix(".md")

    def plot(temporary: Path) -> None:
        # matplotlib knows the format by the name. Beside the results a kill would leave a file that nothing deletes.
        with TemporaryDirectory() as folder:
            image = Path(folder) / "figure.png"
            EXPERIMENTS[results.experiment].plot(records, image)
            shutil.copyfile(image, temporary)

    write_atomically(figure, plot)
    write_text_atomically(tables, report_text(results))
    return tables


def report_text(results: ResultsFile) -> str:
    """The file of tables: title, paper, command, figure, and every table under its heading."""
    title, source = EXPERIMENTS[results.experiment].about
    head = [
        f"# {title}",
        source,
        f"`tessera reproduce {results.experiment} --budget {results.budget}`",
        f"![{title}]({results.path.with_suffix('.png').name})",
    ]
    return "\n\n".join([*head, *(f"## {heading}\n\n{table}" for heading, table in tables_of(results).items())]) + "\n"


def tables_of(results: ResultsFile) -> dict[str, str]:
    """Every table with a row by its heading; `Runs` says how many of the command's runs there are."""
    experiment, records = EXPERIMENTS[results.experiment], results.read()
    configurations = {run.key: run.configuration for run in experiment.runs(RunSelection(results.budget))}
    done = sum(configurations.get(key) == record.configuration for key, record in records.items())
    minutes = sum(record.provenance["wall_seconds"] for record in records.values()) / 60
    row = [f"{done} of {len(configurations)}", len(records) - done, f"{minutes:.0f}", *_machines(records)]
    headings = ["runs of this command", "other runs", "minutes of all", "machine", "torch"]
    tables = experiment.tables(records) | {"Runs": markdown(headings, [row])}
    return {heading: table for heading, table in tables.items() if table}


def _machines(records: dict[str, Record]) -> tuple[str, str]:
    """Processors or GPUs, and versions of torch."""
    made_with = [record.provenance for record in records.values()]
    hardware = [one["hardware"] for one in made_with]
    machines = {name for one in hardware for name in one["gpus"] or [f"{one['cores']} cores of {one['processor']}"]}
    versions = {one["versions"].get("torch", "unknown") for one in made_with}
    return ", ".join(sorted(machines)), ", ".join(sorted(versions))


def with_tables(page: str, results: Path) -> str:
    """A page with what stands between its markers made anew from `results`.

    Raises `TesseraError`: a marker names a table that there is not, or an experiment without results.
    """

    @cache
    def tables_by_heading(name: str, budget: str) -> dict[str, str]:
        if name == "long_term_memory":  # a table over two experiments
            from tessera.papers import long_term_memory

            return long_term_memory.tables(results, budget)
        file = ResultsFile(results, name, budget)
        if not file.path.exists():
            command = f"tessera reproduce {name} --budget {budget}"
            raise TesseraError(f"{file.path} must be there; it is not. `{command}` makes it.")
        return tables_of(file)

    def table(match: re.Match[str]) -> str:
        """The markers of `match` with the table of their name, budget and heading between them."""
        name, budget, heading = match.group("name", "budget", "heading")
        tables = tables_by_heading(name, budget)
        if heading not in tables:
            raise TesseraError(f"{name}/{budget}: a table must be one of {', '.join(tables)}; got {heading!r}.")
        return f"{match['begin']}\n{tables[heading]}\n\n{END}"

    return MARKED.sub(table, page)


def main() -> None:
    """Write figures and tables beside all results, and the tables into the pages."""
    results, pages = Path("results"), Path("docs/experiments")
    for name in EXPERIMENTS:
        for path in sorted((results / name).glob("*.json")):
            write_report(ResultsFile(results, name, path.stem))
    for page in sorted(pages.glob("*.md")):
        write_text_atomically(page, with_tables(page.read_text(encoding="utf-8"), results))


if __name__ == "__main__":
    main()
