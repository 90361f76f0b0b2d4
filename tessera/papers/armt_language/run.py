"""ARMT on language: does what a memory keeps of earlier segments lower the loss of later ones?

The figure of the ARMT paper's appendix on language, on stories, and on novels.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from tessera.base.dataclass_io import from_json
from tessera.base.locks import folder_held
from tessera.data.sources import text_source
from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import EvaluationText, bits_per_byte, loss_by_position
from tessera.models.saving.loading import load_model
from tessera.models.sizes import num_parameters
from tessera.papers.experiment import Run, RunContext, RunSelection
from tessera.papers.recipe_settings import trained
from tessera.recipes.sections import Recipe
from tessera.training.corpus import Corpus, open_corpus
from tessera.training.fit import train_stages_of
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedText

BASE, CONTINUED = "base", "continued"
MODELS = (BASE, CONTINUED, "armt", "rmt")
RATE = 3e-3  # peak of the base's training


@dataclass(frozen=True)
class SegmentSettings:
    """One training on stories, and its tests.

    Attributes:
        model: one of `MODELS`. base: a key of `BASES`.
        base_recipe, recipe: of the base's training and, but for the base itself, of the one that starts from it; plain
            values of a `tessera.recipes.sections.Recipe`, without the folder of the base.
        segment: tokens. trained, tested: segments of the longest text in training, and of a tested text.
        sequences: tested texts of each kind.
    """

    model: str
    base: str
    seed: int
    base_recipe: dict[str, Any]
    recipe: dict[str, Any]
    segment: int
    trained: int
    tested: int
    sequences: int

    def read_base_recipe(self) -> Recipe:
        """The recipe of the base, checked."""
        return from_json(Recipe, self.base_recipe, "armt_language")

    def read_recipe(self, base: Path) -> Recipe:
        """The recipe of what starts from the base in this folder, checked."""
        recipe = {**self.recipe, "training": dict(self.recipe["training"]), "model": dict(self.recipe["model"])}
        if self.model == CONTINUED:
            recipe["training"]["initialize_from"] = str(base)
        else:
            recipe["model"]["base"] = str(base)
        return from_json(Recipe, recipe, "armt_language")

    def run(self, model: str, base: str, section: dict[str, Any], seed: int) -> Run:
        """The same for another model, base (of this model section) and seed: the same texts in the same steps."""
        base_recipe = {**self.base_recipe, "name": base, "seed": seed, "model": section}
        sections = {CONTINUED: section, "armt": self.recipe["model"]}
        sections["rmt"] = {key: value for key, value in sections["armt"].items() if key != "memory_dim"}
        sections["rmt"]["type"] = "rmt"
        recipe = {**base_recipe, "name": model, "training": self.recipe["training"], "model": sections.get(model)}
        settings = replace(self, model=model, base=base, seed=seed, base_recipe=base_recipe)
        settings = replace(settings, recipe={} if model == BASE else recipe)
        return Run(f"{base}/{model}/seed {seed}", settings, 0.2 if model == BASE else 1.0)


def _budget(
    segment: int, memory: dict[str, int], vocab_size: int, steps: int, stages: tuple[tuple[int, int], ...],
    sequences: int, **sizes: int,
) -> SegmentSettings:  # fmt: skip
    """ARMT around the first base; `stages`: segments and steps of a memory's training; `steps`: of the base's."""
    trained = max(length for length, _ in stages)
    training: dict[str, Any] = {
        "betas": [0.9, 0.999],
        "weight_decay": 0.01,
        "clip": 1.0,
        "scalar_learning_rate_scale": 10.0,
        "precision": "fp32",
        **sizes,
    }
    base_training = {
        "steps": steps,
        "learning_rate": RATE,
        "min_learning_rate": RATE / 10,
        "warmup_steps": steps // 10,
        "checkpoint_every": max(1, steps // 5),
        **training,
    }
    curriculum = [
        {"length": length, "min_length": length, "steps": steps, "learning_rate": 1e-3, "target": 2.0}
        for length, steps in stages
    ]
    base_recipe = {
        "tokenizer": {"type": "bpe", "vocab_size": vocab_size},
        "data": {"source": "stories", "context": trained * segment},
        "training": base_training,
    }
    section = {"type": "armt", "segment_size": segment, **memory}
    recipe = {"model": section, "training": {**training, "curriculum": curriculum}}
    return SegmentSettings("armt", "transformer", 0, base_recipe, recipe, segment, trained, 2 * trained - 1, sequences)


BUDGETS = {
    "smoke": _budget(
        16, {"num_memory_tokens": 2, "memory_dim": 4}, 300, 2, ((2, 1), (3, 1)), 3,
        batch_size=2, evaluate_every=2, evaluate_sequences=2,
    ),
    "cpu": _budget(
        64, {"num_memory_tokens": 8, "memory_dim": 32}, 2048, 400, ((2, 100), (4, 100), (8, 200)), 64,
        batch_size=8, evaluate_every=50, evaluate_sequences=16,
    ),
}  # fmt: skip
# Model sections of the bases.
_SMALL = {"type": "transformer", "positions": "rope", "hidden_size": 16, "num_layers": 2, "num_heads": 4}
_MOSAIC = {"type": "memory_mosaic", "hidden_size": 128, "num_layers": 2, "num_heads": 4, "num_persistent_slots": 448}
BASES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {"transformer": _SMALL},
    "cpu": {"transformer": {**_SMALL, "hidden_size": 128, "num_layers": 4}, "memory_mosaic": _MOSAIC},
}


def plan(selection: RunSelection) -> list[Run]:
    """Base by base, seed by seed; the models of a base start from the same weights."""
    return [
        BUDGETS[selection.budget].run(model, base, section, seed)
        for seed in range(selection.seeds or 1)
        for base, section in BASES[selection.budget].items()
        for model in selection.models or MODELS
    ]


TESTED_SHARE = 0.5  # of the held-out book; the rest of it chooses the weights
DIGITS = 4


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Sizes, stages of the training, and for each text and reading one row per text of bits per byte by segment."""
    settings = run.configuration
    base = _trained_base(settings, context)
    corpus = open_corpus(settings.read_base_recipe(), base)
    chosen_by, tested = corpus.validation.divided(TESTED_SHARE)
    stages: list[dict[str, Any]] = []
    if settings.model == BASE:
        model: PreTrainedModel = load_model(base)
    else:
        model, stages = _trained_from(base, replace(corpus, validation=chosen_by), settings, context)
    model.to(context.device)
    length = settings.tested * settings.segment
    windows = {"stories": ValidationWindows(tested, length, settings.sequences)}
    with tempfile.TemporaryDirectory() as cache:
        novels = EvaluationText(text_source("novels"), context=length)
        windows["novels"] = novels.windows(corpus.tokenizer, settings.sequences, Path(cache))
        measured: dict[str, Any] = {}
        for text, of_text in windows.items():
            context.report(1.0, f"reading {text}")
            readings = _readings(model, settings).items()
            measured[text] = {name: bits_by_segment(reader, of_text, settings.segment) for name, reader in readings}
    return {"parameters": num_parameters(model), "stages": stages, "bits_per_byte": measured}


