"""How one run replaces another in its folder, so that a kill at any moment leaves one of them.

The old run's files, and no others, are moved into replaced-run/, recipe.yaml first; the new run writes its recipe.yaml
first; replaced-run/ is deleted when the new run has a checkpoint. So recipe.yaml is missing exactly while files are
moved.
"""

import os
from fnmatch import fnmatchcase
from pathlib import Path

from tessera.base.checkpoints import FOLDER, TEMPORARY, latest_complete
from tessera.base.files import remove
from tessera.models.saving.model_card import CARD
from tessera.training.data_fingerprint import INPUTS
from tessera.training.model_card import is_generated_card
from tessera.training.saved_recipe import RECIPE, is_saved_recipe

RESULT, METRICS, EVENTS, REPLACED = "run.json", "metrics.jsonl", "tensorboard", "replaced-run"
# What a run writes into its folder; nothing else in it is ever moved or deleted.
RUN_FILES = (
    f"{RECIPE} {INPUTS} {RESULT} {METRICS} {EVENTS} {FOLDER} config.json generation_config.json model.safetensors "
    "model-*.safetensors model.safetensors.index.json tokenizer.json tokenizer_config.json special_tokens_map.json "
    f"added_tokens.json vocab.json vocab.txt merges.txt chat_template.jinja {CARD}"
).split()
# What a process that died has left half written; the first ones are those of earlier releases.
TEMPORARY_FILES = ["recipe.yaml.tmp", "metrics.tmp", "run.tmp", "model.tmp", "tokenizer.tmp", f"{REPLACED}.tmp"]
TEMPORARY_FILES += [f"{name}.*.tmp" for name in RUN_FILES]


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
