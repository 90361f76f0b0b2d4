"""Many-shot classification: trained on some classes, tested on others, with up to four times the shots."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from tessera.evaluation.continuations import Request
from tessera.models.sizes import num_parameters
from tessera.papers.curves import doubling, panels, styles
from tessera.papers.experiment import LIBRARY, Experiment, Record, Run, RunContext, seed_by_seed
from tessera.papers.many_shot.prompting import episode_answers, over_contexts
from tessera.papers.many_shot.task import DELIMITERS, STRATEGIES, Episode, Example, ManyShot
from tessera.papers.records import Curve, by_model, points_of, spread
from tessera.papers.tables import curves_table, settings_table, trainings_table
from tessera.papers.task_stage import TEST_SEED, EarlyStage, TaskStage, scores_of_memories, small_model, train_on_tasks
from tessera.training.fit import FitOptions

# Names of rows, in the order of tables and figures. The paper's figures are curves without numbers.
NAMES = {"mosaic_v2": "Memory Mosaic v2", "mosaic": "Memory Mosaic v1", "llama": "Llama twin"}
WITHOUT_LONG_TERM = "Memory Mosaic v2, long-term memories off"
SCORES = {"exact_match": "exact match", "likeliest_label": "likeliest label"}


@dataclass(frozen=True)
class ManyShotSettings:
    """One training and its tests.

    Attributes:
        hidden_size, num_layers, num_heads: of the transformer whose number of parameters every model has.
        task_fields: settings of the task in training; contexts of both delimiters take turns. span: the short-term
            memory's; the long-term delay is a quarter of it in tests, and from there to the span in training.
        batch_size, fit: of the training; batch_size counts contexts. early_stages: before it, for every model.
        test_classes: of each context in tests. test_shots: shots of the tests. contexts, queries: tested contexts of
            each number of shots and strategy, and queries of each context.
    """

    model: str
    hidden_size: int
    num_layers: int
    num_heads: int
    task_fields: dict[str, Any]
    batch_size: int
    fit: FitOptions
    test_shots: tuple[int, ...]
    contexts: int
    queries: int
    test_classes: int = 8
    span: int = 32
    early_stages: tuple[EarlyStage, ...] = ()
    seed: int = 0

    def trained_tasks(self, **easier: Any) -> tuple[ManyShot, ...]:
        """The tasks of training, one with each delimiter; `easier`: settings of an early stage."""
        fields = {**self.task_fields, **easier, "order": "mixed", "dense": True}
        return tuple(ManyShot(**fields, delimiter=delimiter) for delimiter in DELIMITERS)

    def stages(self) -> list[TaskStage]:
        """All of training, the early stages first."""
        seed, stages = self.seed * 10_000_019, []
        for number, stage in enumerate(self.early_stages, 1):
            tasks = tuple(task for easier in stage.tasks for task in self.trained_tasks(**easier))
            stages.append(stage.as_stage(number, tasks, self.batch_size, seed))
        return [*stages, TaskStage("training", self.trained_tasks(), self.batch_size, self.fit, seed)]

    def tested_task(self, shots: int, strategy: str) -> ManyShot:
        """The task of one number of shots and strategy (delimiter and order)."""
        delimiter, order = strategy.split(", ")
        fields = {**self.task_fields, "shots": shots, "num_classes": self.test_classes, "fewest_classes": None}
        return ManyShot(**fields, delimiter=delimiter, order=order)

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        steps = sum(stage.fit.steps for stage in self.stages())
        cost = steps * self.batch_size * self.num_layers * (1.6 if model == "mosaic_v2" else 1.0)
        return Run(f"{model}/seed {seed}", replace(self, model=model, seed=seed), cost)


# Reduced: contexts of 4 to 8 of 52 classes with 4 shots, tested on 17 other classes with 4 to 16 shots. In the early
# stages texts repeat: all shots of a class are one text, then two, then three, and the query is one of them.
_FIT = FitOptions(600, 1e-3, warmup_ratio=0.05, weight_decay=0.1, clip=1.0, scalar_learning_rate_scale=50.0)
_EARLY = ((1, 200), (2, 75), (3, 75))  # different texts of a class, steps
_CPU = ManyShotSettings(
    "mosaic_v2", 128, 2, 4, {"shots": 4, "num_classes": 8, "fewest_classes": 4}, 4, _FIT,
    test_shots=(4, 8, 16), contexts=16, queries=8,
    early_stages=tuple(EarlyStage(({"distinct": texts},), replace(_FIT, steps=steps)) for texts, steps in _EARLY),
)  # fmt: skip
_SMOKE = replace(
    _CPU, hidden_size=16, num_heads=2, task_fields={"shots": 1, "num_classes": 2, "vocab_size": 400}, batch_size=2,
    fit=FitOptions(4, 1e-3), test_shots=(1, 2), contexts=2, queries=2, test_classes=2, span=8,
    early_stages=(EarlyStage(({"distinct": 1},), FitOptions(2, 1e-3)),),
)  # fmt: skip
BUDGETS = {"smoke": _SMOKE, "cpu": _CPU}
SEEDS = {"smoke": 1, "cpu": 3}
plan = partial(seed_by_seed, budgets=BUDGETS, seeds=SEEDS, models=NAMES)


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on contexts that are new at every step, then test; v2 once more with its long-term memories off."""
    settings = run.configuration
    model = build(settings).to(context.device)
    outcome: dict[str, Any] = train_on_tasks(model, settings.stages(), context)
    scores = scores_of_memories(model, partial(evaluate, model, settings, context))
    return outcome | {"parameters": num_parameters(model)} | scores


