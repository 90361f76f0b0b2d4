"""The results of a run: the model in the run's folder, and run.json with results and provenance."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.base.files import remove, sync, write_text_atomically, writing
from tessera.evaluation.provenance import provenance
from tessera.models.saving.model_card import CARD
from tessera.models.sizes import num_parameters
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import Recipe
from tessera.training.metrics import median_speed
from tessera.training.model_card import write_model_card
from tessera.training.overwrite import RESULT
from tessera.training.summary import RunSummary

if TYPE_CHECKING:
    from tessera.training.trainer import RecipeTrainer


def publish_model(trainer: "RecipeTrainer", seconds: float) -> RunSummary:
    """Put the trained model into the run's folder, file by file under its final name, and `run.json` last."""
    run = trainer.run
    temporary = run / "model.tmp"
    trainer.guard.require_finite_weights(trainer.model, trainer.recipe.training.steps)
    with writing(run, "the model", "Checkpoints are complete: --resume writes it again."):
        if trainer.args.should_save:
            remove(temporary)
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(temporary))
        trainer.accelerator.wait_for_everyone()
        summary = _summary(trainer)
        if trainer.args.should_save:
            move_into_run(temporary, run, trainer.recipe, summary, seconds)
    trainer.accelerator.wait_for_everyone()
    return summary


def move_into_run(temporary: Path, run: Path, recipe: Recipe, summary: RunSummary, seconds: float) -> None:
    """Move what `save_pretrained` wrote into `temporary` to the run's folder; write model card, and `run.json` last."""
    for file in sorted(temporary.iterdir(), key=lambda path: path.suffix == ".safetensors"):
        # The run has its tokenizer from the start; a kill here must not leave another file of it, or --resume would
        # take it for another tokenizer. Its card is the run's own, below.
        if file.name not in ("training_args.bin", CARD) and not file.name.startswith("tokenizer"):
            sync(file)
            os.replace(file, run / file.name)
    remove(temporary)
    write_model_card(run, recipe, summary)
    _write_result(run / RESULT, recipe, summary, seconds)


def _summary(trainer: "RecipeTrainer") -> RunSummary:
    records = trainer.metrics.read()
    losses = [record for record in records if "validation_loss" in record]
    if not losses:  # somebody has deleted the metrics of a finished run
        trainer.evaluate()
        losses = trainer.metrics.read()[-1:]
    recipe = trainer.recipe
    return RunSummary(
        name=recipe.name,
        folder=str(trainer.run),
        parameters=num_parameters(trainer.model),
        steps=recipe.training.steps,
        tokens=recipe.training.steps * recipe.training.batch_size * recipe.data.context,
        skipped_steps=trainer.guard.skipped,
        validation_loss=losses[-1]["validation_loss"],
        validation_bits_per_byte=losses[-1]["validation_bits_per_byte"],
        tokens_per_second=median_speed(records),
    )


def _write_result(path: Path, recipe: Recipe, summary: RunSummary, seconds: float) -> None:
    made_with = provenance(configuration=recipe_to_dict(recipe), seed=recipe.seed, wall_seconds=seconds)
    write_text_atomically(path, json.dumps({"result": asdict(summary), "provenance": made_with}, indent=1) + "\n")
