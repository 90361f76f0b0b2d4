"""What a run tells while it trains: metrics.jsonl, trackers, and for people a bar and a few lines."""

import sys
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from tessera.base.bar_lines import bar_stream
from tessera.recipes.sections import Recipe
from tessera.training.checkpoint import TrainingProgress
from tessera.training.loop import Report
from tessera.training.metrics import MetricsFile
from tessera.training.time_estimate import TimeEstimate, duration
from tessera.training.tracking import Tracker
from tessera.training.training_data import TrainingData


class RunLog:
    """The `TrainingLog` of a run. Of several processes only the first writes and speaks.

    `report(share, note)` hears the share of all stages, where a step costs in proportion to its length.
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
        self.progress: TrainingProgress | None = None
        self.validated: dict[str, float] = {}  # what the last validation said
        self._line_tokens, self._line_seconds = 0, 0.0
        self._estimate = TimeEstimate(recipe, data.validation_sequences, data.segment)
        self._notes: dict[str, str] = {}
        self._bar: Any = None

    def open(self, model: nn.Module, done: int) -> None:
        """Say what is trained, `done` steps of which a checkpoint holds, and start the bar."""
        self.say(self._estimate.sizes(model, done))
        left = (
            "{remaining} left at most"
            if self.recipe.training.curriculum
            else "step {n:,.0f}/{total:,.0f}, {remaining} left"
        )
        self._bar = tqdm(
            total=self.total_cost,
            desc=self.recipe.name,
            bar_format="{desc} {percentage:3.0f}% {bar:20} " + left + "{postfix}",
            disable=not self.shown,
            mininterval=0.5,
            file=bar_stream(),
        )

    def begin(self, number: int, progress: TrainingProgress) -> None:
        """See `TrainingLog`."""
        if self.progress is not None:
            self.ended.append(self.progress)
        self.number, self.progress = number, progress
        self.tokens += sum(self.data.batch_tokens(self.stages[number], step) for step in range(progress.steps))
        self._line_tokens, self._line_seconds = self.tokens, 0.0
        if self._bar is not None:
            self._bar.n = self._bar.initial = self._cost

    def step(self, progress: TrainingProgress) -> None:
        """See `TrainingLog`."""
        tokens = self.data.batch_tokens(self.stages[self.number], progress.steps - 1)
        self.tokens += tokens
        seconds, self._line_seconds = progress.step_seconds - self._line_seconds, progress.step_seconds
        if self.shown:
            self.say(self._estimate.after_step(self.number, progress.steps, seconds, tokens))
            self._bar.update(self._cost - self._bar.n)
        self.report(self._cost / self.total_cost, f"step {self._step:,}")

    def line(self, progress: TrainingProgress, learning_rate: float) -> None:
        """See `TrainingLog`."""
        tokens, seconds = self.tokens - self._line_tokens, progress.step_seconds
        speed = round(tokens / seconds, 1) if seconds else None
        record: dict[str, Any] = {"loss": mean_loss(progress.unlogged)} if progress.unlogged else {}
        record |= {
            "learning_rate": learning_rate,
            "gradient_norm": progress.gradient_norm,
            "tokens": self.tokens,
            "tokens_per_second": speed,
            "skipped_steps": sum(stage.skipped for stage in [*self.ended, progress]),
        }
        self._write(record, "train")
        self._line_tokens, self._line_seconds = self.tokens, 0.0
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
                f"{1 - progress.best:.4f} at step {progress.best_step:,}, {duration(progress.seconds)}"
            )

    def close(self) -> None:
        """End the line of the bar."""
        if self._bar is not None:
            self._bar.close()
        for tracker in self.trackers:
            tracker.close()

    def say(self, line: str) -> None:
        """A line on standard error."""
        if self.shown and line:
            tqdm.write(line, file=sys.stderr)

    @property
    def _step(self) -> int:
        """Of the run, over all stages."""
        assert self.progress is not None
        return sum(stage.steps for stage in self.ended) + self.progress.steps

    @property
    def _cost(self) -> float:
        """Of the steps done, as if stages that ended early had taken all of theirs."""
        assert self.progress is not None
        before = sum(stage.cost for stage in self.stages[: self.number])
        return before + self.progress.steps * self.stages[self.number].mean_length

    def _write(self, record: dict[str, Any], kind: str) -> None:
        if not self.writes:
            return
        stage = {"stage": self.number + 1} if self.recipe.training.curriculum else {}
        self.metrics.append({"step": self._step} | stage | record)
        for tracker in self.trackers:
            tracker.log(
                {f"{kind}/{name.removeprefix('validation_')}": value for name, value in record.items()}, self._step
            )

    def _note(self, **notes: str) -> None:
        """Show these texts beside the bar from now on, in the order in which they were first given."""
        self._notes.update(notes)
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(self._notes.values()), refresh=False)


def mean_loss(losses: list[torch.Tensor]) -> float:
    """Their mean, added up in their order."""
    return sum(losses[1:], losses[0]).item() / len(losses)
