"""Language models on stories: mosaic and transformer by depth, and every kernel.

Memory Mosaics, figures 7 and 13; Sparse Attention as Compact Kernel Regression, figures 2 and 3.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from tessera.base.dataclass_io import to_json
from tessera.base.errors import expect
from tessera.base.precision import resolve_precision
from tessera.data.sources import text_files
from tessera.evaluation.loss import EvaluationText, evaluate_text
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.sizes import num_parameters
from tessera.papers.experiment import PAPER_KERNELS, WITH_KERNELS, Run, RunContext, RunSelection
from tessera.papers.recipe_settings import RecipeSettings, overrides_of, recipe_mapping, trained
from tessera.training.folder import METRICS
from tessera.training.run_data import evaluation_text
from tessera.training.run_log import MetricsFile

# A transformer is named after its positions; the plain one learns a vector for each, as GPT-2 does.
POSITIONS = {"transformer": "absolute", "transformer_rope": "rope", "transformer_alibi": "alibi"}
MODELS = (*WITH_KERNELS, *POSITIONS)
KERNELS = tuple(PAPER_KERNELS)
MOSAIC = "mosaic gaussian"
V2_COMPACT = ("sparsemax", "biweight", "triweight")
# Names of rows, model and kernel, in the order of tables and figures.
_OF_KERNELS = {kernel: name.replace("Bi", "bi").replace("Tri", "tri") for kernel, name in PAPER_KERNELS.items()}
NAMES = {
    **{f"mosaic {kernel}": f"Mosaic, {name}" for kernel, name in _OF_KERNELS.items()},
    **{f"mosaic_v2 {kernel}": f"Mosaic v2, {_OF_KERNELS[kernel]}" for kernel in ("gaussian", *V2_COMPACT)},
    "transformer": "Transformer, learned positions",
    "transformer_rope": "Transformer, RoPE",
    "transformer_alibi": "Transformer, ALiBi",
}
MAIN_NAMES = (MOSAIC, *POSITIONS)
V2 = "mosaic_v2 gaussian"
LONG_NAMES = (MOSAIC, V2, "transformer_rope", "transformer")
OTHER_KERNELS = tuple(f"mosaic {kernel}" for kernel in KERNELS if kernel != "gaussian")
V2_KERNELS = tuple(f"mosaic_v2 {kernel}" for kernel in V2_COMPACT)
SEARCH, MAIN = "rates", ""
_RATES_BY_DEPTH = {  # of one, four and eight blocks, where they were searched
    MOSAIC: (1e-2, 5e-3, 3e-3),
    "transformer": (2e-3, 5e-3, 5e-3),
    "transformer_rope": (3e-3, 5e-3, 5e-3),
    "transformer_alibi": (5e-3, 3e-3, 3e-3),
    V2: (3e-3, 5e-3),
}
# The peak learning rates that the trainings of "cpu" chose (table "Learning rates").
RATES: dict[tuple[str, int], float] = {
    **{(f"mosaic {kernel}", 1): 3e-2 if kernel == "normalized_relu" else 1e-2 for kernel in KERNELS},
    **{(name, 4): 3e-3 for name in OTHER_KERNELS},
    **{(name, depth): rate for name, rates in _RATES_BY_DEPTH.items() for depth, rate in zip((1, 4, 8), rates)},
}
_TRIED = (1e-3, 3e-3, 1e-2, 3e-2)
SEEDS = {"smoke": 1, "cpu": 3, "long": 2}
SEQUENCES = {"smoke": 4, "cpu": 256, "long": 256}
# What a budget changes in the recipes "stories-mosaic" and "stories-transformer"; "long" has 20 million tokens.
# "cpu" is in float32 on every machine, so that trainings on different ones can be compared.
OVERRIDES: dict[str, Mapping[str, Any]] = {
    "smoke": {
        "model": {"hidden_size": 16, "num_heads": 2},
        "tokenizer": "{type: bpe, vocab_size: 300}",
        "data": {"source": "novels", "context": 32},
        "training": {"log_every": 1, "evaluate_every": 2, "evaluate_sequences": 2, "steps": 3},
    },
    "cpu": {"training": {"precision": "fp32"}},
    "long": {
        "training": {"steps": 2440, "batch_size": 32, "warmup_steps": 200, "log_every": 61, "evaluate_every": 122}
        | {"checkpoint_every": 610}
    },
}
MOSAIC_OVERRIDES: dict[str, tuple[str, ...]] = {"smoke": ("model.num_persistent_slots=56",), "cpu": (), "long": ()}
# As many parameters, and windows that are to the context as published.
V2_MODEL = {"hidden_size": 128, "num_heads": 4, "intermediate_size": 251, "short_term_span": 16, "long_term_delay": 4,
            "tie_word_embeddings": True}  # fmt: skip
SHARED_MODELS = "language_models"
PUBLISHED_RECIPES = "The published trainings are recipes: `tessera train babistories-8 data.source=PATH`, for example."


@dataclass(frozen=True)
class LanguageSettings(RecipeSettings):
    """One training and its evaluation.

    Attributes:
        model, kernel: one of `MODELS`, and one of `KERNELS` for mosaics ("" for transformers).
        part: `SEARCH` for trainings that choose a learning rate, else `MAIN`.
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


