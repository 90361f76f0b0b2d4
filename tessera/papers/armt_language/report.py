"""ARMT on language: does what a memory keeps of earlier segments lower the loss of later ones?"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from tessera.base.dataclass_io import from_json
from tessera.data.sources import text_source
from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import EvaluationText, bits_per_byte, loss_by_position
from tessera.models.saving.loading import load_model
from tessera.models.sizes import num_parameters
from tessera.papers.curves import panels
from tessera.papers.experiment import LIBRARY, Experiment, Record, Run, RunContext, RunSelection
from tessera.papers.recipe_settings import trained
from tessera.papers.records import grouped, num_seeds, over_seeds, spread
from tessera.papers.tables import SettingsRows, markdown, settings_of, stages_table, with_error
from tessera.recipes.sections import Recipe
from tessera.tasks.task import Estimate, estimate
from tessera.training.corpus import open_corpus
from tessera.training.fit import train_recipe_stages
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedText

BASE, CONTINUED = "base", "continued"
MODELS = (BASE, CONTINUED, "armt", "rmt")
RATE = 3e-3  # peak of the base's training
TESTED_SHARE = 0.5  # of the held-out book; the rest of it chooses the weights
DIGITS = 4
# Here, and in the paper's figure on Wikitext-103, which draws the bits per byte of each segment; no number is printed.
SETTINGS: SettingsRows = {
    "base": (lambda records: f"{_bases(records)}, trained on the same stories", "GPT-2, tuned on Wikitext-103"),
    "text": (lambda records: "bundled fairy tales", "Wikitext-103"),
    "tokens of a segment": ("segment", 128),
    "memory tokens": ("recipe.model.num_memory_tokens", 16),
    "memory width of ARMT": ("recipe.model.memory_dim", 96),
    "segments in training": (lambda records: ", ".join(str(stage["length"]) for stage in _stages(records)) or None, 8),
    "segments in tests": ("tested", 15),
    "texts per step": ("recipe.training.batch_size", 32),
    "steps": (lambda records: sum(stage["steps"] for stage in _stages(records)) or None, 36_000),
    "peak learning rate": (lambda records: spread(stage["learning_rate"] for stage in _stages(records)), 1e-4),
    "weight decay": ("recipe.training.weight_decay", 0.01),
    "seeds": (num_seeds, 1),
    "vocabulary": ("base_recipe.tokenizer.vocab_size", None),
    "steps of the base": ("base_recipe.training.steps", None),
    "tested texts of each kind": ("sequences", None),
}
# Names of rows, in the order of tables and figures. The first two are readings of one model, the base.
READINGS = {
    "one_segment": "base, one segment",
    "whole_context": "base, whole context",
    CONTINUED: "base, trained on, one segment",
    "rmt": "RMT",
    "armt": "ARMT",
}
COLORS = dict(zip(READINGS, ("#6b7280", "#111827", "#a3a3a3", "#1d4ed8", "#c2410c")))
TITLES = {"transformer": "GPT-NeoX", "memory_mosaic": "Memory Mosaic"}
TEXTS = {"stories": "held-out stories", "novels": "novels"}
# What is compared with the base, and with a base that was trained on as much text as the memories.
COMPARED = {"one_segment": ("whole_context", CONTINUED, "rmt", "armt"), CONTINUED: ("rmt", "armt")}
# Reading -> seed -> bits per byte (texts, segments).
Readings = Mapping[str, Mapping[int, Tensor]]


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

    def read_recipe(self, base: Path) -> Recipe:
        """The recipe of what starts from the base in this folder, checked."""
        section, key = ("training", "initialize_from") if self.model == CONTINUED else ("model", "base")
        recipe = {**self.recipe, section: {**self.recipe[section], key: str(base)}}
        return from_json(Recipe, recipe, "armt_language")

    def run(self, model: str, base: str, section: dict[str, Any], seed: int) -> Run:
        """The same for another model, base (of this model section) and seed: the same texts in the same steps."""
        base_recipe = {**self.base_recipe, "name": base, "seed": seed, "model": section}
        armt, training = self.recipe["model"], self.recipe["training"]
        rmt = {key: value for key, value in armt.items() if key != "memory_dim"} | {"type": "rmt"}
        sections = {CONTINUED: section, "armt": armt, "rmt": rmt}
        changes = {"name": model, "training": training, "model": sections.get(model)}
        recipe = {} if model == BASE else {**base_recipe, **changes}
        settings = replace(self, model=model, base=base, seed=seed, base_recipe=base_recipe, recipe=recipe)
        return Run(f"{base}/{model}/seed {seed}", settings, 0.2 if model == BASE else 1.0)


def _budget(
    segment: int, memory: dict[str, int], vocab_size: int, steps: int, stages: tuple[tuple[int, int], ...],
    sequences: int, **sizes: int,
) -> SegmentSettings:  # fmt: skip
    """ARMT around the first base; `stages`: segments and steps of a memory's training; `steps`: of the base's."""
    trained = max(length for length, _ in stages)
    shared: dict[str, Any] = {"betas": [0.9, 0.999], "weight_decay": 0.01, "clip": 1.0, "precision": "fp32", **sizes}
    shared["scalar_learning_rate_scale"] = 10.0
    training = {"steps": steps, "warmup_steps": steps // 10, "checkpoint_every": max(1, steps // 5), **shared}
    base_recipe = {
        "tokenizer": {"type": "bpe", "vocab_size": vocab_size},
        "data": {"source": "stories", "context": trained * segment},
        "training": {"learning_rate": RATE, "min_learning_rate": RATE / 10, **training},
    }
    stage = {"learning_rate": 1e-3, "target": 2.0}
    curriculum = [{"length": length, "min_length": length, "steps": count, **stage} for length, count in stages]
    section = {"type": "armt", "segment_size": segment, **memory}
    recipe = {"model": section, "training": {**shared, "curriculum": curriculum}}
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


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Sizes, stages of the training, and for each text and reading one row per text of bits per byte by segment."""
    settings = run.configuration
    base_recipe = from_json(Recipe, settings.base_recipe, "armt_language")
    base = context.folder.parent / "bases" / f"{base_recipe.name}-{base_recipe.seed}"
    trained(base_recipe, base, context.report)
    corpus = open_corpus(base_recipe, base)
    chosen_by, tested = corpus.validation.divided(TESTED_SHARE)
    length, stages = settings.tested * settings.segment, []
    if settings.model == BASE:
        model: PreTrainedModel = load_model(base).to(context.device)
        readers: dict[str, nn.Module] = {"one_segment": SegmentsAlone(model, settings.segment), "whole_context": model}
    else:
        recipe = settings.read_recipe(base)
        data = StagedText(recipe, settings.segment, replace(corpus, validation=chosen_by))
        model = starting_model(recipe, data.tokenizer, context=length).to(context.device)
        readers = {settings.model: SegmentsAlone(model, settings.segment) if settings.model == CONTINUED else model}
        stages = train_recipe_stages(readers[settings.model], recipe, data, context.folder, context.report)
    windows = {"stories": ValidationWindows(tested, length, settings.sequences)}
    measured: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as cache:
        novels = EvaluationText(text_source("novels"), context=length)
        windows["novels"] = novels.windows(corpus.tokenizer, settings.sequences, Path(cache))
        for text, texts in windows.items():
            context.report(1.0, f"reading {text}")
            ratios[text] = texts.tokens_per_byte(corpus.tokenizer)
            sizes = settings.segment, ratios[text]
            measured[text] = {name: bits_by_segment(reader, texts, *sizes) for name, reader in readers.items()}
    outcome = {"parameters": num_parameters(model), "stages": stages, "bits_per_byte": measured}
    return {**outcome, "tokens_per_byte": ratios}


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


