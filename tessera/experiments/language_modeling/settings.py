"""The trainings of language models of every budget."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from tessera.data.sources import text_files
from tessera.errors import TesseraError, expect
from tessera.experiments.experiment import PAPER_KERNELS, Run, RunSelection, select_names
from tessera.experiments.recipe_settings import RecipeSettings
from tessera.training.recipe import read_recipe, recipe_to_dict
from tessera.training.sweep import Point, grid
from tessera.typed import to_json

_recipe = cache(read_recipe)  # one process makes the list of runs several times

# A transformer is named after its positions; the plain one learns a vector for each, as GPT-2 does.
POSITIONS = {"transformer": "absolute", "transformer_rope": "rope", "transformer_alibi": "alibi"}
MODELS = ("mosaic", *POSITIONS)
KERNELS = PAPER_KERNELS
RATE = "training.learning_rate"
SEARCH, MAIN = "rates", ""


@dataclass(frozen=True)
class LanguageSettings(RecipeSettings):
    """One training and its evaluation.

    Attributes:
        model, kernel: one of `MODELS`, and one of `KERNELS` for mosaics ("" for transformers).
        part: `SEARCH` for short trainings that choose a learning rate, else `MAIN`.
        sequences: of validation text that the trained model is evaluated on.
        recipe: see `RecipeSettings`.
        text: digest of the training text where it is not the recipe's own, else "".
    """

    model: str
    kernel: str
    part: str
    sequences: int
    recipe: dict[str, Any]
    text: str = ""

    @property
    def name(self) -> str:
        """Model and kernel, as tables are keyed."""
        return f"{self.model} {self.kernel}".strip()

    @property
    def other_text(self) -> str:
        """The name of the training text where it is not the recipe's own, else ""."""
        return self.recipe["data"]["source"] if self.text else ""

    @property
    def num_layers(self) -> int:
        """Blocks."""
        return self.recipe["model"]["num_layers"]

    @property
    def learning_rate(self) -> float:
        """Its peak."""
        return self.recipe["training"]["learning_rate"]

    @property
    def tokens(self) -> int:
        """Tokens seen in training."""
        training = self.recipe["training"]
        return training["steps"] * training["batch_size"] * self.context


class Text(NamedTuple):
    """A text of the user's: what the results call it, where it lies, and a digest of its files."""

    name: str
    path: str
    digest: str


@dataclass(frozen=True)
class Search:
    """Trainings that choose learning rates: of the models called `names`, at each of `depths`, over a `grid`."""

    names: tuple[str, ...]
    depths: tuple[int, ...]
    overrides: tuple[str, ...]


@dataclass(frozen=True)
class Budget:
    """What a budget trains.

    Attributes:
        depths, kernel_depths: numbers of blocks of mosaic and transformer, and of the other kernels.
        recipes, kernel_recipe: of mosaics and transformers, and of the other kernels; `{layers}` stands for the
            blocks where each depth has its own.
        overrides, mosaic_overrides: of every recipe, and of the mosaics'.
        searches: of learning rates.
        sequences: see `LanguageSettings`.
    """

    depths: tuple[int, ...]
    kernel_depths: tuple[int, ...]
    seeds: int
    sequences: int
    recipes: tuple[str, str] = ("stories-mosaic", "stories-transformer")
    kernel_recipe: str = "stories-mosaic"
    overrides: tuple[str, ...] = ()
    mosaic_overrides: tuple[str, ...] = ()
    searches: tuple[Search, ...] = ()


# The peak learning rates that the trainings of "cpu" chose (table "Learning rates"). The other kernels were searched at
# one block alone; at four they take the Gaussian kernel's.
RATES: dict[tuple[str, int], float] = {
    **{(f"mosaic {kernel}", 1): 3e-2 for kernel in KERNELS},
    **{(f"mosaic {kernel}", 1): 1e-2 for kernel in ("gaussian", "biweight", "normalized_relu")},
    **{(f"mosaic {kernel}", 4): 3e-3 for kernel in KERNELS},
    **{(transformer, depth): 3e-3 for transformer in POSITIONS for depth in (1, 4)},
}
DEFAULT_RATE = 3e-3

SHORT = ("training.steps=250", "training.warmup_steps=25", f"{RATE}=1e-3,3e-3,1e-2,3e-2")
BUDGETS = {
    "smoke": Budget(
        depths=(1,),
        kernel_depths=(),
        seeds=1,
        sequences=4,
        overrides=(
            "model.hidden_size=16",
            "model.num_heads=2",
            "tokenizer={type: bpe, vocab_size: 300}",
            "data.source=novels",
            "data.context=32",
            "training.steps=3",
            "training.log_every=1",
            "training.evaluate_every=2",
            "training.evaluate_sequences=2",
        ),
        mosaic_overrides=("model.num_persistent_slots=56",),
        searches=(Search(("mosaic gaussian", "transformer"), (1,), ("training.steps=2", f"{RATE}=1e-3,3e-3")),),
    ),
    "cpu": Budget(
        depths=(1, 2, 4, 8),
        kernel_depths=(1, 4),
        seeds=3,
        sequences=256,
        searches=(
            Search(("mosaic gaussian", *POSITIONS), (1, 4), SHORT),
            Search(tuple(f"mosaic {kernel}" for kernel in KERNELS[1:]), (1,), SHORT),
            # After 250 steps losses at one block are too close to choose by.
            Search(("mosaic gaussian", *POSITIONS), (1,), (f"{RATE}=1e-3,3e-3,1e-2,3e-2",)),
            # At four blocks of RoPE the two best are too close as well.
            Search(("transformer_rope",), (4,), (f"{RATE}=1e-3,3e-3",)),
        ),
    ),
    "full": Budget(
        depths=(1, 4, 8, 12, 18),
        kernel_depths=(1, 8, 12),
        seeds=1,
        sequences=2048,
        recipes=("babistories-{layers}", "babistories-transformer-{layers}"),
        kernel_recipe="babistories-kernels-{layers}",
    ),
}


