"""What a run was trained on, as the recipe in its folder says: its text, or its task of questions."""

from pathlib import Path
from typing import Any, NamedTuple

from tessera.base.dataclass_io import from_json
from tessera.base.errors import TesseraError
from tessera.base.yaml_files import read_yaml
from tessera.recipes.sections import DataSection
from tessera.tasks.question_answering import QuestionTask, question_task
from tessera.training.saved_recipe import RECIPE


class TrainedTask(NamedTuple):
    """A task of questions with the settings of a run's last stage, and the longest texts that it read, in tokens."""

    settings: dict[str, Any]
    longest: int

    @property
    def task(self) -> QuestionTask:
        """The task itself."""
        return question_task(self.settings)


def run_data(folder: str | Path) -> DataSection | None:
    """The section `data` of the run in `folder`; None where there is no recipe."""
    recipe = _recipe(folder)
    return None if recipe is None else _section(folder, recipe)


def trained_task(folder: str | Path) -> TrainedTask | None:
    """The questions that the run in `folder` was trained on; None where it read text, or there is no recipe."""
    recipe = _recipe(folder)
    section = None if recipe is None else _section(folder, recipe)
    if recipe is None or section is None or section.task is None:
        return None
    stages = recipe["training"].get("curriculum") or [{}]
    unit = recipe["model"].get("segment_size") or section.context
    return TrainedTask({**section.task, **(stages[-1].get("settings") or {})}, stages[-1].get("length", 1) * unit)


def _recipe(folder: str | Path) -> dict[str, Any] | None:
    path = Path(folder) / RECIPE
    return read_yaml(path, "recipe") if path.is_file() else None


def _section(folder: str | Path, recipe: Any) -> DataSection:
    try:
        return from_json(DataSection, recipe["data"], "data")
    except (ValueError, TypeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise TesseraError(f"{Path(folder) / RECIPE}: cannot be read as a recipe ({reason}).") from None