def bits_by_segment(model: nn.Module, windows: ValidationWindows, segment: int, ratio: float) -> list[list[float]]:
    """Bits per byte, with this ratio of tokens to bytes, by text and segment; a text's first token nothing predicts."""
    rows = []
    for number in range(len(windows)):
        losses = loss_by_position(model, [windows[number]], 1)
        sums = (torch.cat([values.new_zeros(1), values]) for values in (losses.total, losses.count))
        total, count = (values.view(-1, segment).sum(1) for values in sums)
        bits = [bits_per_byte(nats, ratio) for nats in (total / count).tolist()]
        rows.append([round(value, DIGITS) for value in bits])
    return rows


def measured(records: Mapping[str, Record]) -> dict[tuple[str, str], Readings]:
    """(base, text) -> what was measured, in the order of tables."""
    columns: dict[tuple[str, str], Readings] = {}
    for base, of_base in grouped(records, lambda settings: settings.base, TITLES).items():
        for text in TEXTS:
            rows: dict[str, dict[int, Tensor]] = {name: {} for name in READINGS}
            for record in of_base:
                for name, bits in record.outcome["bits_per_byte"][text].items():
                    rows[name][record.configuration.seed] = torch.tensor(bits, dtype=torch.float64)
            columns[base, text] = {name: seeds for name, seeds in rows.items() if seeds}
    return columns


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """For each base and text the bits per byte and the differences; then all trainings and settings."""
    parts: dict[str, str] = {}
    trained = max((record.configuration.trained for record in records.values()), default=0)
    for (base, text), readings in measured(records).items():
        heading = f"{TITLES[base]}, {TEXTS[text]}"
        means = {name: by_segment(seeds) for name, seeds in readings.items()}
        rows = [[READINGS[name], len(readings[name]), *(f"{bits:.3f}" for bits in means[name])] for name in means]
        segments = range(1, max(map(len, means.values())) + 1)
        parts[f"{heading}: bits per byte"] = markdown(["segment", "seeds", *segments], rows)
        parts[f"{heading}: differences"] = _differences(readings, trained)
    steps = {"stages: segments: steps": "{length}: {steps_done}"}
    parts["Trainings"] = stages_table(records, steps, "minutes of the stages")
    parts["Settings"] = settings_of(records.values(), SETTINGS)
    return parts