class SegmentsAlone(nn.Module):
    """`model` reading each segment of a text without those before it; its logits stand at the text's positions.

    So a segment's first token is predicted from the last position before it, as by a model with a memory.
    """

    def __init__(self, model: PreTrainedModel, segment: int) -> None:
        super().__init__()
        self.model, self.segment = model, segment

    @property
    def config(self) -> PreTrainedConfig:
        """The model's, which stages may adjust."""
        return self.model.config

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, use_cache: bool = False) -> CausalLMOutput:
        """Logits (B, T, vocabulary) of tokens (B, T), T a multiple of the segment; the mean loss of labels (B, T)."""
        logits = self.model(input_ids=input_ids.reshape(-1, self.segment), use_cache=use_cache).logits
        logits = logits.reshape(*input_ids.shape, -1)
        loss = None if labels is None else cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)


def bits_by_segment(model: nn.Module, windows: ValidationWindows, segment: int) -> list[list[float]]:
    """Bits per byte of each segment (a list) of each text (a list of these).

    A segment's first token is predicted from the last position before it, but the text's first token by nothing.
    """
    rows = []
    for number in range(len(windows)):
        losses = loss_by_position(model, [windows[number]], 1)
        total, count = (_by_segment(sums, segment) for sums in (losses.total, losses.count))
        bits = [bits_per_byte(nats, windows.split.tokens_per_byte) for nats in (total / count).tolist()]
        rows.append([round(sums, DIGITS) for sums in bits])
    return rows


def _by_segment(values: Tensor, segment: int) -> Tensor:
    """Sums over segments of what `loss_by_position` says of all tokens but the text's first."""
    return torch.cat([values.new_zeros(1), values]).view(-1, segment).sum(1)


def _readings(model: PreTrainedModel, settings: SegmentSettings) -> dict[str, nn.Module]:
    alone = SegmentsAlone(model, settings.segment)
    if settings.model == BASE:
        return {"one_segment": alone, "whole_context": model}
    return {settings.model: alone if settings.model == CONTINUED else model}


def _trained_base(settings: SegmentSettings, context: RunContext) -> Path:
    """The folder of the base, which the first run that needs it trains; the others wait for it."""
    recipe = settings.read_base_recipe()
    folder = context.folder.parent / "bases" / f"{recipe.name}-{recipe.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with folder_held(folder):
        return trained(recipe, folder, context.report)


def _trained_from(
    base: Path, corpus: Corpus, settings: SegmentSettings, context: RunContext
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    recipe = settings.read_recipe(base)
    data = StagedText(recipe, settings.segment, corpus)
    model = starting_model(recipe, data.tokenizer, context=settings.tested * settings.segment).to(context.device)
    trained = SegmentsAlone(model, settings.segment) if settings.model == CONTINUED else model
    return model, train_stages_of(trained, recipe, data, context.folder, context.report)