def runs_of(selection: RunSelection, experiment: str = "language_modeling") -> list[Run]:
    """The runs of a selection: learning rates, the first seed of depths and kernels, the others; the deepest late."""
    where, budget = f"reproduce {experiment}", BUDGETS[selection.budget]
    models = select_names(where, "models", MODELS, selection.models, MODELS)
    kernels = select_names(where, "kernels", KERNELS, selection.kernels, KERNELS)
    if selection.kernels is not None and selection.models is None:
        models = ["mosaic"]  # the only one that has kernels
    texts = texts_of(where, selection.data)
    expect(len(texts) < 2, where, "--data", "name one text to train on", " ".join(selection.data or ()))
    text = texts[0] if texts else None
    seeds = range(selection.seeds or budget.seeds)
    names = [("mosaic", "gaussian")] if "mosaic" in models and "gaussian" in kernels else []
    names += [(model, "") for model in POSITIONS if model in models]
    others = [("mosaic", kernel) for kernel in kernels if kernel != "gaussian" and "mosaic" in models]
    search = [
        _run(budget, name, depth, 0, text, point)
        for one in budget.searches
        for depth in one.depths
        for name in (*names, *others)
        if " ".join(name).strip() in one.names
        for point in grid(one.overrides)
    ]
    *shallow, deepest = budget.depths
    order = [(depth, seeds[0], name) for depth, name in product(shallow, names)]
    order += [(depth, seeds[0], name) for depth, name in product(budget.kernel_depths[:1], others)]
    order += [(depth, seed, name) for seed, depth, name in product(seeds[1:], shallow, names)]
    order += [(deepest, seeds[0], name) for name in names]
    order += [(depth, seeds[0], name) for depth, name in product(budget.kernel_depths[1:], others)]
    order += [(deepest, seed, name) for seed, name in product(seeds[1:], names)]
    order += [(depth, seed, name) for seed, depth, name in product(seeds[1:], budget.kernel_depths, others)]
    runs = search + [_run(budget, name, depth, seed, text) for depth, seed, name in order]
    if not runs:
        raise TesseraError(f"{where}: --models and --kernels must leave a run of this budget; got none.")
    return runs


def texts_of(where: str, data: Sequence[str] | None) -> list[Text]:
    """The texts that `--data NAME=PATH ...` names; none without it.

    Raises:
        TesseraError: what is no NAME=PATH, two texts of one name, or a path without text files.
    """
    texts = [_text(where, text) for text in data or ()]
    names = [text.name for text in texts]
    expect(len(set(names)) == len(names), where, "--data", "give each text a name of its own", ", ".join(names))
    return texts


@cache
def _text(where: str, text: str) -> Text:
    name, equals, path = text.partition("=")
    expect(bool(name and equals and path), where, "--data", "be NAME=PATH", text, "The name stands in the results.")
    digest = hashlib.sha256()
    for file in text_files(path):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return Text(name, path, digest.hexdigest()[:16])


def _run(
    budget: Budget,
    name: tuple[str, str],
    num_layers: int,
    seed: int,
    text: Text | None,
    point: Point | None = None,
) -> Run:
    model, kernel = name
    mosaic_recipe, transformer_recipe = budget.recipes
    recipe = budget.kernel_recipe if kernel not in ("", "gaussian") else mosaic_recipe
    if model in POSITIONS:
        recipe = transformer_recipe
    overrides = [f"model.num_layers={num_layers}", f"seed={seed}", *budget.overrides]
    if kernel not in ("", "gaussian"):
        overrides.append(f"model.kernel={kernel}")
    if model == "mosaic":
        overrides += budget.mosaic_overrides
    else:
        overrides.append(f"model.positions={POSITIONS[model]}")
    if point is not None:
        overrides += point.overrides
    elif "{layers}" not in recipe:
        overrides.append(f"{RATE}={rate_of(' '.join(name).strip(), num_layers)}")
    if text:
        overrides.append(f"data.source={text.name}")
    mapping = to_json(recipe_to_dict(_recipe(recipe.format(layers=num_layers), tuple(overrides))))
    settings = LanguageSettings(
        model, kernel, SEARCH if point else MAIN, budget.sequences, mapping, text.digest if text else ""
    )
    blocks = f"{num_layers} block{'s' * (num_layers > 1)}"
    steps = settings.recipe["training"]["steps"]
    last = f"rate {settings.learning_rate:g}, {steps} steps" if point else f"seed {seed}"
    first = [*([text.name] if text else []), *([SEARCH] if point else [])]
    key = "/".join([*first, settings.name, blocks, last])
    return Run(key, settings, settings.tokens * (1.0 + num_layers) * 1e-4, {text.name: text.path} if text else {})


def rate_of(name: str, num_layers: int) -> float:
    """The chosen rate: that of the nearest searched depth that is no deeper, else of one block."""
    known = {depth: rate for (model, depth), rate in RATES.items() if model == name}
    depths = [depth for depth in known if depth <= num_layers]
    return known[max(depths)] if depths else DEFAULT_RATE
