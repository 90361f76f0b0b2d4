"""Show size and cost of a model: parameters by part, FLOPs per token, memory per 1,000 tokens of context.

WHAT is a preset (such as mosaic-v2-large), a shipped recipe's name, a recipe file, or the folder of a model. Nothing is
allocated: a model of any size can be asked about on any machine.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from tessera.base.errors import TesseraError
from tessera.cli.options import positive_int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera info`."""
    add = parser.add_argument
    add("what", help="name of a preset or of a recipe, a recipe file, or the folder of a model")
    meaning = "change this key of the recipe, such as model.num_layers=2"
    add("overrides", nargs="*", default=[], metavar="key=value", help=meaning)
    meaning = "count the FLOPs of a token behind so many others (default: of a recipe its context, of a folder 512)"
    add("--context", type=positive_int, help=meaning)
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the parameters, FLOPs and bytes of a model, as a table or as JSON."""
    from tessera.evaluation.accounting import account
    from tessera.models import MODELS
    from tessera.models.presets import published_counts

    is_preset = arguments.what in MODELS and MODELS[arguments.what].is_preset
    config, context, note = _configuration(arguments, is_preset)
    counted = account(config, arguments.context or context)
    if arguments.json:
        # For presets also the counts of the v2 paper's tables, by its rule and at its context of 256 tokens.
        published = {"as_published": published_counts(config)} if is_preset else {}
        print(json.dumps({**asdict(counted), **published}, indent=1))
        return 0
    print(f"{arguments.what}: {counted.model_type}")
    print(f"{'parameters':<22}{counted.parameters:>16,}")
    for part, number in counted.parameters_by_part.items():
        print(f"  {part:<20}{number:>16,}  {100 * number / counted.parameters:5.1f} %")
    if counted.flops_per_token is None or counted.state_bytes_per_1000_tokens is None:
        print(f"{'FLOPs and memory':<22}{'unknown':>16}  {counted.unknown}")
    else:
        print(f"{'FLOPs per token':<22}{counted.flops_per_token:>16,}  forward, {counted.context} tokens of context")
        memory = counted.state_bytes_per_1000_tokens / 1e6
        print(f"{'memory of context':<22}{memory:>13,.3f} MB  per 1,000 tokens, {counted.dtype}")
    if note:
        print(note)
    return 0


def _configuration(arguments: argparse.Namespace, is_preset: bool):
    """(model configuration, context length, a last line) of a preset, a folder or a recipe."""
    from tessera.base.checkpoints import checkpoints
    from tessera.models import MODELS
    from tessera.models.saving.loading import load_config
    from tessera.recipes.model_section import untrained_config
    from tessera.recipes.recipe import read_recipe
    from tessera.training.folder import RECIPE
    from tessera.training.run_data import asked_task

    folder = Path(arguments.what)
    if is_preset or (folder / "config.json").is_file() or checkpoints(folder):  # of a run that is not finished
        if arguments.overrides:
            kind = "preset" if is_preset else "model folder"
            raise TesseraError(f"info: {arguments.overrides[0]!r} must be left out for a {kind}.")
        note = (known := asked_task(folder)[1]) and f"it {known}: see tessera ask"
        return MODELS[arguments.what].config() if is_preset else load_config(folder), 512, note
    is_run = (folder / RECIPE).is_file()
    recipe = read_recipe(folder / RECIPE if is_run else arguments.what, arguments.overrides)
    note = "it has no checkpoint yet: this is the model that its recipe trains"
    return untrained_config(recipe), recipe.data.context, note * is_run
