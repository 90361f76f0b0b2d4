"""A run whose recipe has a curriculum: stage after stage, one checkpoint file for each, a bar over all of them.

Several processes share each batch (`tessera.training.distributed`); the first of them writes and speaks.
"""

import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from tessera.base.checkpoints import FOLDER
from tessera.base.errors import TesseraError, TrainingInterrupted
from tessera.base.files import remove, writing
from tessera.base.precision import autocast, resolve_precision
from tessera.models.sizes import num_parameters
from tessera.recipes.sections import Recipe, TrainingSection
from tessera.training.arguments import batch_shape
from tessera.training.curriculum import Curriculum, Stage, train_stages
from tessera.training.distributed import joined
from tessera.training.fit import FitOptions, Report
from tessera.training.fit_checkpoint import Fit
from tessera.training.folder import claimed
from tessera.training.initial_model import require_start, starting_model
from tessera.training.metrics import MetricsFile, median_speed
from tessera.training.overwrite import METRICS, RESULT, discard_replaced
from tessera.training.result import move_into_run
from tessera.training.signals import Interruption
from tessera.training.staged_data import StagedData, open_staged_data
from tessera.training.summary import RunSummary
from tessera.training.time_estimate import duration

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def train_in_stages(recipe: Recipe, run: Path, *, resume: bool, overwrite: bool, progress: bool) -> RunSummary:
    """What `tessera.training.run.train` does, for a recipe with a curriculum.

    A stage's checkpoint is `checkpoints/stage-N.safetensors`: with `resume`, stages that are done are taken from
    theirs, and the one that was cut short goes on. Weights end bit-identical to an uninterrupted run's on CPU, by the
    same number of processes.
    """
    began = time.time()
    require_start(recipe)
    with ExitStack() as stack:
        processes = stack.enter_context(joined())
        batch_shape(recipe.training, processes.count)
        claim = None
        if processes.is_first:
            claim = stack.enter_context(claimed(recipe, run, resume=resume, overwrite=overwrite))
        else:
            processes.wait()  # until the first has written the tokenizer
        saved = not (overwrite and processes.is_first)
        data = open_staged_data(recipe, run, saved_tokenizer=saved, processes=processes)
        longest = max(stage.length for stage in recipe.training.curriculum) * data.segment
        model = starting_model(recipe, data.tokenizer, context=max(longest, recipe.data.context))
        if claim is not None:
            claim.begin(data)
            _clear(run, resume)
            processes.wait()
        model.to(processes.device)
        log = StageLog(recipe, run, data, progress)
        torch.manual_seed(recipe.seed)  # dropout and random delays draw from it
        log.begin(model)
        interruption = Interruption()
        try:
            with interruption.listening():
                _stages(recipe, run, model, data, log, lambda: interruption.is_requested)
        except TrainingInterrupted as stop:
            raise TrainingInterrupted(f"{run}: {stop}") from None
        finally:
            log.close()
        return _publish(recipe, run, model, log, time.time() - began)


def _clear(run: Path, resume: bool) -> None:
    """Remove what the run that begins, or goes on, writes anew."""
    if not resume:
        remove(run / FOLDER)
    if (run / RESULT).exists() and resume:
        remove(run / RESULT)  # it is written again, last
    for litter in (run / FOLDER).glob("*.tmp"):
        remove(litter)


class StageLog:
    """`metrics.jsonl`, a bar over all stages, and lines about the stages that have ended: of the first process."""

    def __init__(self, recipe: Recipe, run: Path, data: StagedData, shown: bool) -> None:
        self.recipe, self.run, self.data = recipe, run, data
        self.writes = data.processes.is_first
        self.shown = shown and self.writes
        self.metrics = MetricsFile(run / METRICS)
        self.validation: dict[str, float] = {}
        self.tokens = self.steps = 0  # of the stages before the one that is under way
        self.stage = self.share = self.done = 0.0
        self.bar: Any = None
        self._clock: tuple[int, float] | None = None

    def begin(self, model: "PreTrainedModel") -> None:
        """Say what is trained; start the bar."""
        stages = self.recipe.training.curriculum
        self.say(
            f"{self.recipe.name}: {num_parameters(model):,} parameters, {len(stages)} stages of "
            f"{', '.join(str(stage.length) for stage in stages)} segments, at most "
            f"{self.recipe.training.curriculum_steps:,} steps"
        )
        self.bar = tqdm(
            total=1000,
            desc=self.recipe.name,
            bar_format="{desc} {percentage:3.0f}% {bar:20} {remaining} left at most{postfix}",
            disable=not self.shown,
            mininterval=0.5 if sys.stderr.isatty() else 10.0,
        )

    def report(self, share: float, note: str) -> None:
        """The share of all stages, by their cost."""
        self.bar.set_postfix_str(note, refresh=False)
        self.bar.update(round(1000 * share) - self.bar.n)

    def observe(self, stage: Stage, number: int, progress: Fit, learning_rate: float) -> None:
        """A line of metrics for training and, if there was one, for the validation; see `train_stages`."""
        if number > self.stage:
            self._next(number)
        step = self.steps + progress.steps
        if self._clock is None:  # the stage begins, or goes on from its checkpoint
            later = self.run / FOLDER / f"stage-{number + 1}.safetensors"
            if self.writes and not later.exists():  # the later stage says where
                self.metrics.cut_after(step)
            self.bar.initial = self.bar.n
            self._clock = (self._tokens(stage, progress.steps), progress.seconds)
            self._last = progress.steps, stage
            return
        tokens = self._tokens(stage, progress.steps)
        since, seconds = tokens - self._clock[0], progress.seconds - self._clock[1]
        self._clock, self._last = (tokens, progress.seconds), (progress.steps, stage)
        place = {"step": step, "stage": number + 1}
        if since:
            speed = round(since / seconds, 1) if seconds else None
            line = {"loss": progress.loss, "learning_rate": learning_rate, "tokens": self.tokens + tokens}
            self._write({**place, **line, "tokens_per_second": speed})
        if self.validation:
            scores = {name: value for name, value in self.validation.items() if name != "score"}
            self._write({**place, "length": stage.length, **scores})
            self.validation = {}
        if self.writes and (self.run / FOLDER).is_dir():
            discard_replaced(self.run)

    def score(self, model: "PreTrainedModel", stage: Stage) -> float:
        """Validate, and keep the numbers for the next line of metrics."""
        self.validation = self.data.validation(model, stage)
        return self.validation["score"]

    def finish(self) -> tuple[int, int]:
        """(steps, tokens) of all stages."""
        self._next(len(self.recipe.training.curriculum))
        return self.steps, self.tokens

    def close(self) -> None:
        """End the line of the bar."""
        if self.bar is not None:
            self.bar.close()

    def say(self, line: str) -> None:
        """A line on standard error."""
        if self.shown:
            tqdm.write(line, file=sys.stderr)

    def _write(self, line: dict[str, Any]) -> None:
        if self.writes:
            self.metrics.append(line)

    def _next(self, number: int) -> None:
        steps, stage = self._last
        self.tokens += self._tokens(stage, steps)
        self.steps += steps
        self.stage, self._clock = number, None

    def _tokens(self, stage: Stage, steps: int) -> int:
        return sum(self.data.batch_tokens(stage, step) for step in range(steps))


