"""The results of a run: the model in the run's folder, and run.json with results and provenance."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.fsdp import FSDPModule

from tessera.base.files import remove, sync, write_text_atomically, writing
from tessera.evaluation.provenance import provenance
from tessera.models.saving.beside_weights import CARD
from tessera.models.sizes import num_parameters
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import Recipe
from tessera.training.checkpoint import TrainingProgress
from tessera.training.checkpoint_tensors import SHARDS, WEIGHT, ShardWriter, merge, model_tensors, prefixed
from tessera.training.folder import METRICS, RESULT
from tessera.training.model_card import write_model_card
from tessera.training.run_log import MetricsFile, RunSummary, median_speed
from tessera.training.training_data import TrainingData

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def publish_model(
    recipe: Recipe,
    run: Path,
    model: "PreTrainedModel",
    data: TrainingData,
    stages: list[TrainingProgress],
    validation: dict[str, float],
    seconds: float,
) -> RunSummary:
    """Put the trained model into the run's folder, file by file under its final name, and `run.json` last."""
    summary = _summary(recipe, run, model, data, stages, validation)
    temporary = run / "model.tmp"
    with writing(run, "the model", "Checkpoints are complete: --resume writes it again."):
        if data.processes.is_first:
            remove(temporary)
        if isinstance(model, FSDPModule):
            model.reshard()  # a validation leaves the outermost parameters whole
            _write_sharded_model(model, data, temporary)
        elif data.processes.is_first:
            model.save_pretrained(temporary)
        if data.processes.is_first:
            _move_into_run(temporary, run)
            write_model_card(run, recipe, summary)
            made_with = provenance(configuration=recipe_to_dict(recipe), seed=recipe.seed, wall_seconds=seconds)
            result = {"result": asdict(summary), "provenance": made_with}
            write_text_atomically(run / RESULT, json.dumps(result, indent=1) + "\n")
    data.processes.wait()
    return summary


def write_model_files(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", folder: Path) -> None:
    """What loads a model, but for its weights."""
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_sharded_model(model: "PreTrainedModel", data: TrainingData, folder: Path) -> None:
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
    recipe: Recipe,
    run: Path,
    model: "PreTrainedModel",
    data: TrainingData,
    stages: list[TrainingProgress],
    validation: dict[str, float],
) -> RunSummary:
    plans = recipe.training.stages
    counts = [(stage, step) for stage, progress in zip(plans, stages) for step in range(progress.steps)]
    if not validation or "score" in validation:  # the best weights may be those of an earlier validation
        validation = data.validation(model, plans[-1])
    return RunSummary(
        name=recipe.name,
        folder=str(run),
        parameters=num_parameters(model),
        steps=len(counts),
        tokens=sum(data.batch_tokens(stage, step) for stage, step in counts),
        skipped_steps=sum(progress.skipped for progress in stages),
        validation_loss=validation["validation_loss"],
        validation_bits_per_byte=validation.get("validation_bits_per_byte"),
        tokens_per_second=median_speed(MetricsFile(run / METRICS).read()),
        validation_exact_match=validation.get("validation_exact_match"),
    )
