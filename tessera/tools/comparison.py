"""Runs side by side: what each trains, how far it has come and how good it is, whether it has ended or not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.base.checkpoints import checkpoints
from tessera.base.errors import TesseraError, expect
from tessera.evaluation.display import training_curves
from tessera.models.saving.loading import load_config
from tessera.models.sizes import count_parameters
from tessera.tools.sweep import RIGHT, run_names
from tessera.training.folder import METRICS, is_run, saved_steps
from tessera.training.run_log import MetricsFile, median_speed

COLUMNS = ("parameters", "steps", "tokens", "last loss", "best loss", "bits/byte", "tokens/s", "right")


@dataclass(frozen=True)
class RunState:
    """A run as its folder tells it now; None for what is not known yet.

    Attributes:
        parameters: known from the first checkpoint on. steps: all that its recipe names; step: the last logged one.
        last_validation_loss, best_validation_loss: nats per token, in the last stage. best_bits_per_byte: at the best
            loss, which compares runs with different tokenizers. tokens_per_second: the median over the log lines.
            best_exact_match: the largest share of right answers, of a run on questions, in the last stage.
    """

    folder: str
    parameters: int | None
    step: int
    steps: int | None
    tokens: int
    last_validation_loss: float | None
    best_validation_loss: float | None
    best_bits_per_byte: float | None
    tokens_per_second: float | None
    best_exact_match: float | None

    def cells(self) -> tuple[str, ...]:
        """The entries of `COLUMNS`."""
        steps = "-" if self.steps is None else f"{self.step:,}/{self.steps:,}"
        losses = (self.last_validation_loss, self.best_validation_loss, self.best_bits_per_byte)
        shown = (_shown(loss, ".4f") for loss in losses)
        others = (_shown(self.tokens_per_second, ",.0f"), _shown(self.best_exact_match, ".4f"))
        return (_shown(self.parameters, ",d"), steps, f"{self.tokens:,}", *shown, *others)


def run_state(folder: Path) -> RunState:
    """What the folder of a run says. Raises `TesseraError` when it is no run's, or is damaged."""
    records = _records(folder)
    validations = [record for record in records if "validation_loss" in record]
    # The losses of another stage are of other texts, and its best weights were trained on.
    validations = [record for record in validations if record.get("stage") == validations[-1].get("stage")]
    finite = [record for record in validations if math.isfinite(record["validation_loss"])]
    best = min(finite, key=lambda record: record["validation_loss"], default={})
    return RunState(
        folder=str(folder),
        parameters=_parameters(folder),
        step=max((record["step"] for record in records), default=0),
        steps=saved_steps(folder),
        tokens=max((record["tokens"] for record in records if "tokens" in record), default=0),
        last_validation_loss=validations[-1]["validation_loss"] if validations else None,
        best_validation_loss=best.get("validation_loss"),
        best_bits_per_byte=best.get("validation_bits_per_byte"),
        tokens_per_second=median_speed(records),
        best_exact_match=max((r[RIGHT] for r in validations if RIGHT in r), default=None),
    )


def draw_runs(path: Path, folders: Sequence[Path]) -> None:
    """The training curves of all runs into the image file `path`. Raises `TesseraError` when none has a loss yet."""
    runs = {
        name: [{key: value for key, value in record.items() if math.isfinite(value)} for record in _records(folder)]
        for name, folder in zip(run_names(folders), folders)
    }
    has_losses = any(record.keys() & {"loss", "validation_loss"} for records in runs.values() for record in records)
    expect(has_losses, "compare", "--plot", "have a run with losses to draw", "none", "Wait for the first step.")
    training_curves(path, runs)


def _records(folder: Path) -> list[dict[str, Any]]:
    """The numbers of a run's metrics, a line at a time; NaN where a value was not finite."""
    if not is_run(folder):
        what = "other files" if folder.is_dir() else "no such folder"
        raise TesseraError(f"compare: {folder} must be the folder of a run, as tessera train writes it; got {what}.")
    records = MetricsFile(folder / METRICS).read()
    numbers = [{key: math.nan if value is None else value for key, value in record.items()} for record in records]
    return [{key: value for key, value in record.items() if isinstance(value, int | float)} for record in numbers]


def _parameters(folder: Path) -> int | None:
    for source in (folder, *checkpoints(folder)):
        if (source / "config.json").is_file():
            return count_parameters(load_config(source))
    return None


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
