"""A run from a recipe to a folder that holds a model."""

import logging
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.base.checkpoints import latest_complete, step_of
from tessera.base.errors import TesseraError, TrainingInterrupted
from tessera.data.windows import TrainingWindows, ValidationWindows
from tessera.recipes.sections import Recipe
from tessera.training.arguments import training_arguments
from tessera.training.corpus import Corpus, open_corpus
from tessera.training.folder import claimed
from tessera.training.initial_model import enable_checkpointing, require_document_ids, require_start, starting_model
from tessera.training.optimizer import schedule_factor
from tessera.training.result import publish_model
from tessera.training.saved_recipe import saved_steps
from tessera.training.sharding import ShardedTrainer
from tessera.training.staged_run import train_in_stages
from tessera.training.summary import RunSummary
from tessera.training.tracking import reporters, require_reporters
from tessera.training.trainer import RecipeTrainer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel, TrainerCallback, TrainingArguments


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Everything that can go wrong before the first step has gone right."""

    corpus: Corpus
    model: "PreTrainedModel"
    training: TrainingWindows
    validation: ValidationWindows


def train(
    recipe: Recipe,
    run: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    callbacks: "Sequence[TrainerCallback]" = (),
) -> RunSummary:
    """Train as `recipe` says into folder `run`, and leave a model there that `from_pretrained` loads.

    With `resume`, continue from the latest complete checkpoint (from the start if there is none): on CPU the weights
    end bit-identical to an uninterrupted run's. An existing run is never replaced unless `overwrite` says so; it is
    deleted when the new one has its first checkpoint. `callbacks` are further ones for the Trainer.
    Raises `TesseraError` for impossible recipes, unusable data, folders and checkpoints, and non-finite losses;
    `TrainingInterrupted` after a Ctrl-C, when a checkpoint of the step holds everything.
    """
    if recipe.training.curriculum:
        return train_in_stages(recipe, run, resume=resume, overwrite=overwrite, progress=progress)
    began = time.time()
    arguments = training_arguments(recipe, run)
    require_reporters(recipe.training)
    with ExitStack() as stack:
        claim = None
        if arguments.process_index == 0:
            claim = stack.enter_context(claimed(recipe, run, resume=resume, overwrite=overwrite))
        with arguments.main_process_first(desc="tokenising"):
            prepared = _prepare(recipe, run, saved_tokenizer=not overwrite)
        checkpoint = _checkpoint(run) if resume else None
        extended = _extension(recipe, run) if checkpoint else ""
        trainer = _trainer(recipe, run, arguments, prepared, progress)
        if claim is not None:
            claim.begin(prepared.corpus)
            trainer.metrics.cut_after(step_of(checkpoint) if checkpoint else 0)
        for callback in (*reporters(recipe.training, run, step_of(checkpoint) if checkpoint else 0), *callbacks):
            trainer.add_callback(callback)
        trainer.guard.skipped = trainer.metrics.skipped_steps()
        if extended and claim is not None:
            log.warning(extended)
        _steps(trainer, checkpoint, recipe.training.steps)
        return publish_model(trainer, time.time() - began)


def _prepare(recipe: Recipe, run: Path, saved_tokenizer: bool) -> Prepared:
    data = recipe.data
    require_start(recipe)
    corpus = open_corpus(recipe, run, saved_tokenizer=saved_tokenizer)
    samples = recipe.training.steps * recipe.training.batch_size
    training = TrainingWindows(corpus.training, data.context, samples, recipe.seed, data.document_ids)
    validation = ValidationWindows(
        corpus.validation, data.context, recipe.training.evaluate_sequences, data.document_ids
    )
    model = starting_model(recipe, corpus.tokenizer, corpus.largest_token)
    require_document_ids(model, recipe)
    enable_checkpointing(model, recipe.training)
    return Prepared(corpus, model, training, validation)


def _trainer(
    recipe: Recipe, run: Path, arguments: "TrainingArguments", prepared: Prepared, progress: bool
) -> "RecipeTrainer":

    # one process has nothing to shard
    trainer_class = ShardedTrainer if recipe.training.shard and arguments.world_size > 1 else RecipeTrainer
    return trainer_class(
        prepared.model,
        recipe,
        run,
        arguments,
        prepared.corpus.tokenizer,
        prepared.training,
        prepared.validation,
        progress,
    )


def _steps(trainer: "RecipeTrainer", checkpoint: Path | None, steps: int) -> None:
    """All remaining steps; none when the checkpoint is the last one's."""
    try:
        if checkpoint is not None and step_of(checkpoint) >= steps:
            trainer._load_from_checkpoint(str(checkpoint))
        else:
            with trainer.interruption.listening():
                trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
            trainer.finish_checkpoint()
    finally:
        trainer.progress.close()
    step = trainer.state.global_step
    if trainer.interruption.is_requested and step < steps:
        raise TrainingInterrupted(f"{trainer.run}: stopped after step {step:,} of {steps:,}; a checkpoint holds it.")


def _extension(recipe: Recipe, run: Path) -> str:
    """What more steps than the run was begun with mean for its learning rate; "" when there are none."""
    steps = saved_steps(run)
    if steps is None or steps >= recipe.training.steps:
        return ""
    rate = recipe.training.learning_rate * schedule_factor(recipe.training, steps)
    return (
        f"{run}: extended from {steps:,} to {recipe.training.steps:,} steps. From here on the learning rate is that of "
        f"a run of {recipe.training.steps:,} steps: {rate:.3g} after step {steps:,}."
    )


def _checkpoint(run: Path) -> Path | None:
    checkpoint, passed = latest_complete(run)
    for line in passed:
        log.warning(line)
    if checkpoint is None and passed:
        raise TesseraError(
            f"{run}: no complete checkpoint to resume from: {'; '.join(passed)}. Start again: --overwrite."
        )
    return checkpoint