class Text(NamedTuple):
    """A text of the user's: what the results call it, where it lies, and a digest of its files."""

    name: str
    path: str
    digest: str


@dataclass(frozen=True)
class Trainings:
    """A part of a budget: the models called `names` at each of `depths`, for every seed or for the `first` one alone.

    With `rates` it is a search of the learning rate, on so many `steps`; else each has its rate of `RATES`. `in_full`:
    every rate is a training like any other, and tables show each model at the best of them.
    """

    names: tuple[str, ...]
    depths: tuple[int, ...]
    first: bool = False
    rates: tuple[float | None, ...] = (None,)
    steps: int | None = None
    in_full: bool = False

    def points(self, names: Sequence[str], seeds: Sequence[int]) -> "Iterator[tuple[int, int, str, float | None]]":
        """(seed, depth, name, searched rate) of each training of the models among `names`."""
        return product(seeds, self.depths, [name for name in names if name in self.names], self.rates)


# In the order of their value: each part for the first seed, then for the others; the deepest late.
BUDGETS = {
    "smoke": (
        Trainings((MOSAIC, "transformer"), (1,), first=True, rates=(1e-3, 3e-3), steps=2),
        Trainings(MAIN_NAMES, (1,)),
    ),
    "cpu": (
        # Kernels differ less than one training from the same on another processor: theirs are chosen by three seeds.
        Trainings((MOSAIC,), (1,), rates=(*_TRIED, 5e-3, 2e-2)),
        Trainings(tuple(POSITIONS), (1,), first=True, rates=(*_TRIED, 2e-3, 5e-3)),
        Trainings(MAIN_NAMES, (4,), first=True, rates=(*_TRIED[:3], 2e-3, 5e-3)),
        Trainings(MAIN_NAMES, (8,), first=True, rates=(3e-3, 5e-3)),
        Trainings(OTHER_KERNELS, (1,), first=True, rates=_TRIED, steps=250),
        Trainings(OTHER_KERNELS, (1,), rates=_TRIED[2:]),  # the two best of the short search, of each
        Trainings(OTHER_KERNELS, (4,), first=True, rates=_TRIED[1:3]),
        Trainings(MAIN_NAMES, (1, 2, 4)),
        Trainings(OTHER_KERNELS, (1,)),
        Trainings(MAIN_NAMES, (8,)),
        Trainings(OTHER_KERNELS, (4,)),
        Trainings((V2,), (1,), first=True, rates=_TRIED),
        Trainings((V2,), (4,), first=True, rates=(*_TRIED[:3], 5e-3)),
        Trainings((V2,), (1, 4)),
    ),
    "long": (
        Trainings(LONG_NAMES, (1, 4), rates=_TRIED[:3], in_full=True),
        # Where the best of those three rates was the lowest or the highest.
        Trainings((V2, "transformer_rope"), (4,), rates=(3e-4,), in_full=True),
        Trainings(LONG_NAMES, (1,), rates=(3e-2,), in_full=True),
        Trainings(V2_KERNELS, (1, 4), first=True, rates=_TRIED[:3], in_full=True),
    ),
}


def plan(selection: RunSelection) -> list[Run]:
    """The runs of a selection, on the budget's text or on one of the user's."""
    texts = texts_of(selection.data)
    expect(len(texts) < 2, "reproduce", "--data", "name one text to train on", " ".join(selection.data or ()))
    models = selection.models or (WITH_KERNELS if selection.kernels else MODELS)
    kernels = ("", *(selection.kernels or KERNELS))
    names = [name for name in NAMES if (parts := name.partition(" "))[0] in models and parts[2] in kernels]
    seeds, trainings = range(selection.seeds or SEEDS[selection.budget]), BUDGETS[selection.budget]
    points = [(part, point) for part in trainings for point in part.points(names, seeds[:1])]
    points += [(part, point) for part in trainings if not part.first for point in part.points(names, seeds[1:])]
    runs = [_run(selection.budget, part, *point, texts[0] if texts else None) for part, point in points]
    expect(bool(runs), "reproduce", "--models and --kernels", "leave a run of this budget", "none")
    return runs


