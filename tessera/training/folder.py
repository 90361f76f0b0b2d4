"""A run's folder: whose it is, who works in it, and how one run replaces another.

recipe.yaml (every setting), inputs.json (checksums of tokenizer and tokens, by which a resumed run sees that text
changed), tokenizer files, metrics.jsonl, checkpoints/, run.lock (which process works here), and once training is over
config.json, model.safetensors, generation_config.json and, written last, run.json (results and provenance).

A kill at any moment of a replacement leaves one of two runs: the old run's files, and no others, are moved into
replaced-run/, recipe.yaml first; the new run writes its recipe.yaml first; replaced-run/ is deleted when the new run
has a checkpoint. So recipe.yaml is missing exactly while files are moved.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from tessera.base.checkpoints import FOLDER, MANIFEST, TEMPORARY, checkpoints, describe, differences, latest_complete
from tessera.base.dataclass_io import read_dataclass
from tessera.base.errors import TesseraError, first_line
from tessera.base.files import remove, sync, write_text_atomically, writing
from tessera.base.locks import held, is_lock_file
from tessera.base.yaml_files import parse_yaml, to_yaml
from tessera.models.saving.beside_weights import CARD
from tessera.recipes.model_section import base_folder
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import Recipe
from tessera.training.model_card import is_generated_card
from tessera.training.training_data import TrainingData

RECIPE = "recipe.yaml"
CHECKPOINTING = ("gradient_checkpointing", "checkpoint_layers_every")
# What changes no weight, or by rounding and other dropout masks alone: they may differ when a run goes on.
RESUMABLE_KEYS = {"training.log_every", "training.evaluate_every", "training.checkpoint_every", "training.report_to"}
RESUMABLE_KEYS |= {f"training.{name}" for name in ("keep_checkpoints", "micro_batch_size", *CHECKPOINTING)}
STEPS, EVALUATE_EVERY = "training.steps", "training.evaluate_every"
SECTIONS = {"name", "model", "data", "tokenizer", "training", "seed"}


def is_saved_recipe(path: Path) -> bool:
    """Does `path` hold a recipe with every section, as runs write it? People leave out what has a default."""
    content = _read(path)[1]
    sections = isinstance(content, dict) and content.keys() >= SECTIONS
    return sections and all(isinstance(content[name], dict) for name in ("model", "data", "tokenizer", "training"))


def equals_saved(path: Path, recipe: Recipe) -> bool:
    """Does the saved recipe hold the very settings of `recipe`? Keys count as in `expect_same`."""
    return _completed(_read(path)[1]) == recipe_to_dict(recipe)


def saved_steps(run: Path) -> int | None:
    """The steps that the run in this folder was begun with, if it says."""
    steps = _read(run / RECIPE)[1]["training"].get("steps") if is_saved_recipe(run / RECIPE) else None
    return steps if isinstance(steps, int) else None


def expect_same(run: Path, recipe: Recipe) -> None:
    """Raise `TesseraError` unless the run's recipe says what `recipe` says, naming the first key that differs.

    Keys that the saved recipe lacks count with their defaults, and those that are unknown do not. `RESUMABLE_KEYS`
    may differ (not the interval of validations where there are stages, which end by them), and there may be more steps.
    """
    before, now = _flat(_completed(_read(run / RECIPE)[1])), _flat(recipe_to_dict(recipe))
    is_longer = isinstance(before.get(STEPS), int) and now[STEPS] > before[STEPS]
    free = RESUMABLE_KEYS | ({STEPS} if is_longer else set())
    fixed = (before.keys() | now.keys()) - (free - {EVALUATE_EVERY} if recipe.training.curriculum else free)
    if differing := [key for key in sorted(fixed) if before.get(key) != now.get(key)]:
        key = differing[0]
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise TesseraError(
            f"{run}: holds a run of another recipe; {key} is {before.get(key)!r} there and {now.get(key)!r} here{more}."
            " Use another --output, or --overwrite."
        )


def _completed(content: Any) -> Any:
    """A saved recipe with all keys of today and no others; as it is where it cannot be read."""
    complete = read_dataclass(Recipe, content, lambda key, message: None)
    return content if complete is None else recipe_to_dict(complete)


def _read(path: Path) -> tuple[str, Any]:
    """(text, content); both empty when it is not there or no YAML."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, parse_yaml(text, str(path))
    except (OSError, ValueError):
        return "", None


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{prefix}.{name}".strip(".")).items()
    }


INPUTS, TOKENIZER = "inputs.json", "tokenizer.json"


