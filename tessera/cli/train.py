"""Train a model as a recipe file says.

A recipe is a YAML file, or the name of a shipped one (recipes/<name>.yaml). Any of its keys can be changed on the
command line, for example: tessera train demo-mosaic training.steps=100 model.num_layers=2
Another type or name of a section (model.type=transformer) begins it anew: its other keys are those of the command line,
or else that type's own defaults. The width, layers and heads of a model stay. Under torchrun it uses all processes.

A run that was stopped, or has finished, goes on with --resume. Its recipe must be the same, but for the intervals
(training.log_every, checkpoint_every, keep_checkpoints and, without a curriculum, evaluate_every), for what a step
needs of memory (training.micro_batch_size, gradient_checkpointing), and for more training.steps. More steps extend the
run: from there on the learning rate is that of a run of so many steps. So a cosine that had come down rises again, and
the weights differ from those of one run of that length, unless training.min_learning_rate equals learning_rate.

Ctrl-C writes a checkpoint after the step under way and prints the command that goes on; a second one stops at once.
"""

import argparse
import os
from pathlib import Path

from tessera.base.errors import TesseraError, TrainingInterrupted
from tessera.cli.options import add_recipe, repeated
from tessera.recipes.recipe_files import find_recipe


class HelpRecipe(argparse.Action):
    """Prints what a recipe may say, and ends the program, whatever else is given."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """See `argparse.Action`."""
        from tessera.recipes.recipe import recipe_help

        print(recipe_help())
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera train`."""
    add = parser.add_argument
    add_recipe(parser)
    add("--output", type=Path, help="write the run into this folder (default: runs/NAME OF THE RECIPE)")
    meaning = "go on from the last complete checkpoint; the weights end as they would have without the stop"
    add("--resume", action="store_true", help=meaning)
    meaning = "print every key that a recipe can have, with type, default and meaning"
    add("--help-recipe", action=HelpRecipe, nargs=0, default=argparse.SUPPRESS, help=meaning)
    add("--overwrite", action="store_true", help="delete the run that lies in the folder, and start again")


def run(arguments: argparse.Namespace) -> int:
    """Train, and print where the model is and how good it is."""
    if arguments.resume and arguments.overwrite:
        raise TesseraError("--resume and --overwrite exclude each other.")
    find_recipe(arguments.recipe)  # before the seconds that importing models takes

    from tessera.recipes.recipe import read_recipe
    from tessera.training.run import train

    recipe = read_recipe(arguments.recipe, arguments.overrides)
    folder = arguments.output or Path("runs") / recipe.name
    speaks = os.environ.get("RANK", "0") == "0"  # under torchrun one process speaks for all
    try:
        summary = train(recipe, folder, resume=arguments.resume, overwrite=arguments.overwrite)
    except TrainingInterrupted as stop:
        if not speaks:
            return 130
        raise KeyboardInterrupt(f"{stop} Go on: {repeated('train', arguments, '--resume')}") from None
    if not speaks:
        return 0
    print(f"{summary.name}: {summary.parameters:,} parameters, {summary.tokens:,} training tokens")
    print(summary.quality + (f", {summary.skipped_steps} steps skipped" if summary.skipped_steps else ""))
    print(f"model in {folder}")
    return 0
