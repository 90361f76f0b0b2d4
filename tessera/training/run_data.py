"""What a run was trained on, as the recipe in its folder says: its text, or its task of questions."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tessera.base.dataclass_io import from_json
from tessera.base.errors import TesseraError, expect
from tessera.base.yaml_files import read_yaml
from tessera.data.sources import JSON_ENDINGS, text_source
from tessera.evaluation.loss import EvaluationText
from tessera.recipes.model_section import segment_tokens
from tessera.recipes.sections import DataSection, Recipe
from tessera.tasks.question_answering import QuestionTask, question_task
from tessera.training.corpus import STORES
from tessera.training.folder import RECIPE, recorded_inputs


class TrainedTask(NamedTuple):
    """A task of questions with the settings of a run's last stage, and the longest texts that it read, in tokens."""

    settings: dict[str, Any]
    longest: int


def trained_task(folder: str | Path) -> TrainedTask | None:
    """The questions that the run in `folder` was trained on; None where it read text, or there is no recipe."""
    recipe = _recipe(folder)
    if recipe is None or recipe.data.task is None:
        return None
    return TrainedTask({**recipe.data.task, **recipe.training.stages[-1].settings}, _last_length(recipe))


def _recipe(folder: str | Path) -> Recipe | None:
    """The recipe of the run in `folder`; None where there is none."""
    path = Path(folder) / RECIPE
    return from_json(Recipe, read_yaml(path, "recipe"), str(path)) if path.is_file() else None


def _last_length(recipe: Recipe) -> int:
    """Tokens of the texts that the run was validated on at its end."""
    return recipe.training.stages[-1].length * segment_tokens(recipe)


def asked_task(folder: str | Path) -> tuple[QuestionTask | None, str]:
    """The task of questions of the run in `folder`, and what it knows, in words: empty where it read text.

    What a model has learned is there also where its own questions were moved: None then, and the words say so.
    """
    try:
        trained = trained_task(folder)
        task = None if trained is None else question_task(trained.settings)
    except TesseraError as error:
        return None, f"was trained on what cannot be read ({error})"
    return task, "" if task is None else f"knows {task.understands}"


def _format_of(names: list[str], section: DataSection) -> str:
    """How files are written: as the run's where they end as those do, or are folders; else as their endings say."""
    own = [section.source] if isinstance(section.source, str) else section.source
    endings, of_run = ({Path(name.lower().removesuffix(".gz")).suffix for name in group} for group in (names, own))
    if endings <= of_run | {""}:
        return section.format
    is_json = endings <= {*JSON_ENDINGS, ""}
    is_one = is_json or endings.isdisjoint(JSON_ENDINGS)
    expect(is_one, "eval", "--data", "name text files or JSON lines, and not both", " ".join(names))
    return "json_lines" if is_json else "text"


def evaluation_text(
    folder: str | Path,
    data: list[str] | None = None,
    *,
    split: str | None = None,
    context: int | None = None,
    longest: int | None = None,
) -> EvaluationText:
    """The text `data`, or by default the validation text of the run in `folder`, cut as the run cuts it.

    Args:
        data: what a recipe's data.source can be; files that do not end as the run's are JSON lines where they end so,
            else text. split: of stories or a dataset (default: its validation split).
        context: tokens per sequence (default: the run's, of its last stage, else 512, or `longest` where that is less).
    Raises `TesseraError`: no such text, a split of files, or a folder without a recipe when `data` is None.
    """
    recipe = _recipe(folder)
    if recipe is None and data is None:
        raise TesseraError(f"eval: --data must name text; {folder} is not a run folder with a recipe of its own.")
    section = DataSection(context=min(longest or 512, 512)) if recipe is None else recipe.data
    if data is not None:
        written = _format_of(data, section)
        separator = section.separator if written == "text" else None
        named = data[0] if len(data) == 1 else data
        section = replace(section, source=named, validation=None, format=written, separator=separator)
    section = replace(section, context=context or (section.context if recipe is None else _last_length(recipe)))
    problems = [f"eval: data.{name} {message}" for name, message in section.problems()]
    if problems:
        raise TesseraError("\n".join(problems))
    validation, used_split = section.validation, split or section.validation_split
    source = text_source(section.source if validation is None else validation, used_split, **section.text_options)
    is_possible = split is None or source.has_splits
    expect(is_possible, "eval", "--split", f"be left out for {source.name}, which has no splits", repr(split))
    part, held_out = f"{used_split} split" if source.has_splits else "all of it", 1.0
    if data is None and validation is None and not source.has_splits:  # the run held out the end of its training text
        held_out = section.validation_fraction
        part = f"the last {100 * held_out:g} % of its tokens"
    shared = {name: getattr(section, name) for name in ("context", "document_ids", "end_token")}
    shared["begin_token"] = None if recipe is None else section.begin_token
    stores, is_own = Path(folder).resolve().parent / STORES, data is None and split is None and section.task is None
    recorded = recorded_inputs(Path(folder)).get("validation", {}).get("checksums") if is_own else None
    return EvaluationText(source, part=part, held_out=held_out, stores=stores, checksums=recorded, **shared)