def write_tokenizer(run: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Put the tokenizer's files into `run`, each complete or not at all, `tokenizer.json` last."""
    temporary = run / "tokenizer.tmp"
    tokenizer.save_pretrained(temporary)
    for file in sorted(temporary.iterdir(), key=lambda path: path.name == TOKENIZER):
        sync(file)
        os.replace(file, run / file.name)
    remove(temporary)


def write_inputs(run: Path, corpus: TrainingData) -> None:
    """Note what the run reads."""
    files = sorted(path for path in run.glob("tokenizer*.json") if path.is_file())
    record = {"tokenizer": describe(run, files), **corpus.checksums()}
    write_text_atomically(run / INPUTS, json.dumps(record, indent=1) + "\n")


def expect_same_tokenizer(run: Path) -> None:
    """Raise `TesseraError` when the tokenizer in `run` is not the one that the run began with."""
    record = recorded_inputs(run)
    if record and (reason := differences(run, record["tokenizer"])) is not None:
        raise TesseraError(
            f"{run}: the tokenizer must be the one the run began with; {reason}. "
            "Restore it (checkpoints hold copies), or start again: --overwrite."
        )


def expect_same_inputs(run: Path, corpus: TrainingData) -> None:
    """Raise `TesseraError` when the run began with other tokens than `corpus` has."""
    record = recorded_inputs(run)
    for name, now in corpus.checksums().items() if record else ():
        if (before := record[name]) != now:
            raise TesseraError(
                f"{run}: the {name} text must be the one the run began with, and it has changed: "
                f"{before['tokens']:,} tokens then, {now['tokens']:,} now. Restore it, or use another --output."
            )


def recorded_inputs(run: Path) -> dict[str, Any]:
    """What `write_inputs` wrote; empty where a process died before, or somebody deleted it."""
    path = run / INPUTS
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        counts = [record[name]["tokens"] for name in ("training", "validation")]
        if not (isinstance(record["tokenizer"], dict) and all(isinstance(count, int) for count in counts)):
            raise TypeError("it lacks entries")
        return record
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TesseraError(
            f"{path}: must be what the run wrote; it cannot be read ({first_line(error)}). Delete it to resume "
            "without comparing the text with the one that the run began with."
        ) from None


RESULT, METRICS, EVENTS, REPLACED = "run.json", "metrics.jsonl", "tensorboard", "replaced-run"
# What a run writes into its folder; nothing else in it is ever moved or deleted.
RUN_FILES = (
    f"{RECIPE} {INPUTS} {RESULT} {METRICS} {EVENTS} {FOLDER} config.json generation_config.json model.safetensors "
    "model-*.safetensors model.safetensors.index.json tokenizer.json tokenizer_config.json special_tokens_map.json "
    f"added_tokens.json vocab.json vocab.txt merges.txt chat_template.jinja {CARD}"
).split()
# What a process that died has left half written.
TEMPORARY_FILES = ["model.tmp", "tokenizer.tmp", f"{REPLACED}.tmp", *(f"{name}.*.tmp" for name in RUN_FILES)]


def matching(run: Path, patterns: list[str]) -> list[Path]:
    """The files and folders directly in `run` whose names match; a model card only if a run wrote it."""
    paths = [path for path in run.iterdir() if any(fnmatchcase(path.name, pattern) for pattern in patterns)]
    return [path for path in paths if path.name != CARD or is_generated_card(path)]


def holds_replaced(run: Path) -> bool:
    """Is there a run in `run`/replaced-run?"""
    return is_saved_recipe(run / REPLACED / RECIPE)


def move_aside(run: Path) -> None:
    """Make room in `run` for another run; call `discard_replaced` when that one has a checkpoint."""
    if holds_replaced(run):  # this run has no checkpoint yet: what is worth keeping has been moved aside before
        for path in _recipe_last(matching(run, RUN_FILES)):
            remove(path)
        return
    (run / REPLACED).mkdir(exist_ok=True)
    for path in reversed(_recipe_last(matching(run, RUN_FILES))):
        os.replace(path, run / REPLACED / path.name)


def discard_replaced(run: Path) -> None:
    """Delete the run that was moved aside, if there is one."""
    if holds_replaced(run):
        os.replace(run / REPLACED, run / f"{REPLACED}.tmp")  # a half deleted run must not look like one
        remove(run / f"{REPLACED}.tmp")


def recover(run: Path) -> None:
    """Bring to an end what a process that died began: moving, moving back, deleting. The caller holds the lock."""
    for path in matching(run, TEMPORARY_FILES):
        remove(path)
    remove(run / FOLDER / TEMPORARY)
    if not holds_replaced(run):
        if (run / REPLACED).is_dir() and not any((run / REPLACED).iterdir()):
            (run / REPLACED).rmdir()
    elif not (run / RECIPE).exists():
        for path in _recipe_last(list((run / REPLACED).iterdir())):
            os.replace(path, run / path.name)
        (run / REPLACED).rmdir()
    elif latest_complete(run)[0] is not None:
        discard_replaced(run)


def _recipe_last(paths: list[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (path.name == RECIPE, path.name))


LOCK = "run.lock"
OUTPUT, ADVICE = "output folder", "Use --output."


@dataclass
class Claim:
    """The right to write a run into `run`, as long as the context lasts that gave it."""

    run: Path
    recipe: Recipe
    resume: bool
    begun: bool = False

    def begin(self, corpus: TrainingData) -> None:
        """Move the run aside that is replaced, if any, and note recipe, tokenizer and checksums of the tokens.

        Call it when nothing can be refused any more. Raises `TesseraError` when a run that is resumed began with
        other tokens.
        """
        saved = (self.run / RECIPE).exists()
        if self.resume:
            expect_same_inputs(self.run, corpus)
        self.begun = True
        with writing(self.run, OUTPUT, ADVICE):
            if saved and not self.resume:
                move_aside(self.run)
            if not (saved and self.resume) or not equals_saved(self.run / RECIPE, self.recipe):
                remove(self.run / RESULT)  # of fewer steps
                settings = recipe_to_dict(self.recipe)
                if self.recipe.data.task:  # the tokenizer is the task's own, and nothing is said of one
                    settings["tokenizer"] = {}
                write_text_atomically(self.run / RECIPE, to_yaml(settings))
            if not (self.resume and (self.run / TOKENIZER).exists()):
                write_tokenizer(self.run, corpus.tokenizer)
            write_inputs(self.run, corpus)


@contextmanager
def claimed(recipe: Recipe, run: Path, *, resume: bool, overwrite: bool) -> Iterator[Claim]:
    """Make sure that `run` is this recipe's to write, and keep other processes out of it.

    What fails before `Claim.begin` leaves everything as it was. Raises `TesseraError` when the folder cannot be
    written, is in use, holds another recipe's run, holds a run and neither `resume` nor `overwrite` is said, or holds
    other files.
    """
    claim = Claim(run, recipe, resume)
    with ExitStack() as stack:
        with writing(run, OUTPUT, ADVICE):
            _expect_run_or_nothing(run)
            if overwrite:
                _expect_outside(recipe, run)
            for folder in [folder for folder in reversed((run, *run.parents)) if not folder.exists()]:
                folder.mkdir(exist_ok=True)
                stack.callback(_unless_begun, claim, folder.rmdir)
            is_new = not (run / LOCK).exists()
            stack.enter_context(held(run / LOCK, "Wait for it, or use another --output."))
            if is_new:
                stack.callback(_unless_begun, claim, (run / LOCK).unlink)
            recover(run)
        if (run / RECIPE).exists():
            _expect_mine(recipe, run, resume, overwrite)
        yield claim


def _expect_run_or_nothing(run: Path) -> None:
    if not run.exists() or is_run(run) or holds_replaced(run):
        return
    strange = {path.name for path in run.iterdir()} - {path.name for path in matching(run, TEMPORARY_FILES)} - {LOCK}
    if strange:
        hint = f" Its {RECIPE} is damaged." if is_lock_file(run / LOCK) and RECIPE in strange else ""
        raise TesseraError(f"{run}: must be a new or empty folder, or a run's; got a folder with other files.{hint}")


def is_run(run: Path) -> bool:
    """Did a training run write this folder? A recipe alone, or among other files, does not make it one."""
    is_marked = is_lock_file(run / LOCK) or (run / RESULT).is_file() or (run / METRICS).is_file()
    is_marked = is_marked or any((path / MANIFEST).is_file() for path in checkpoints(run))
    return is_marked and is_saved_recipe(run / RECIPE)


def is_unfinished_run_of(run: Path, recipe: Recipe) -> bool:
    """Can the training of this recipe in the folder go on?"""
    if not is_run(run) or (run / RESULT).is_file():
        return False
    try:
        expect_same(run, recipe)
    except TesseraError:
        return False
    return True


def delete_run(run: Path) -> None:
    """Delete a run that nobody works in, and its folder unless it holds other files too."""
    if run.is_dir() and is_run(run):
        for path in matching(run, [*RUN_FILES, *TEMPORARY_FILES, LOCK]):
            remove(path)
        with suppress(OSError):  # other files
            run.rmdir()


def _expect_mine(recipe: Recipe, run: Path, resume: bool, overwrite: bool) -> None:
    """Raise unless the run in the folder may be continued, or replaced, as was said."""
    kept = f" The run it was to replace is kept in {run / REPLACED}." if holds_replaced(run) else ""
    if overwrite:
        text, content = _read(run / RECIPE)
        if not is_saved_recipe(run / RECIPE) or text != to_yaml(content):  # comments and other layouts are a person's
            raise TesseraError(
                f"{run}: --overwrite must name a run's folder; got one whose {RECIPE} a person has written or changed. "
                "Use another --output, or delete the folder yourself."
            )
        return
    try:
        expect_same(run, recipe)
        if not resume:
            raise TesseraError(f"{run}: holds a run of this recipe already. Use --resume, --overwrite or --output.")
        expect_same_tokenizer(run)
    except TesseraError as error:
        raise TesseraError(f"{error}{kept}") from None


def _expect_outside(recipe: Recipe, run: Path) -> None:
    """What a run is made from must outlast it."""
    sources = {
        "tokenizer.path": recipe.tokenizer.path,
        "training.initialize_from": recipe.training.initialize_from,
        "model.base": base_folder(recipe.model),
    }
    for key, path in sources.items():
        if path and Path(path).resolve().is_relative_to(run.resolve()):
            raise TesseraError(f"{run}: {key} must lie outside the run that --overwrite replaces; got {path}.")


def _unless_begun(claim: Claim, undo) -> None:
    if not claim.begun:
        with suppress(OSError):  # others have put something into the folder meanwhile
            undo()