def build(settings: ManyShotSettings) -> PreTrainedModel:
    """The model of a run."""
    vocab_size = settings.trained_tasks()[0].vocabulary.get_vocab_size()
    return small_model(settings, settings.model, vocab_size=vocab_size, max_positions=16 * settings.span)


def evaluate(model: PreTrainedModel, settings: ManyShotSettings, context: RunContext) -> dict[str, Any]:
    """Shots -> strategy -> score (see `many_shot_scores`) -> mean, standard error over contexts, count."""
    scores: dict[str, Any] = {}
    for shots in settings.test_shots:
        for strategy in STRATEGIES:
            context.report(1.0, f"testing {shots} shots ({strategy})")
            task = settings.tested_task(shots, strategy)
            episodes = task.episodes(settings.contexts, TEST_SEED, "test", settings.queries)
            answers = [episode_answers(model, e, partial(_requests, task, e), settings.queries) for e in episodes]
            scores.setdefault(str(shots), {})[strategy] = over_contexts(answers)
    return scores


def _requests(task: ManyShot, episode: Episode, query: Example) -> list[Request]:
    return [Request(task.prompt(episode, query), [task.label(label)]) for label in episode.labels]


def strategies(records: Mapping[str, Record], score: str) -> list[Curve]:
    """Every row with each prompt strategy: a score by shots over seeds."""
    return [
        Curve(name, points_of([{n: by[strategy][score] for n, by in scores.items()} for scores in seeds]), (strategy,))
        for name, seeds in _scores(records).items()
        for strategy in STRATEGIES
    ]


def best(records: Mapping[str, Record], score: str) -> list[Curve]:
    """Every row with the strategy of the highest mean over seeds at each number of shots, chosen on the test itself."""
    rows = []
    every_strategy = strategies(records, score)
    for name, seeds in _scores(records).items():
        of_row = [curve.points for curve in every_strategy if curve.label == name]
        points = {shots: max((p[shots] for p in of_row), key=lambda point: point.mean) for shots in of_row[0]}
        rows.append(Curve(name, points, (len(seeds),)))
    return rows


