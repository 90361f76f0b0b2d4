"""What a run tells while it trains: metrics as JSON lines, trackers, and for people a bar and a few lines."""

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from torch import nn
from tqdm import tqdm

from tessera.base.bar_lines import bar_stream
from tessera.base.dataclass_io import to_json
from tessera.base.errors import TesseraError, first_line
from tessera.base.files import write_text_atomically, writing
from tessera.models.sizes import num_parameters
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import Recipe, TrainingSection
from tessera.training.checkpoint import TrainingProgress
from tessera.training.folder import EVENTS
from tessera.training.loop import Report, TrainingLog
from tessera.training.training_data import TrainingData


def median_speed(records: Iterable[Mapping[str, Any]]) -> float | None:
    """Tokens per second, the median over the lines that tell it."""
    speeds = [record["tokens_per_second"] for record in records if record.get("tokens_per_second")]
    return median(speeds) if speeds else None


class MetricsFile:
    """`metrics.jsonl` of a run.

    Training lines hold step, loss (nats/token, mean since the last line), learning_rate, gradient_norm, tokens (seen
    so far), tokens_per_second (while training, evaluation and checkpoints not counted) and skipped_steps. Validation
    lines hold step, validation_loss (nats/token) and validation_bits_per_byte. Of a curriculum all hold the stage, and
    validation lines the length, validation_exact_match and validation_penalty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        """Add one line. Values that are not finite are written as null, which is what JSON has."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(to_json(record)) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines but a last one that a kill cut short. Raises `TesseraError` for a damaged one."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [self._record(number, line) for number, line in enumerate(lines[:-1], start=1) if line]

    def cut_after(self, step: int) -> None:
        """Drop everything written after `step`, in one atomic replacement: a resumed run writes it again."""
        kept = [record for record in self.read() if record["step"] <= step]
        with writing(self.path):
            write_text_atomically(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def _record(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                return record
        except (ValueError, RecursionError):
            pass
        raise TesseraError(
            f"{self.path}: line {number} must be a JSON object with a step; got {line[:40]!r}. Delete damaged lines."
        )


MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}
logger = logging.getLogger(__name__)


def expect_trackers(section: TrainingSection) -> None:
    """Raise `TesseraError` unless each package that `training.report_to` needs can be imported."""
    for name in section.report_to:
        try:
            import_module(MODULES[name])
        except ImportError as error:
            raise TesseraError(
                f"training.report_to: {name} must be installed; got {first_line(error)}. "
                f"Install it: pip install {name}. Or leave it out."
            ) from error


class Tracker(NamedTuple):
    """Hears of metrics: `log(numbers, step)` with names such as "train/loss", and at the end `close()`."""

    name: str
    log: Callable[[Mapping[str, Any], int], object]
    close: Callable[[], object]


def trackers(recipe: Recipe, run: Path, step: int) -> Iterator[Tracker]:
    """What `training.report_to` names, for a run in folder `run` that goes on after `step`.

    TensorBoard's event files go to `run`/tensorboard (or to $TENSORBOARD_LOGGING_DIR); what was written after `step`
    by a process that died is not shown any more. Weights & Biases is told by its own environment variables
    (WANDB_PROJECT, WANDB_MODE, ...) where to write.
    """
    known = {"tensorboard": _tensorboard, "wandb": _wandb}
    return (known[name](recipe, run, step) for name in recipe.training.report_to)


def _tensorboard(recipe: Recipe, run: Path, step: int) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    folder = os.path.expanduser(os.environ.get("TENSORBOARD_LOGGING_DIR") or run / EVENTS)
    with writing(folder, "event files"):
        writer = SummaryWriter(folder, purge_step=step + 1)

    def log(values: Mapping[str, Any], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # onto the disk: the process may be killed

    return Tracker("tensorboard", log, writer.close)


def _wandb(recipe: Recipe, run: Path, step: int) -> Tracker:
    import wandb  # type: ignore[import-not-found]

    try:
        started = wandb.init(name=recipe.name, config=recipe_to_dict(recipe))
    except Exception as error:  # no account, no network
        advice = "Set WANDB_MODE=offline, or leave it out."
        raise TesseraError(f"training.report_to: wandb cannot start ({first_line(error)}). {advice}") from error
    return Tracker("wandb", lambda values, step: started.log(values, step=step), started.finish)


def sizes(recipe: Recipe, model: nn.Module, segment: int, done: int) -> str:
    """The line before the first step: what is trained on how much; `done`: steps that a checkpoint holds."""
    section, parameters = recipe.training, num_parameters(model)
    line = f"{recipe.name}: {parameters:,} parameters, "
    if section.curriculum:
        lengths = ", ".join(str(stage.length) for stage in section.stages)
        line += f"stages of {lengths} segments, at most {section.curriculum_steps:,} steps"
    else:
        tokens = section.steps * section.batch_size * segment
        line += f"{tokens:,} training tokens ({tokens / parameters:.3g} per parameter), {section.steps:,} steps"
    return line + (f", {done:,} of them done" if done else "") + " (Ctrl-C stops; --resume goes on)"


class RunLog(TrainingLog):
    """The `TrainingLog` of a run. Of several processes only the first writes and speaks.

    In what `report` hears a step costs in proportion to its length.
    """

    def __init__(self, recipe: Recipe, data: TrainingData, metrics: MetricsFile, shown: bool, report: Report) -> None:
        self.recipe, self.data, self.metrics, self.report = recipe, data, metrics, report
        self.trackers: list[Tracker] = []
        self.writes = data.processes.is_first
        self.shown = shown and self.writes
        self.stages = recipe.training.stages
        self.total_cost = sum(stage.cost for stage in self.stages)
        self.number = self.tokens = 0
        self.ended: list[TrainingProgress] = []  # of the stages before the one under way
        self.progress = TrainingProgress()
        self.validated: dict[str, float] = {}  # what the last validation said
        self._line_tokens = 0
        self._notes: dict[str, str] = {}
        self._bar: Any = None

    def open(self, model: nn.Module, done: int) -> None:
        """Say what is trained, `done` steps of which a checkpoint holds, and start the bar."""
        self.say(sizes(self.recipe, model, self.data.segment, done))
        is_staged = bool(self.recipe.training.curriculum)
        steps, most = ("", " at most") if is_staged else ("step {n:,.0f}/{total:,.0f}, ", "")
        self._bar = tqdm(
            total=self.total_cost,
            desc=self.recipe.name,
            bar_format="{desc} {percentage:3.0f}% {bar:20} " + steps + "{remaining} left" + most + "{postfix}",
            disable=not self.shown,
            mininterval=0.5,
            file=bar_stream(),
        )

    def begin(self, number: int, progress: TrainingProgress) -> None:
        """See `TrainingLog`."""
        self.ended.append(self.progress)
        self.number, self.progress = number, progress
        self.tokens += sum(self.data.batch_tokens(self.stages[number], number, step) for step in range(progress.steps))
        self._line_tokens = self.tokens
        self._bar.n = self._bar.initial = self._cost

    def step(self, progress: TrainingProgress) -> None:
        """See `TrainingLog`."""
        self.tokens += self.data.batch_tokens(self.stages[self.number], self.number, progress.steps - 1)
        if self.shown:
            self._bar.update(self._cost - self._bar.n)
        self.report(self._cost / self.total_cost, f"step {self._step:,}")

    def line(self, progress: TrainingProgress, learning_rate: float) -> None:
        """See `TrainingLog`."""
        tokens, seconds = self.tokens - self._line_tokens, progress.step_seconds
        speed = round(tokens / seconds, 1) if seconds else None
        losses = progress.unlogged
        record: dict[str, Any] = {"loss": sum(losses[1:], losses[0]).item() / len(losses)} if losses else {}
        record |= {
            "learning_rate": learning_rate,
            "gradient_norm": progress.gradient_norm,
            "tokens": self.tokens,
            "tokens_per_second": speed,
            "skipped_steps": sum(stage.skipped for stage in [*self.ended, progress]),
        }
        self._write(record, "train")
        self._line_tokens = self.tokens
        if "loss" in record:
            self._note(loss=f"loss {record['loss']:.3f}", speed=f"{speed or 0:,.0f} tokens/s")

    def validation(self, numbers: dict[str, float]) -> None:
        """A line of a validation, which leaves out the score that chooses weights."""
        self.validated = numbers
        length = {"length": self.stages[self.number].length} if self.recipe.training.curriculum else {}
        self._write(length | {name: value for name, value in numbers.items() if name != "score"}, "eval")
        self._note(validation=f"validation {numbers['validation_loss']:.3f}")

    def summarise(self, stages: list[TrainingProgress]) -> None:
        """A line for each stage of a curriculum."""
        for stage, progress in zip(self.recipe.training.curriculum, stages):
            self.say(
                f"length {stage.length}: {progress.steps:,} of {stage.steps:,} steps, best score "
                f"{1 - progress.best:.4f} at step {progress.best_step:,}, {tqdm.format_interval(progress.seconds)}"
            )

    def close(self) -> None:
        """End the line of the bar, and the trackers: all of them, where one fails too."""
        if self._bar is not None:
            self._bar.close()
        for tracker in self.trackers:
            self._tell(tracker, tracker.close)

    def say(self, line: str) -> None:
        """A line on standard error."""
        if self.shown and line:
            tqdm.write(line, file=sys.stderr)

    @property
    def _step(self) -> int:
        """Of the run, over all stages."""
        return sum(stage.steps for stage in self.ended) + self.progress.steps

    @property
    def _cost(self) -> float:
        """Of the steps done, as if stages that ended early had taken all of theirs."""
        before = sum(stage.cost for stage in self.stages[: self.number])
        return before + self.progress.steps * self.stages[self.number].mean_length

    def _write(self, record: dict[str, Any], kind: str) -> None:
        if not self.writes:
            return
        stage = {"stage": self.number + 1} if self.recipe.training.curriculum else {}
        self.metrics.append({"step": self._step} | stage | record)
        known = {name.removeprefix("validation_"): value for name, value in record.items() if value is not None}
        values = {f"{kind}/{name}": value for name, value in known.items()}
        for tracker in self.trackers:
            self._tell(tracker, tracker.log, values, self._step)

    def _tell(self, tracker: Tracker, call: Callable[..., object], *arguments: Any) -> None:
        """A tracker that fails is named once and gets nothing more. The run goes on; its own files have every line."""
        try:
            call(*arguments)
        except Exception as error:
            if tracker in self.trackers:
                failure = f"{tracker.name} failed ({first_line(error)}) and gets nothing more"
                logger.warning(f"training.report_to: {failure}. {self.metrics.path} has every line.")
            self.trackers = [other for other in self.trackers if other is not tracker]
            if call is not tracker.close:
                self._tell(tracker, tracker.close)

    def _note(self, **notes: str) -> None:
        """Show these texts beside the bar from now on, in the order in which they were first given."""
        self._notes.update(notes)
        self._bar.set_postfix_str(", ".join(self._notes.values()), refresh=False)
