"""A run's folder: whose it is, and what it holds in the end.

recipe.yaml (every setting), tokenizer files, metrics.jsonl, checkpoints/, and once training is over config.json,
model.safetensors, generation_config.json and, written last, run.json (results and provenance).
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import yaml

from tessera.errors import TesseraError
from tessera.evaluation.provenance import provenance
from tessera.training.corpus import Corpus
from tessera.training.recipe import recipe_to_dict
from tessera.training.sections import Recipe

if TYPE_CHECKING:
    from tessera.training.trainer import RecipeTrainer

RECIPE, RESULT = "recipe.yaml", "run.json"


@dataclass(frozen=True)
class RunSummary:
    """What came out of a run. Losses in nats per token; speed is the median over the log lines."""

    name: str
    folder: str
    parameters: int
    steps: int
    tokens: int
    skipped_steps: int
    validation_loss: float
    validation_bits_per_byte: float
    tokens_per_second: float | None


def prepare_folder(recipe: Recipe, run: Path, *, resume: bool, overwrite: bool) -> None:
    """Make sure that `run` is this recipe's to write, and note the recipe in it.

    Raises `TesseraError` when the folder cannot be written, holds another recipe's run, holds a run and neither
    `resume` nor `overwrite` is given, or holds other files.
    """
    if overwrite and (run / RECIPE).is_file():
        shutil.rmtree(run)
    mine = recipe_to_dict(recipe)
    try:
        if (run / RECIPE).is_file():
            theirs = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
            _require_same(run, theirs, mine)
            if not resume:
                raise TesseraError(f"{run}: holds a run of this recipe already. Use --resume, --overwrite or --output.")
        elif run.is_dir() and any(run.iterdir()):
            raise TesseraError(f"{run}: must be a new or empty folder, or a run's; got a folder with other files.")
        run.mkdir(parents=True, exist_ok=True)
        draft = run / (RECIPE + ".tmp")
        draft.write_text(yaml.safe_dump(mine, sort_keys=False), encoding="utf-8")
        os.replace(draft, run / RECIPE)
    except OSError as error:
        raise TesseraError(f"{run}: output folder cannot be written ({error.strerror}). Use --output.") from None


def publish_model(trainer: "RecipeTrainer", corpus: Corpus, seconds: float) -> RunSummary:
    """Put the trained model into the run's folder, file by file under its final name, and `run.json` last."""
    run = trainer.run
    draft = run / "model.tmp"
    try:
        if trainer.args.should_save:
            shutil.rmtree(draft, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(draft))
        trainer.accelerator.wait_for_everyone()
        summary = _summary(trainer)
        if trainer.args.should_save:
            for file in sorted(draft.iterdir(), key=lambda path: path.suffix == ".safetensors"):
                if file.name != "training_args.bin":
                    os.replace(file, run / file.name)
            shutil.rmtree(draft)
            _write_result(run / RESULT, trainer.recipe, summary, seconds)
    except OSError as error:
        raise TesseraError(f"{run}: the model cannot be written ({error.strerror}). Checkpoints are whole.") from error
    trainer.accelerator.wait_for_everyone()
    return summary


def _summary(trainer: "RecipeTrainer") -> RunSummary:
    records = trainer.metrics.read()
    losses = [record for record in records if "validation_loss" in record]
    speeds = [record["tokens_per_second"] for record in records if record.get("tokens_per_second")]
    recipe = trainer.recipe
    return RunSummary(
        name=recipe.name,
        folder=str(trainer.run),
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
        steps=recipe.training.steps,
        tokens=recipe.training.steps * recipe.training.batch_size * recipe.data.context,
        skipped_steps=trainer.guard.skipped,
        validation_loss=losses[-1]["validation_loss"],
        validation_bits_per_byte=losses[-1]["validation_bits_per_byte"],
        tokens_per_second=median(speeds) if speeds else None,
    )


def _write_result(path: Path, recipe: Recipe, summary: RunSummary, seconds: float) -> None:
    made_with = provenance(configuration=recipe_to_dict(recipe), seed=recipe.seed, wall_seconds=seconds)
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"result": asdict(summary), "provenance": made_with}, indent=1) + "\n")
    os.replace(draft, path)


def _require_same(run: Path, theirs: Any, mine: dict[str, Any]) -> None:
    """Raise unless the folder's recipe says what this one says, naming the keys that differ."""
    before, now = _flat(theirs), _flat(mine)
    differing = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    if differing:
        key = differing[0]
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise TesseraError(
            f"{run}: holds a run of another recipe; {key} is {before.get(key)!r} there and {now.get(key)!r} here{more}."
            " Use another --output, or --overwrite."
        )


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{prefix}.{name}".strip(".")).items()
    }
