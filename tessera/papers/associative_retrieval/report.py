"""What is shown of associative retrieval: exact match and capacity by number of pairs, norms, trainings, settings.

The paper's figures are curves without numbers.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tessera.evaluation.questions import is_segmented
from tessera.models.forking import state_numbers
from tessera.papers.associative_retrieval.run import KEY_SIZE, NAMES, RetrievalSettings, build, execute, plan
from tessera.papers.curves import draw_curve, panels, styles
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.tables import (
    Curve,
    by_model,
    curves_table,
    markdown,
    num_seeds,
    percent,
    points_of,
    settings_of,
    spread,
    stages_table,
    with_error,
)
from tessera.tasks.task import Estimate, generator_of

# Heading -> rule, quantity, cell.
BY_PAIRS: dict[str, tuple[str, str, Callable[[Estimate], str]]] = {
    "Rewrite, exact match in per cent": ("rewrite", "exact_match", percent),
    "Remember, exact match in per cent": ("remember", "exact_match", percent),
    "Remember, estimated pairs in memory": ("remember", "capacity", partial(with_error, form=".1f")),
}
# Rule, quantity, label of the axis, title.
PANELS = (
    ("rewrite", "exact_match", "exact match", "Rewrite: latest value of a key\nup to 10 x the trained length"),
    ("remember", "exact_match", "exact match", "Remember: one value per key"),
    ("remember", "capacity", "pairs in memory", "Remember: pairs in memory\nk = n (16 a - 1) / 15"),
)
# Heading -> what it is here, and in the paper (section 3, the appendices on training and curriculum, the scripts).
SETTINGS: dict[str, tuple[str | Callable[[list[Record]], Any], Any]] = {
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


def curves(records: Mapping[str, Record], rule: str, quantity: str) -> list[tuple[Curve, list[Record]]]:
    """A quantity by number of pairs for each model on a rule, and its records.

    Of one seed the standard error is over held-out contexts.
    """
    groups = by_model(of_rule(records, rule), NAMES)
    return [
        (Curve(NAMES[model], points_of([record.outcome[quantity] for record in seeds])), seeds)
        for model, seeds in groups.items()
    ]


def of_rule(records: Mapping[str, Record], rule: str) -> dict[str, Record]:
    """The records of one rule."""
    return {key: record for key, record in records.items() if record.configuration.rule == rule}


def trained_pairs(records: Iterable[Record]) -> int:
    """Pairs of the longest stage."""
    return max(record.outcome["trained_pairs"] for record in records)


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Every table; those without a row are left out."""
    parts = {}
    for heading, (rule, quantity, cell) in BY_PAIRS.items():
        rows = [
            curve._replace(notes=(_numbers_kept(seeds[0].configuration), trained_pairs(seeds)))
            for curve, seeds in curves(records, rule, quantity)
        ]
        parts[heading] = curves_table(["pairs", "numbers kept", "trained to"], rows, cell, length="{}")
    parts["Rewrite, norm of the normaliser (of the matrix)"] = _norms(of_rule(records, "rewrite"))
    parts["Trainings"] = stages_table(
        records,
        {
            "stages: pairs (key size): steps": lambda stage: (
                f"{stage['length']} ({stage['settings'][KEY_SIZE]}): {stage['steps_done']} of {stage['steps']}"
            ),
            "best exact match (target)": lambda stage: f"{stage['best']:.3f} ({stage['target']:g})",
        },
    )
    parts["Settings"] = settings_of(records.values(), SETTINGS)
    return {heading: table for heading, table in parts.items() if table}


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
                trained = max(trained_pairs(seeds) for _, seeds in chosen)
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
