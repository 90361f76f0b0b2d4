"""A run from a recipe to a folder that holds a model; Ctrl-C ends it behind a step, with a checkpoint."""

import json
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tessera.base.arguments import explain_all
from tessera.base.files import remove, sync, write_text_atomically, writing
from tessera.base.random_numbers import random_numbers_kept
from tessera.evaluation.provenance import provenance
from tessera.models.saving.beside_weights import CARD, own_modules
from tessera.models.saving.loading import model_folder
from tessera.models.sizes import num_parameters
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import Recipe
from tessera.training.checkpoint import Checkpoints, TrainingProgress
from tessera.training.checkpoint_tensors import SHARDS, WEIGHT, ShardWriter, merge, model_tensors, prefixed
from tessera.training.distributed import Processes, batch_shape, init_processes, shard
from tessera.training.fit import stage_plans
from tessera.training.folder import METRICS, RESULT, Claim, claimed, discard_replaced, saved_steps
from tessera.training.initial_model import enable_checkpointing, starting_model
from tessera.training.loop import NotFinite, Report, train_stages, unreported
from tessera.training.model_card import RunSummary, write_model_card
from tessera.training.optimizer import schedule_factor, stage_options
from tessera.training.run_log import MetricsFile, RunLog, expect_trackers, median_speed, trackers
from tessera.training.staged_data import open_data
from tessera.training.training_data import TrainingData

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interruption:
    """Whether one of `SIGNALS` came inside `listening`. A second one raises `KeyboardInterrupt` at once."""

    def __init__(self) -> None:
        self.is_requested = False
        self._terminals: list[int] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals until the block ends; outside the main thread Python allows no handlers, so nothing.

        A signal that is ignored (SIGHUP under nohup) stays so.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._interrupt) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        if number == getattr(signal, "SIGHUP", None):
            with open(os.devnull, "wb") as nowhere:  # the terminals are gone: every write to them would fail
                for terminal in self._terminals:
                    os.dup2(nowhere.fileno(), terminal)
        with suppress(RuntimeError):  # it came inside a write to the same stream, which takes no other
            tqdm.write(
                "Stopping after this step, with a checkpoint. Ctrl-C again stops at once, without.", file=sys.stderr
            )


log = logging.getLogger(__name__)


def train(
    recipe: Recipe,
    run: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    report: Report = unreported,
) -> RunSummary:
    """Train as `recipe` says into folder `run`, and leave a model there that `from_pretrained` loads.

    With `resume`, continue from the latest complete checkpoint (from the start if there is none): on CPU the weights
    end bit-identical to an uninterrupted run's by as many processes. An existing run is never replaced unless
    `overwrite` says so; it is deleted when the new one has its first checkpoint.
    Raises `TesseraError` for impossible recipes, unusable data, folders and checkpoints, and non-finite losses;
    `TrainingInterrupted` after a Ctrl-C, when a checkpoint of the step holds everything.
    """
    began = time.time()
    expect_trackers(recipe.training)
    if recipe.training.initialize_from:
        model_folder(recipe.training.initialize_from)  # a missing one is said before anything is tokenised
    with ExitStack() as stack:
        processes = stack.enter_context(init_processes())
        stack.enter_context(random_numbers_kept())
        batch_shape(recipe.training, processes.count)
        claim = None
        if processes.is_first:
            claim = stack.enter_context(claimed(recipe, run, resume=resume, overwrite=overwrite))
        else:
            processes.wait()  # until the first has written the tokenizer
        data = open_data(recipe, run, saved_tokenizer=not (overwrite and processes.is_first), processes=processes)
        longest = max(stage.length for stage in recipe.training.stages) * data.segment
        model = starting_model(recipe, data.tokenizer, data.largest_token, max(longest, recipe.data.context))
        checkpoints = Checkpoints(
            run,
            model,
            resume=resume,
            processes=processes,
            keep=recipe.training.keep_checkpoints,
            describe=lambda folder: write_model_files(model, data.tokenizer, folder),
            published=lambda: discard_replaced(run),
        )
        run_log = RunLog(recipe, data, MetricsFile(run / METRICS), progress, report)
        stack.callback(run_log.close)
        if claim is not None:
            _begin(claim, checkpoints, run_log)
            processes.wait()
        _prepare(model, recipe, processes)
        run_log.open(model, checkpoints.step)
        interruption = Interruption()
        with interruption.listening():
            plans = stage_plans(recipe, model, data, run_log.validation, str(run))
            stages = train_stages(model, plans, checkpoints, run_log, lambda: interruption.is_requested, processes)
        run_log.summarise(stages)
        data.finish(model)
        summary = _summary(run, model, data, stages, run_log.validated)
        publish_model(run, model, data, summary, time.time() - began)
        return summary