def _scores(records: Mapping[str, Record]) -> dict[str, list[dict]]:
    """Row -> the scores of each seed, rows in the order of the tables."""
    groups = by_model(records, NAMES)
    rows = {NAMES[model]: [seed.outcome["scores"] for seed in seeds] for model, seeds in groups.items()}
    outcomes = [seed.outcome for seeds in groups.values() for seed in seeds]
    off = [outcome["without_long_term_memory"] for outcome in outcomes if "without_long_term_memory" in outcome]
    return {**rows, WITHOUT_LONG_TERM: off} if off else rows


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy by shots, every seed and strategy, what was trained."""
    parts = {
        f"Accuracy, {title}": curves_table(["model", "seeds"], best(records, score), length="{} shots")
        for score, title in SCORES.items()
    }
    parts["Every seed"] = trainings_table(records, NAMES, "training loss", partial(_best_shares, score="exact_match"))
    every_strategy = curves_table(["model", "delimiter, order"], strategies(records, "exact_match"), length="{} shots")
    return parts | {"Every prompt strategy": every_strategy, "Settings": _settings([*records.values()])}


def _best_shares(record: Record, score: str) -> dict[str, float]:
    """By shots, the score of one training with its own best strategy."""
    by_shots = record.outcome["scores"].items()
    return {f"{n} shots": max(scores[score][0] for scores in by.values()) for n, by in by_shots}


def _settings(records: list[Record]) -> str:
    """Here, and in sections 4 and 5.3 and appendices D and G."""
    first = records[0].configuration
    task = first.trained_tasks()[0]
    num_steps = sum(stage.fit.steps for stage in first.stages())
    classes = f"{task.fewest_classes or task.num_classes} to {task.num_classes}"
    parameters = spread(record.outcome["parameters"] for record in records)
    return settings_table(
        {
            "parameters": (parameters, "9.9 billion (v2 large), 8.8 billion (transformer)"),
            "layers": (first.num_layers, 32),
            "width": (first.hidden_size, 4096),
            "heads": (first.num_heads, 32),
            "trained on": (f"{num_steps * first.batch_size:,} contexts of 52 classes", "1,000 billion tokens of text"),
            "short-term span": (first.span, 256),
            "long-term delay in training": (f"{first.span // 4} to {first.span}", "64 to 256"),
            "long-term delay in tests": (first.span // 4, 64),
            "classes of a context": (
                f"{classes}, tests {first.test_classes} of 17 others",
                "77, 41, 28 (Banking77, Tacred, GoEmotions)",
            ),
            "shots in training": (task.shots, None),
            "steps": (first.fit.steps, None),
            "early steps with texts that repeat": (num_steps - first.fit.steps, None),
            "contexts per step": (first.batch_size, None),
            "peak learning rate": (first.fit.learning_rate, None),
            "longest text, characters": (task.max_characters, None),
            "delimiters": ("newline, space", "newline, space"),
            "orders": ("fixed, shuffled", "fixed, shuffled"),
            "tested queries of each cell and seed": (first.contexts * first.queries, None),
        }
    )


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw one panel per score, at the best strategy: means over seeds thick, every seed thin."""
    by_name = styles([*NAMES.values(), WITHOUT_LONG_TERM])
    chance = 100 / next(iter(records.values())).configuration.test_classes
    with panels(path, 11, 4.6, columns=2, title="means over seeds (thin: every seed)") as axes:
        for axis, (score, title) in zip(axes, SCORES.items(), strict=True):
            rows = best(records, score)
            for curve in rows:
                means = [100 * point.mean for point in curve.points.values()]
                axis.plot(list(curve.points), means, label=curve.label, linewidth=2.5, **by_name[curve.label])
            for model, seeds in by_model(records, NAMES).items():
                for seed in seeds:
                    means = [100 * share for share in _best_shares(seed, score).values()]
                    color = by_name[NAMES[model]]["color"]
                    axis.plot(seed.configuration.test_shots, means, color=color, linewidth=0.8, alpha=0.7)
            axis.axhline(chance, color="black", linewidth=0.8, linestyle="--", label="guess")
            doubling(axis, [shots for curve in rows for shots in curve.points])
            axis.set(ylim=(0, 101), xlabel="shots (examples of each class)", ylabel="%", title=f"New classes: {title}")


EXPERIMENT = Experiment(LIBRARY["many_shot"], ManyShotSettings, plan, execute, tables, plot, tuple(NAMES))
