"""The file of an experiment's results: one record per finished run, never lost to a kill or another version."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import from_json, to_json
from tessera.base.errors import TesseraError, first_line
from tessera.base.files import expect_writable, write_text_atomically
from tessera.base.locks import folder_held
from tessera.papers.experiment import EXPERIMENTS, Record

FORMAT = 1


@dataclass(frozen=True)
class ResultsFile:
    """`results/<experiment>/<budget>.json`; the figure and the table lie beside it under the same name.

    Raises (by `read` and `add`):
        TesseraError: the file is not such a file, or of another version; it is left as it is.
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
            text = json.dumps(stored, indent=1, allow_nan=False) + "\n"
            write_text_atomically(self.path, text)
