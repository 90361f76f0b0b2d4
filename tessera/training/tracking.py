"""A run's metrics in TensorBoard and Weights & Biases."""

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tessera.base.errors import TesseraError, first_line
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import Recipe, TrainingSection
from tessera.training.overwrite import EVENTS

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


def require_trackers(section: TrainingSection) -> None:
    """Raise `TesseraError` unless each package that `training.report_to` needs can be imported."""
    for name in section.report_to:
        try:
            import_module(MODULES[name])
        except ImportError as error:
            raise TesseraError(
                f"training.report_to: {name} must be installed; got {first_line(error)}. "
                f"Install it: pip install {name}. Or leave it out."
            ) from error


def trackers(recipe: Recipe, run: Path, step: int) -> "list[Tracker]":
    """What `training.report_to` names, for a run in folder `run` that goes on after `step`.

    TensorBoard's event files go to `run`/tensorboard (or to $TENSORBOARD_LOGGING_DIR); what was written after `step`
    by a process that died is not shown any more. Weights & Biases is told by its own environment variables
    (WANDB_PROJECT, WANDB_MODE, ...) where to write.
    """
    known: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
    return [known[name](recipe, run, step) for name in recipe.training.report_to]


class TensorBoard:
    """Event files; metrics go there beside metrics.jsonl."""

    def __init__(self, recipe: Recipe, run: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = os.path.expanduser(os.environ.get("TENSORBOARD_LOGGING_DIR") or run / EVENTS)
        self._writer = SummaryWriter(folder, purge_step=step + 1)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers by their names, such as "train/loss", after a step; None is no number."""
        for name, value in values.items():
            if value is not None:
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()


class WeightsAndBiases:
    """A run of its own there, under the recipe's name."""

    def __init__(self, recipe: Recipe, run: Path, step: int) -> None:
        import wandb  # type: ignore[import-not-found]

        self._run = wandb.init(name=recipe.name, config=recipe_to_dict(recipe))

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """As `TensorBoard.log`."""
        self._run.log({name: value for name, value in values.items() if value is not None}, step=step)

    def close(self) -> None:
        """As `TensorBoard.close`."""
        self._run.finish()


Tracker = TensorBoard | WeightsAndBiases
