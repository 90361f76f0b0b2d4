"""A run's metrics in TensorBoard and Weights & Biases, through transformers' own callbacks."""

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.integrations import TensorBoardCallback, WandbCallback

from tessera.base.errors import TesseraError, first_line
from tessera.recipes.sections import TrainingSection
from tessera.training.overwrite import EVENTS

if TYPE_CHECKING:
    from transformers import TrainerCallback

MODULES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb"}


def require_reporters(section: TrainingSection) -> None:
    """Raise `TesseraError` unless each package that `training.report_to` needs can be imported."""
    for name in section.report_to:
        try:
            import_module(MODULES[name])
        except ImportError as error:
            raise TesseraError(
                f"training.report_to: {name} must be installed; got {first_line(error)}. "
                f"Install it: pip install {name}. Or leave it out."
            ) from error


def reporters(section: TrainingSection, run: Path, step: int) -> list["TrainerCallback"]:
    """The callbacks that `training.report_to` names, for a run in folder `run` that goes on after `step`.

    TensorBoard's event files go to `run`/tensorboard (or to $TENSORBOARD_LOGGING_DIR); what was written after `step`
    by a process that died is not shown any more. Weights & Biases is told by its own environment variables
    (WANDB_PROJECT, WANDB_MODE, ...) where to write.
    """
    return [
        {"tensorboard": partial(_tensorboard, run, step), "wandb": WandbCallback}[name]() for name in section.report_to
    ]


def _tensorboard(run: Path, step: int) -> TensorBoardCallback:
    callback = TensorBoardCallback()
    callback.logging_dir = callback.logging_dir or str(run / EVENTS)
    callback._SummaryWriter = partial(callback._SummaryWriter, purge_step=step + 1)
    return callback