def _stages(recipe: Recipe, run: Path, model: "PreTrainedModel", data: StagedData, log: StageLog, is_stopped) -> None:
    section = recipe.training
    device = next(model.parameters()).device.type
    precision = partial(autocast, resolve_precision(section.precision, device), device)

    def loss_at(stage: Stage, number: int, step: int) -> torch.Tensor:
        with precision():
            return data.loss(model, stage, number, step)

    def score(stage: Stage) -> float:
        with precision():
            return log.score(model, stage)

    began = time.perf_counter()
    curriculum = Curriculum(tuple(section.curriculum))
    with writing(run, "checkpoint", "Earlier ones are complete: --resume goes on."):
        records = train_stages(
            model,
            curriculum,
            _fit_options(section),
            run / FOLDER,
            loss_at,
            score,
            log.report,
            log.observe,
            is_stopped,
            partial(data.begin, model),
            data.processes,
        )
    log.report(1.0, "")
    for record in records:
        log.say(
            f"length {record['length']}: {record['steps_done']:,} of {record['steps']:,} steps, best score "
            f"{record['best']:.4f} at step {record['best_step']:,}, {duration(record['seconds'])}"
        )
    log.say(f"all stages: {duration(time.perf_counter() - began)}")


def train_stages_of(
    model: "PreTrainedModel", recipe: Recipe, data: StagedData, folder: Path, report: Report
) -> list[dict[str, Any]]:
    """Train `model` through the recipe's curriculum without a run folder; the records of its stages.

    Checkpoints lie in `folder`, from which a later call goes on; see `train_stages`.
    """
    return train_stages(
        model,
        Curriculum(tuple(recipe.training.curriculum)),
        _fit_options(recipe.training),
        folder,
        lambda stage, number, step: data.loss(model, stage, number, step),
        lambda stage: data.validation(model, stage)["score"],
        report,
        begin=partial(data.begin, model),
    )


def _fit_options(section: TrainingSection) -> FitOptions:
    """What all stages share; `fit` replaces steps and learning rate by the stage's.

    As published, a stage ends halfway down a linear schedule over twice its steps.
    """
    return FitOptions(
        steps=1,
        learning_rate=1.0,
        decay="linear",
        schedule_ratio=2.0,
        weight_decay=section.weight_decay,
        betas=section.betas,
        clip=section.clip or None,
        scalar_learning_rate_scale=section.scalar_learning_rate_scale,
        evaluate_every=section.evaluate_every,
        patience=section.patience,
        checkpoint_every=section.checkpoint_every,
    )


def _publish(recipe: Recipe, run: Path, model: "PreTrainedModel", log: StageLog, seconds: float) -> RunSummary:
    steps, tokens = log.finish()
    with torch.no_grad():
        last = log.data.validation(model, recipe.training.curriculum[-1])
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise TesseraError(f"{run}: weights must be finite; got NaN or infinity. Lower the stages' learning_rate.")
    summary = RunSummary(
        name=recipe.name,
        folder=str(run),
        parameters=num_parameters(model),
        steps=steps,
        tokens=tokens,
        skipped_steps=0,
        validation_loss=last["validation_loss"],
        validation_bits_per_byte=last.get("validation_bits_per_byte"),
        tokens_per_second=median_speed(log.metrics.read()),
        validation_exact_match=last.get("validation_exact_match"),
    )
    if not log.writes:
        return summary
    with writing(run, "the model", "Checkpoints are complete: --resume writes it again."):
        temporary = run / "model.tmp"
        remove(temporary)
        model.save_pretrained(temporary)
        move_into_run(temporary, run, recipe, summary, seconds)
    return summary
