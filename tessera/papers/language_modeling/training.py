"""A trained language model: from the folder that holds it, or trained now."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from transformers import TrainerCallback

from tessera.base.dataclass_io import to_json
from tessera.papers.experiment import RunContext
from tessera.papers.language_modeling.settings import LanguageSettings
from tessera.training.overwrite import RESULT
from tessera.training.run import train

MODELS = "language_models"


class Share(TrainerCallback):
    """Tells `report` after every step how much of the training is done."""

    def __init__(self, report: Callable[[float, str], None]) -> None:
        self.report = report

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.report(state.global_step / state.max_steps, f"step {state.global_step}")


def trained_model(settings: LanguageSettings, context: RunContext, data: str | None = None) -> Path:
    """The folder of the model that `settings` describe, trained unless it is there; a killed training goes on.

    All experiments that keep their checkpoints beside each other share these models. `data`: where the training text
    lies, if it is not the recipe's own.
    """
    text = json.dumps([to_json(settings.recipe), settings.text], sort_keys=True)
    # checkpoints/EXPERIMENT/BUDGET/RUN is where a run works
    models = context.folder.parents[2] / MODELS
    name = f"{settings.name.replace(' ', '-')}-{settings.num_layers}"
    folder = models / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    if not (folder / RESULT).is_file():
        train(settings.read_recipe(data), folder, resume=True, progress=False, callbacks=[Share(context.report)])
    return folder
