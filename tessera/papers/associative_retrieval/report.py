"""Associative retrieval, trained by a curriculum and measured far past its trained length (ARMT, section 3)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.evaluation.questions import answer_loss, is_segmented, right_answers
from tessera.models.forking import state_numbers
from tessera.models.gradient_writing import GradientWriter
from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.sizes import num_parameters
from tessera.models.small_models import ModelSize, build_small_model
from tessera.papers.associative_retrieval.task import RULES, AssociativeRetrieval, capacity, capacity_error
from tessera.papers.curves import draw_curve, panels, styles
from tessera.papers.experiment import LIBRARY, Experiment, Record, Run, RunContext, RunSelection
from tessera.papers.records import Curve, by_model, having, num_seeds, points_of, spread
from tessera.papers.tables import SettingsRows, curves_table, markdown, percent, settings_of, stages_table, with_error
from tessera.recipes.sections import Curriculum, Stage
from tessera.tasks.task import Estimate, estimate, generator_of
from tessera.training.fit import FitOptions, train_curriculum

# Names of rows, in the order of tables and figures; the mosaic and the model without correction are ours to compare.
NAMES = {
    "armt": "ARMT",
    "armt_no_correction": "ARMT, no correction",
    "rmt": "RMT",
    "prmt": "PRMT",
    "gradmem": "RMT, written by gradient",
    "gradmem_matrix": "ARMT, written by gradient",
    "mamba": "Mamba",
    "mosaic": "Memory Mosaic",
}
VOCABULARY = AssociativeRetrieval().vocab_size
KEY_SIZE = "key_size"
# The models whose memory is written by gradient descent (GradMem): whose memory it is, its steps, and its first rate.
BY_GRADIENT = {"gradmem": ("rmt", 3, 5.0), "gradmem_matrix": ("armt", 1, 30.0)}
# Relative time of a step: what the time left is estimated from.
COSTS = {"rmt": 0.7, "prmt": 0.7, "mosaic": 0.4, **dict.fromkeys(BY_GRADIENT, 2.0)}
# Of held-out contexts that are read at once: at most so many, and at most so many pairs of all of them.
CONTEXTS_AT_ONCE, PAIRS_AT_ONCE = 16, 2000
# Heading -> rule, quantity, cell.
BY_PAIRS: dict[str, tuple[str, str, Callable[[Estimate], str]]] = {
    "Rewrite, exact match in per cent": ("rewrite", "exact_match", percent),
    "Remember, exact match in per cent": ("remember", "exact_match", percent),
    "Remember, estimated pairs in memory": ("remember", "capacity", partial(with_error, form=".1f")),
}
# Rule, quantity, label of the axis, title. The paper's figures are curves without numbers.
PANELS = (
    ("rewrite", "exact_match", "exact match", "Rewrite: latest value of a key\nup to 10 x the trained length"),
    ("remember", "exact_match", "exact match", "Remember: one value per key"),
    ("remember", "capacity", "pairs in memory", "Remember: pairs in memory\nk = n (16 a - 1) / 15"),
)
# Heading -> what it is here, and in the paper (section 3, the appendices on training and curriculum, the scripts).
SETTINGS: SettingsRows = {
    "layers": ("sizes.num_layers", 4),
    "width": ("sizes.hidden_size", 128),
    "memory tokens": ("sizes.num_memory_tokens", 4),
    "memory width": ("sizes.memory_dim", 32),
    "batch": ("batch_size", 512),
    "questions to each context": ("questions", 1),
    "peak learning rate": (lambda records: spread(s.learning_rate for s in _stages(records)), 3e-4),
    "standard deviation of initial weights": ("sizes.initializer_range", 0.02),
    "pairs in the stages of rewrite": (lambda records: _pairs(records, "rewrite"), "1, 2, 3, 5, 10, 20, 40, 50"),
    "pairs in the stages of remember": (
        lambda records: _pairs(records, "remember"),
        "1, 2, 3, 5, 10, 20, 40, 50, 50, 200",
    ),
    "steps in all": (
        lambda records: spread(sum(stage.steps for stage in _stages([record])) for record in records),
        "72,000 (rewrite), 97,000 (remember)",
    ),
    "seeds": (num_seeds, 3),
}
# "Perfect memory recall on lengths exceeding 10 times those used in training."
RECALLS_BEYOND_TRAINING = 10


@dataclass(frozen=True)
class RetrievalSettings:
    """One training by a curriculum, and its tests.

    Attributes:
        curriculum, fit: the stages, and what they share. batch_size, questions: contexts per step, questions to each.
        measured: numbers of pairs. test_contexts: held-out contexts per measured number of at most 10 pairs, a quarter
            of them for more, with `test_questions` to each. validation_contexts: of a validation.
    """

    model: str
    rule: str
    seed: int
    sizes: ModelSize
    curriculum: Curriculum
    fit: FitOptions
    batch_size: int
    questions: int
    measured: tuple[int, ...]
    test_contexts: int
    test_questions: int
    validation_contexts: int

    def task(self, pairs: int, key_size: int | None = None) -> AssociativeRetrieval:
        """The rule with so many pairs; None: of keys as in the last stage."""
        return AssociativeRetrieval(self.rule, pairs, key_size or self.curriculum.stages[-1].settings[KEY_SIZE])

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        # Mamba: 4 blocks of width 128, as published.
        sizes = replace(self.sizes, mamba_state_size=32) if model == "mamba" else self.sizes
        cost = COSTS.get(model, 1.0) * sum(stage.steps * (stage.length + 8) for stage in self.curriculum.stages)
        return Run(f"{model}/{self.rule}/seed {seed}", replace(self, model=model, seed=seed, sizes=sizes), cost)


def build(name: str, size: ModelSize, seed: int) -> PreTrainedModel | GradientWriter:
    """The model called `name`, initialised from `seed`, all of about as many parameters.

    `size` is that of the segmented models and of Mamba. The mosaic has half the layers, of 9/8 the width; it stores
    every pair that it reads, the upper bound of any memory of fixed size. A memory written by gradient descent is
    that of ARMT or RMT, into which the whole text is written as one segment.
    """
    if name in BY_GRADIENT:
        written, steps, rate = BY_GRADIENT[name]
        model = build_small_model(written, seed, **asdict(size))
        assert isinstance(model, SegmentedForCausalLM), "its memory is written"
        return GradientWriter(model, steps, rate)
    if name == "mosaic":
        width = round(size.hidden_size * 9 / 8 / size.num_heads) * size.num_heads
        size = replace(size, hidden_size=width, num_layers=max(1, size.num_layers // 2))
    return build_small_model(name, seed, **asdict(size))


def stage(pairs: int, steps: int, target: float, rate: float, key_size: int = 1, at_least: int = 1) -> Stage:
    """A stage of so many pairs, of keys of so many symbols."""
    return Stage(pairs, steps, at_least, target, rate, {KEY_SIZE: key_size})


def _by_rule(settings: RetrievalSettings, stages: Any, measured: Any) -> dict[str, RetrievalSettings]:
    """The settings of each rule, from the stages and the measured numbers of pairs of each."""
    pairs = zip(RULES, stages, measured, strict=True)
    return {rule: replace(settings, rule=rule, curriculum=Curriculum(s), measured=m) for rule, s, m in pairs}


_FIRST = (stage(1, 100, 0.99, 1e-3), stage(3, 500, 0.95, 1e-3, at_least=2))
# Published (ARMT, appendix A and the scripts of its repository): AdamW, weight decay 1e-3, gradients clipped by value.
_CPU = RetrievalSettings(
    "armt", "rewrite", 0, ModelSize(VOCABULARY, initializer_range=0.05, max_positions=1024), Curriculum(_FIRST),
    FitOptions(steps=1, learning_rate=1e-3, evaluate_every=50, weight_decay=1e-3, clip_value=1.0, decay="linear"),
    batch_size=16, questions=8, measured=(), test_contexts=192, test_questions=16, validation_contexts=32,
)  # fmt: skip
_SMOKE = replace(
    _CPU, sizes=ModelSize(VOCABULARY, 16, 2, 2, 64, num_memory_tokens=2, memory_dim=4), batch_size=4, questions=2,
    fit=replace(_CPU.fit, evaluate_every=4), test_contexts=6, test_questions=4, validation_contexts=4,
)  # fmt: skip
BUDGETS: dict[str, dict[str, RetrievalSettings]] = {
    "smoke": _by_rule(
        _SMOKE, [(stage(1, 4, 0.9, 1e-3), stage(2, 4, 0.99, 1e-3, key_size)) for key_size in (2, 1)], [(1, 4), (1, 4)]
    ),
    "cpu": _by_rule(
        _CPU,
        [
            (*_FIRST, stage(10, 300, 0.99, 1e-3), stage(20, 250, 0.99, 1e-3, key_size=2)),
            (*_FIRST, stage(10, 400, 0.99, 1e-3), stage(50, 150, 0.998, 5e-4)),
        ],
        [(1, 3, 5, 10, 20, 40, 60, 100), (1, 3, 5, 10, 20, 50, 100, 200, 500)],
    ),
}
SEEDS = {"smoke": 1, "cpu": 2}


def plan(selection: RunSelection) -> list[Run]:
    """Rewrite first, seed by seed; a memory that is written by gradient descent remembers alone, as published."""
    seeds, models = range(selection.seeds or SEEDS[selection.budget]), selection.models or tuple(NAMES)
    by_rule = BUDGETS[selection.budget]
    points = product(seeds, ("rewrite", "remember"), models)
    return [by_rule[r].run(name, seed) for seed, r, name in points if r == "remember" or name not in BY_GRADIENT]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train through the curriculum, then measure."""
    settings, seed = run.configuration, run.configuration.seed
    model = build(settings.model, settings.sizes, seed).to(context.device)

    def loss_at(stage: Stage, number: int, step: int) -> Tensor:
        task = settings.task(stage.length_at(step, seed), stage.settings[KEY_SIZE])
        generator = generator_of(task, (seed * 100 + number) * 1_000_000 + step, "train")
        return mean_loss(model, task, settings.batch_size, settings.questions, generator)

    def score(stage: Stage) -> float:
        task = settings.task(stage.length, stage.settings[KEY_SIZE])
        sizes = settings.validation_contexts, settings.test_questions
        return exact_match(model, task, *sizes, seed, "validation").mean().item()

    stages = train_curriculum(model, settings.curriculum, settings.fit, context.folder, loss_at, score, context.report)
    outcome: dict[str, Any] = {"parameters": num_parameters(model), "stages": stages, "exact_match": {}, "capacity": {}}
    outcome["trained_pairs"] = settings.curriculum.stages[-1].length
    for pairs in settings.measured:
        context.report(1.0, f"measuring {pairs} pairs")
        task, contexts, questions = settings.task(pairs), settings.test_contexts, settings.test_questions
        if pairs > 10:
            contexts = -(-contexts // 4)
            if not is_segmented(model):  # a model without a memory reads the whole text again for each question
                questions = -(-questions // 8)
        share = estimate(exact_match(model, task, contexts, questions, seed, "test"))
        held = capacity(share.mean, pairs, task.num_symbols)
        outcome["exact_match"][str(pairs)] = share
        outcome["capacity"][str(pairs)] = [held, capacity_error(share.standard_error, pairs, task.num_symbols)]
    outcome["norms"] = memory_norms(model, settings.task(max(settings.measured)), settings.measured, seed)
    return outcome


def mean_loss(
    model: PreTrainedModel, task: AssociativeRetrieval, contexts: int, questions: int, generator: torch.Generator
) -> Tensor:
    """Cross entropy in nats of the answers."""
    if is_segmented(model):
        model.config.segment_size = task.segment_size
    total, count = answer_loss(model, task.sample_questions(contexts, questions, generator))
    return total / count


@torch.no_grad()
def exact_match(
    model: PreTrainedModel, task: AssociativeRetrieval, contexts: int, num_questions: int, seed: int, split: str
) -> Tensor:
    """The share of right answers of each of so many held-out contexts: questions to one context are not independent."""
    if is_segmented(model):
        model.config.segment_size = task.segment_size
    generator, shares = generator_of(task, seed, split), []
    together = max(1, min(CONTEXTS_AT_ONCE, PAIRS_AT_ONCE // task.num_pairs))
    for start in range(0, contexts, together):
        batch = task.sample_questions(min(together, contexts - start), num_questions, generator)
        shares.append(right_answers(model, batch))
    return torch.cat(shares)


@torch.no_grad()
def memory_norms(model: PreTrainedModel, task: AssociativeRetrieval, lengths: Sequence[int], seed: int) -> dict:
    """Mean norms of the normaliser z and of the matrix A, over layers and contexts, after each of `lengths` pairs.

    The correction of the normaliser is there to keep them from growing (ARMT, appendix). Empty for models without
    association matrices.
    """
    if not hasattr(model, "memories"):
        return {}
    model.config.segment_size = task.segment_size
    context = task.sample_questions(CONTEXTS_AT_ONCE, 1, generator_of(task, seed, "test")).contexts.to(model.device)
    norms: dict[str, dict[str, float]] = {"normaliser": {}, "matrix": {}}
    state, read = None, 0
    for length in sorted(n for n in lengths if n <= task.num_pairs):
        tokens = context[:, read * task.segment_size : length * task.segment_size]
        state, read = model(input_ids=tokens, memory_state=state, skip_logits=True).memory_state, length
        norms["normaliser"][str(length)] = state.z.norm(dim=-1).mean().item()
        norms["matrix"][str(length)] = state.A.flatten(2).norm(dim=-1).mean().item()
    return norms


def curves(records: Mapping[str, Record], rule: str, quantity: str) -> list[tuple[Curve, list[Record]]]:
    """A quantity by number of pairs for each model on a rule, and its records."""
    groups = by_model(having(records, rule=rule), NAMES)
    return [
        (Curve(NAMES[model], points_of([record.outcome[quantity] for record in seeds])), seeds)
        for model, seeds in groups.items()
    ]


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """By pairs, norms, trainings, settings."""
    parts = {}
    for heading, (rule, quantity, cell) in BY_PAIRS.items():
        rows = [
            curve._replace(notes=(_numbers_kept(seeds[0].configuration), _trained_pairs(seeds)))
            for curve, seeds in curves(records, rule, quantity)
        ]
        parts[heading] = curves_table(["pairs", "numbers kept", "trained to"], rows, cell, length="{}")
    parts["Rewrite, norm of the normaliser (of the matrix)"] = _norms(having(records, rule="rewrite"))
    parts["Trainings"] = stages_table(
        records,
        {
            "stages: pairs (key size): steps": "{length} ({settings[key_size]}): {steps_done} of {steps}",
            "best exact match (target)": "{best:.3f} ({target:g})",
        },
    )
    parts["Settings"] = settings_of(records.values(), SETTINGS)
    return parts


def _numbers_kept(settings: RetrievalSettings) -> str:
    """What the model carries on from a text, which does not depend on its training; of a growing state, per pair."""
    model = build(settings.model, settings.sizes, settings.seed).eval()
    after_one, after_two = (numbers_kept(model, settings, pairs) for pairs in (1, 2))
    return f"{after_one:,}" if after_one == after_two else f"{after_two - after_one:,} for each pair"


@torch.no_grad()
def numbers_kept(model: Any, settings: RetrievalSettings, pairs: int) -> int:
    """How many numbers a model carries on after a context of so many pairs: its memory, or the cache of the text."""
    task = settings.task(pairs)
    context = task.sample_questions(1, 1, generator_of(task, settings.seed, "test")).contexts
    if is_segmented(model):
        model.config.segment_size = task.segment_size
        return state_numbers(model(input_ids=context, skip_logits=True).memory_state)
    output = model(input_ids=context, use_cache=True)
    return state_numbers(output.get("past_key_values", output.get("cache_params")))


def _trained_pairs(records: Iterable[Record]) -> int:
    return max(record.outcome["trained_pairs"] for record in records)


def _norms(records: Mapping[str, Record]) -> str:
    """After so many rewritten pairs, of models with association matrices."""
    norms = {key: of_run for key, record in records.items() if (of_run := record.outcome.get("norms"))}
    lengths = sorted({int(n) for of_run in norms.values() for n in of_run["normaliser"]})
    rows = [
        [key, *(f"{of_run['normaliser'][str(n)]:.0f} ({of_run['matrix'][str(n)]:.0f})" for n in lengths)]
        for key, of_run in norms.items()
    ]
    return markdown(["run", *lengths], rows)


def _stages(records: Iterable[Record]) -> list[Any]:
    return [stage for record in records for stage in record.configuration.curriculum.stages]


def _pairs(records: Iterable[Record], rule: str) -> str | None:
    """Those of the longest curriculum of a rule."""
    curricula = [_stages([record]) for record in records if record.configuration.rule == rule]
    return ", ".join(str(stage.length) for stage in max(curricula, key=len)) if curricula else None


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw three panels: rewrite, remember, and the capacity remember implies."""
    by_name = styles(NAMES.values())
    with panels(path, 15, 4.6, columns=3, title="bars: 2 standard errors", legend="shared") as axes:
        for axis, (rule, quantity, label, title) in zip(axes, PANELS, strict=True):
            chosen = curves(records, rule, quantity)
            for curve, _ in chosen:
                draw_curve(axis, curve.points, curve.label, bars=2, **by_name[curve.label])
            if chosen:
                trained = max(_trained_pairs(seeds) for _, seeds in chosen)
                axis.axvline(trained, color="black", lw=0.8, ls="--")
                axis.set_xlabel(f"pairs read (dashed: {trained}, the longest in training)")
                _draw_bounds(axis, rule, quantity, max(max(curve.points) for curve, _ in chosen), trained)
            axis.set(xscale="log", ylabel=label, title=title)
            axis.xaxis.set_major_formatter("{x:g}")


def _draw_bounds(axis, rule: str, quantity: str, longest: float, trained: int) -> None:
    """The guess and how far the paper's ARMT recalls beyond its training; of a capacity all pairs that were read."""
    if quantity == "capacity":
        axis.plot([1, longest], [1, longest], ":", color="gray", label="all pairs")
        axis.set_yscale("symlog", linthresh=1)
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_ylim(bottom=0)
        return
    axis.axhline(1 / 16, color="gray", linestyle=":", label="guess")
    axis.set_ylim(0, 1.04)
    if rule == "rewrite":
        reach = [trained, RECALLS_BEYOND_TRAINING * trained]
        label = f"paper: ARMT recalls to {RECALLS_BEYOND_TRAINING} x"
        axis.plot(reach, [1.015, 1.015], color="tab:blue", linestyle="--", linewidth=2, label=label)


EXPERIMENT = Experiment(LIBRARY["associative_retrieval"], RetrievalSettings, plan, execute, tables, plot, tuple(NAMES))
