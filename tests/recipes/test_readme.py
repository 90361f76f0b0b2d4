"""tessera/recipes/README.md: one row for each recipe, with what it costs."""

import json
import re

from tessera.data.tokenizers import vocabulary_size
from tessera.evaluation.accounting import ModelAccount, account
from tessera.recipes.files import SHIPPED
from tessera.recipes.model_section import model_config
from tessera.recipes.recipe import read_recipe

ROW = re.compile(r"^\| `([\w-]+)` \| .* \| ([^|]+ \| [^|]+ \| [^|]+) \|$", re.MULTILINE)
COUNTED: dict[str, ModelAccount] = {}  # several recipes have one model


def cost(name: str) -> str:
    """`parameters | tokens | FLOPs` of a recipe: forward and backward, the full context before each token."""
    recipe = read_recipe(name)
    context = recipe.data.context
    sizes = {"max_positions": context, "n_positions": context}
    if "vocab_size" not in recipe.model:
        task = recipe.data.task
        sizes["vocab_size"] = task["vocab_size"] if task else vocabulary_size(recipe.tokenizer)
    key = json.dumps([{**recipe.model, "kernel": None}, sizes])  # no kernel changes a cost
    if key not in COUNTED:
        COUNTED[key] = account(model_config(recipe.model, **sizes), context)
    counted = COUNTED[key]
    segments = sum(stage.steps * stage.mean_length for stage in recipe.training.curriculum)
    per_row = segments * recipe.model["segment_size"] if segments else recipe.training.steps * context
    tokens = int(per_row * recipe.training.batch_size)
    return f"{_short(counted.parameters)} | {_short(tokens)} | {3 * counted.flops_per_token * tokens:.1e}"


def _short(number: int) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return str(number)


def test_every_recipe_has_a_row_with_its_costs():
    rows = dict(ROW.findall((SHIPPED / "README.md").read_text()))
    assert rows == {path.stem: cost(path.stem) for path in SHIPPED.glob("*.yaml")}