def _begin(claim: Claim, checkpoints: Checkpoints, run_log: RunLog) -> None:
    """What the first process does when nothing can be refused any more: the folder is the run's from here on."""
    for line in [*checkpoints.passed, *_extension(claim.recipe, claim.run, checkpoints.step)]:
        log.warning(line)
    claim.begin(run_log.data)
    run_log.metrics.cut_after(checkpoints.step)
    run_log.trackers.extend(trackers(claim.recipe, claim.run, checkpoints.step))  # those before one that fails too


def _prepare(model: PreTrainedModel, recipe: Recipe, processes: Processes) -> None:
    """Where and how it will compute, and from which random state."""
    section = recipe.training
    enable_checkpointing(model, section)
    model.to(processes.device)
    if section.shard and processes.count > 1:  # one process has nothing to shard
        shard(model)
    if section.compile:
        model.compile()
    torch.manual_seed(recipe.seed)  # dropout and random delays draw from it
    torch.empty((), dtype=torch.int64).random_()  # as when the stored results were made: models stay the same


def _extension(recipe: Recipe, run: Path, step: int) -> list[str]:
    """What more steps than the run was begun with mean for its learning rate; nothing when there are none."""
    section, before = recipe.training, saved_steps(run)
    if section.curriculum or not step or before is None or before >= section.steps:
        return []
    rate = section.learning_rate * schedule_factor(stage_options(section, section.stages[0]), before)
    return [
        f"{run}: extended from {before:,} to {section.steps:,} steps. From here on the learning rate is that of a run "
        f"of {section.steps:,} steps: {rate:.3g} after step {before:,}."
    ]


def publish_model(run: Path, model: PreTrainedModel, data: TrainingData, summary: RunSummary, seconds: float) -> None:
    """Put the trained model into the run's folder, file by file under its final name, and `run.json` last."""
    temporary, recipe = run / "model.tmp", data.recipe
    with writing(run, "the model", "Checkpoints are complete: --resume writes it again."):
        if isinstance(model, FSDPModule):
            model.reshard()  # a validation leaves the outermost parameters whole
            _write_sharded_model(model, data, temporary)
        elif data.processes.is_first:
            model.save_pretrained(temporary)
        if data.processes.is_first:
            _move_into_run(temporary, run)
            write_model_card(run, recipe, summary, own_modules(model))
            made_with = provenance(configuration=recipe_to_dict(recipe), seed=recipe.seed, wall_seconds=seconds)
            result = {"result": asdict(summary), "provenance": made_with}
            write_text_atomically(run / RESULT, json.dumps(result, indent=1) + "\n")
    data.processes.wait()


def write_model_files(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """What loads a model, but for its weights."""
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_sharded_model(model: PreTrainedModel, data: TrainingData, folder: Path) -> None:
    """All processes write their shards; the first then merges these, a file at a time."""
    if data.processes.is_first:
        folder.mkdir(parents=True)
        write_model_files(model, data.tokenizer, folder)
    data.processes.wait()
    writer = ShardWriter()
    writer.start(folder / SHARDS, prefixed(WEIGHT, model_tensors(model)), lambda: None)
    writer.finish()
    data.processes.wait()
    if data.processes.is_first:
        merge(folder, folder)
        remove(folder / SHARDS)


def _move_into_run(temporary: Path, run: Path) -> None:
    """Move a model's files into the run's folder, weights last.

    The run has its tokenizer from the start; a kill here must not leave another file of it, or --resume would take it
    for another tokenizer. Its card is the run's own.
    """
    for file in sorted(temporary.iterdir(), key=lambda path: path.suffix == ".safetensors"):
        if file.name != CARD and not file.name.startswith("tokenizer"):
            sync(file)
            os.replace(file, run / file.name)
    remove(temporary)


def _summary(
    run: Path, model: PreTrainedModel, data: TrainingData, stages: list[TrainingProgress], validation: dict[str, float]
) -> RunSummary:
    plans = data.recipe.training.stages
    counts = [(plans[number], number, step) for number, stage in enumerate(stages) for step in range(stage.steps)]
    if not validation or "score" in validation:  # the best weights may be those of an earlier validation
        validation = data.validation(model, plans[-1])
    if not math.isfinite(loss := validation["validation_loss"]):  # the last step's loss is of the weights before it
        advice = "Lower the learning rate; its checkpoints hold the weights."
        raise NotFinite(f"{run}: the validation loss at the end must be finite; got {loss}. {advice}")
    return RunSummary(
        name=data.recipe.name,
        folder=str(run),
        parameters=num_parameters(model),
        steps=len(counts),
        tokens=sum(data.batch_tokens(*place) for place in counts),
        skipped_steps=sum(progress.skipped for progress in stages),
        validation_loss=loss,
        validation_bits_per_byte=validation.get("validation_bits_per_byte"),
        tokens_per_second=median_speed(MetricsFile(run / METRICS).read()),
        validation_exact_match=validation.get("validation_exact_match"),
    )


explain_all(globals(), ("train",))
