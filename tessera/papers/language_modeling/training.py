"""A trained language model: from the folder that holds it, or trained now."""

import hashlib
import json
from pathlib import Path

from tessera.base.dataclass_io import to_json
from tessera.papers.experiment import RunContext
from tessera.papers.language_modeling.settings import LanguageSettings
from tessera.training.overwrite import RESULT
from tessera.training.run import train

MODELS = "language_models"


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
        train(settings.read_recipe(data), folder, resume=True, progress=False, report=context.report)
    return folder