def _run(budget: str, part: Trainings, seed: int, depth: int, name: str, rate: float | None, text: Text | None) -> Run:
    model, _, kernel = name.partition(" ")
    overrides = [*overrides_of(OVERRIDES[budget]), f"model.num_layers={depth}", f"seed={seed}"]
    # The chosen rate is that of the nearest searched depth that is no deeper.
    chosen = {known: of_depth for (row, known), of_depth in RATES.items() if row == name and known <= depth}
    overrides.append(f"training.learning_rate={rate or chosen[max(chosen)]}")
    if part.steps:
        overrides += [f"training.steps={part.steps}", f"training.warmup_steps={part.steps // 10}"]
    if kernel not in ("", "gaussian"):
        overrides.append(f"model.kernel={kernel}")
    if model == "mosaic_v2":
        sizes = "".join(f", {size}: {str(value).lower()}" for size, value in V2_MODEL.items())
        overrides.insert(0, f"model={{type: memory_mosaic_v2{sizes}}}")
        overrides.append("training.scalar_learning_rate_scale=1.0")  # it learns its scalars as they are
    else:
        overrides += MOSAIC_OVERRIDES[budget] if kernel else [f"model.positions={POSITIONS[model]}"]
    if text:
        overrides.append(f"data.source={text.name}")
        overrides += ["data.validation=stories"] if budget == "long" else []
    recipe = recipe_mapping("stories-mosaic" if kernel else "stories-transformer", overrides)
    searched, digest = SEARCH if rate and not part.in_full else MAIN, text.digest if text else ""
    settings = LanguageSettings(model, kernel, searched, SEQUENCES[budget], recipe, digest)
    of_seed = f", seed {seed}" if seed else ""
    last = f"rate {rate:g}, {recipe['training']['steps']} steps{of_seed}" if searched else f"seed {seed}"
    last = f"rate {rate:g}, {last}" if part.in_full else last
    key = "/".join([*([text.name] if text else []), *([searched] if searched else []), name, blocks(depth), last])
    return Run(key, settings, settings.tokens * (1.0 + depth) * 1e-4, {text.name: text.path} if text else {})


def blocks(number: int) -> str:
    """So many blocks, as keys of runs and tables say it."""
    return f"{number} block{'s' * (number > 1)}"


def texts_of(data: Sequence[str] | None) -> list[Text]:
    """The texts that `--data NAME=PATH ...` names; none without it.

    Raises:
        TesseraError: what is no NAME=PATH, two texts of one name, or a path without text files.
    """
    texts = [_text(text) for text in data or ()]
    names = [text.name for text in texts]
    expect(len(set(names)) == len(names), "reproduce", "--data", "give each text a name of its own", ", ".join(names))
    return texts


@cache
def _text(text: str) -> Text:
    name, equals, path = text.partition("=")
    is_pair = bool(name and equals and path)
    expect(is_pair, "reproduce", "--data", "be NAME=PATH", text, "The name stands in the results.")
    digest = hashlib.sha256()
    for file in text_files(path):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return Text(name, path, digest.hexdigest()[:16])


def trained_model(settings: LanguageSettings, context: RunContext, data: str | None = None) -> Path:
    """The folder of the model that `settings` describe, trained unless it is there; a killed training goes on.

    All experiments that keep their checkpoints beside each other share these models. `data`: where the training text
    lies, if it is not the recipe's own.
    """
    text = json.dumps([to_json(settings.recipe), settings.text], sort_keys=True)
    # checkpoints/EXPERIMENT/BUDGET/RUN is where a run works
    models = context.folder.parents[2] / SHARED_MODELS
    name = f"{settings.name.replace(' ', '-')}-{settings.num_layers}"
    folder = models / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    return trained(settings.read_recipe(data), folder, context.report)


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Curves of the training, loss on the validation text at its end, and that by position, in nats per token."""
    settings = run.configuration
    folder = trained_model(settings, context, next(iter(run.data.values()), None))
    lines = MetricsFile(folder / METRICS).read()
    context.report(1.0, "validating")
    measured = evaluated(folder, evaluation_text(folder), settings.sequences, context)
    validations = [line for line in lines if "validation_loss" in line]
    per_step = settings.tokens // settings.recipe["training"]["steps"]
    return {
        "precision": resolve_precision(settings.recipe["training"]["precision"]),
        "parameters": measured["parameters"],
        "tokens": settings.tokens,
        "training": [[line["tokens"], round(line["loss"], 4)] for line in lines if line.get("loss") is not None],
        "validation": [[line["step"] * per_step, round(line["validation_loss"], 4)] for line in validations],
        "tokens_per_second": [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")][-1],
        "loss": measured["loss"],
        "validation_tokens": measured["tokens"],
        "loss_by_position": measured["loss_by_position"],
    }


def evaluated(folder: Path, text: EvaluationText, sequences: int, context: RunContext) -> dict[str, Any]:
    """`evaluate_text` of the model in `folder`, losses by position with four decimals, and its `parameters`."""
    model = load_model(folder).to(context.device)
    measured = evaluate_text(model, load_tokenizer(folder), text, sequences=sequences)
    losses = [round(loss, 4) for loss in measured["loss_by_position"]]
    return {**measured, "loss_by_position": losses, "parameters": num_parameters(model)}