def by_segment(seeds: Mapping[int, Tensor]) -> list[float]:
    """Mean over texts and seeds of each segment."""
    return torch.stack([bits.mean(0) for bits in seeds.values()]).mean(0).tolist()


def difference(seeds: Mapping[int, Tensor], others: Mapping[int, Tensor], part: slice) -> Estimate | None:
    """Mean over the segments of `part`, minus that of others on the same texts, over the seeds of both."""
    both = [seed for seed in seeds if seed in others]
    return over_seeds([estimate((seeds[seed] - others[seed])[:, part].mean(1)) for seed in both]) if both else None


def _differences(readings: Readings, trained: int) -> str:
    last = max(len(by_segment(seeds)) for seeds in readings.values())
    parts = {"1": slice(0, 1), f"2 to {trained}": slice(1, trained), f"{trained + 1} to {last}": slice(trained, last)}
    rows = [
        [READINGS[name], READINGS[other]]
        + [with_error(difference(readings[name], readings[other], part), "+.4f") for part in parts.values()]
        for other, names in COMPARED.items()
        for name in names
        if name in readings and other in readings
    ]
    return markdown(["reading", "minus", *(f"segments {part}" for part in parts)], rows)


def _bases(records: Sequence[Record]) -> str:
    return ", ".join(sorted({TITLES[record.configuration.base] for record in records}))


def _stages(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Those of all trainings that start from a base."""
    recipes = [record.configuration.recipe for record in records if record.configuration.recipe]
    return recipes[0]["training"]["curriculum"] if recipes else []


def plot(records: Mapping[str, Record], path: Path) -> None:
    """A column for each base and text: above the bits per byte, below minus those of the base with one segment."""
    columns = measured(records)
    trained = max(record.configuration.trained for record in records.values())
    with panels(path, 0.6 + 4.6 * len(columns), 7.4, 2, len(columns), legend="shared") as axes:
        for above, below, ((base, text), readings) in zip(axes, axes[len(columns) :], columns.items()):
            means = {name: by_segment(seeds) for name, seeds in readings.items()}
            for name, bits in means.items():
                style: dict[str, Any] = {"color": COLORS[name], "marker": "o", "ms": 3, "lw": 1.4}
                style["label"] = READINGS[name]
                above.plot(range(1, len(bits) + 1), bits, **style)
                if "one_segment" in means:
                    changes = [ours - theirs for ours, theirs in zip(bits, means["one_segment"])]
                    below.plot(range(1, len(bits) + 1), changes, **style)
            for axis in (above, below):
                if axis.lines:
                    axis.axvline(trained + 0.5, color="black", lw=0.8, ls="--", label="longest in training")
            above.set(title=f"{TITLES[base]}, {TEXTS[text]}", ylabel="bits per byte")
            below.set(xlabel="segment", ylabel="minus the base with one segment")


PUBLISHED = "The published trainings are recipes: `tessera train gpt2-wikitext-103`, then `armt-wikitext-103`."
EXPERIMENT = Experiment(LIBRARY["armt_language"], SegmentSettings, plan, execute, tables, plot, MODELS, (), PUBLISHED)
