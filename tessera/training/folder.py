"""A run's folder: whose it is, and who works in it.

recipe.yaml (every setting), inputs.json (checksums of tokenizer and tokens), tokenizer files, metrics.jsonl,
checkpoints/, run.lock (which process works here), and once training is over config.json, model.safetensors,
generation_config.json and, written last, run.json (results and provenance).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tessera.base.checkpoints import MANIFEST, checkpoints
from tessera.base.errors import TesseraError
from tessera.base.files import remove, write_text_atomically, writing
from tessera.base.locks import held, is_lock_file
from tessera.recipes.model_section import base_folder
from tessera.recipes.sections import Recipe
from tessera.training.data_fingerprint import (
    TOKENIZER,
    require_same_inputs,
    require_same_tokenizer,
    write_inputs,
    write_tokenizer,
)
from tessera.training.overwrite import (
    METRICS,
    REPLACED,
    RESULT,
    RUN_FILES,
    TEMPORARY_FILES,
    holds_replaced,
    matching,
    move_aside,
    recover,
)
from tessera.training.saved_recipe import (
    RECIPE,
    equals_saved,
    is_machine_written,
    is_saved_recipe,
    require_same,
    saved_text,
)
from tessera.training.training_data import TrainingData

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
            require_same_inputs(self.run, corpus)
        self.begun = True
        with writing(self.run, OUTPUT, ADVICE):
            if saved and not self.resume:
                move_aside(self.run)
            if not (saved and self.resume) or not equals_saved(self.run / RECIPE, self.recipe):
                write_text_atomically(self.run / RECIPE, saved_text(self.recipe))
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
            _require_run_or_nothing(run)
            if overwrite:
                _require_outside(recipe, run)
            for folder in _make_folders(run):
                stack.callback(_unless_begun, claim, folder.rmdir)
            is_new = not (run / LOCK).exists()
            stack.enter_context(held(run / LOCK, "Wait for it, or use another --output."))
            if is_new:
                stack.callback(_unless_begun, claim, (run / LOCK).unlink)
            recover(run)
        if (run / RECIPE).exists():
            _require_mine(recipe, run, resume, overwrite)
        yield claim


def _require_run_or_nothing(run: Path) -> None:
    if not run.exists() or is_run(run) or holds_replaced(run):
        return
    strange = {path.name for path in run.iterdir()} - {path.name for path in matching(run, TEMPORARY_FILES)} - {LOCK}
    if strange:
        hint = f" Its {RECIPE} is damaged." if is_lock_file(run / LOCK) and RECIPE in strange else ""
        raise TesseraError(f"{run}: must be a new or empty folder, or a run's; got a folder with other files.{hint}")


def is_run(run: Path) -> bool:
    """Did a training run write this folder? A recipe alone, or among other files, does not make it one."""
    if not is_saved_recipe(run / RECIPE):
        return False
    if is_lock_file(run / LOCK) or (run / RESULT).is_file():
        return True
    if any((path / MANIFEST).is_file() for path in checkpoints(run)) or (run / METRICS).is_file():
        return True
    # Before there were locks, and before its first step.
    return len(matching(run, [*RUN_FILES, *TEMPORARY_FILES])) == len(list(run.iterdir()))


def delete_run(run: Path) -> None:
    """Delete a run that nobody works in, and its folder unless it holds other files too."""
    if run.is_dir() and is_run(run):
        for path in matching(run, [*RUN_FILES, *TEMPORARY_FILES, LOCK]):
            remove(path)
        with suppress(OSError):  # other files
            run.rmdir()


def _require_mine(recipe: Recipe, run: Path, resume: bool, overwrite: bool) -> None:
    """Raise unless the run in the folder may be continued, or replaced, as was said."""
    kept = f" The run it was to replace is kept in {run / REPLACED}." if holds_replaced(run) else ""
    if overwrite:
        if not is_machine_written(run / RECIPE):
            raise TesseraError(
                f"{run}: --overwrite must name a run's folder; got one whose {RECIPE} a person has written or changed. "
                "Use another --output, or delete the folder yourself."
            )
        return
    try:
        require_same(run, recipe)
        if not resume:
            raise TesseraError(f"{run}: holds a run of this recipe already. Use --resume, --overwrite or --output.")
        require_same_tokenizer(run)
    except TesseraError as error:
        raise TesseraError(f"{error}{kept}") from None


def _require_outside(recipe: Recipe, run: Path) -> None:
    """What a run is made from must outlast it."""
    sources = {
        "tokenizer.path": recipe.tokenizer.path,
        "training.initialize_from": recipe.training.initialize_from,
        "model.base": base_folder(recipe.model),
    }
    for key, path in sources.items():
        if path and Path(path).resolve().is_relative_to(run.resolve()):
            raise TesseraError(f"{run}: {key} must lie outside the run that --overwrite replaces; got {path}.")


def _make_folders(run: Path) -> list[Path]:
    """Make the folder and those above it; returns the new ones, the outermost first."""
    missing = [folder for folder in reversed((run, *run.parents)) if not folder.exists()]
    for folder in missing:
        folder.mkdir(exist_ok=True)
    return missing


def _unless_begun(claim: Claim, undo) -> None:
    if not claim.begun:
        with suppress(OSError):  # others have put something into the folder meanwhile
            undo()
