"""Document questions: trained on short samples, asked about longer ones, tuned at a long one, asked again."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.document_qa.task import FULL_WORDING, DocumentQA
from tessera.papers.experiment import LIBRARY, Experiment, Record, Run, RunContext, seed_by_seed
from tessera.papers.records import Curve, by_model, points_of, spread
from tessera.papers.tables import curves_table, markdown, settings_table, trainings_table
from tessera.papers.task_stage import (
    EarlyStage,
    TaskStage,
    held_out_scores,
    scores_of_memories,
    small_model,
    train_on_tasks,
)
from tessera.tasks.task import Estimate
from tessera.training.fit import FitOptions

# Names of rows, in the order of tables and figures.
NAMES = {
    "mosaic_v2": "Memory Mosaic v2",
    "mosaic_v2_biweight": "Memory Mosaic v2, biweight",
    "mosaic_v2_triweight": "Memory Mosaic v2, triweight",
    "llama": "Llama twin (RoPE)",
    "transformer_alibi": "Transformer (ALiBi)",
    "lstm": "LSTM",
}
# Compact kernels are ours: the paper of v2 has the Gaussian one.
KERNELS = {"mosaic_v2": "gaussian", "mosaic_v2_biweight": "biweight", "mosaic_v2_triweight": "triweight"}
TUNING_SEED = 500_000  # apart from the seeds of the training's steps
# v2's key extractors start with small weights, which larger ones or a higher rate overrun. It learns the task in a few
# hundred steps; its twin needs thousands, from larger weights, and easier forms of the task first. ALiBi and the LSTM
# are trained as long as the twin, without these forms.
V2_LEARNING_RATE, V2_SHARE_OF_STEPS = 1e-3, 0.15
STAGES = {"training": "After training", "tuning": "After tuning"}
OFF = {model: f"{NAMES[model]}, long-term memories off" for model in KERNELS}
# Tables 3, 4 and 7 of Memory Mosaics v2, RULER's questions about documents: trained at 4k; then tuned at 32k; then with
# the long-term memories off. None: the model fails.
LENGTHS = ("4k", "8k", "16k", "32k", "64k")
TUNED_V2, TUNED_V2_OFF = (58.9, 55.5, 54.9, 53.4, 46.4), (38.5, 22.2, 20.0, 20.2)
PAPER: dict[str, dict[str, tuple[float | None, ...]]] = {
    "training": {
        "Memory Mosaic v2 small": (45.0, 35.0, 34.1, 31.7),
        "Transformer small": (39.4, None, None, None),
        "Memory Mosaic v2 large": (59.3, 48.8, 46.4, 26.5),
        "Transformer large": (57.7, None, None, None),
    },
    "tuning": {
        "Memory Mosaic v2 small": (44.3, 39.3, 39.4, 36.9, 25.3),
        "Transformer small": (37.0, 29.3, 29.0, 22.1, None),
        "Memory Mosaic v2 large": TUNED_V2,
        "Transformer large": (51.2, 48.8, 44.7, 41.1, None),
        f"{OFF['mosaic_v2']} (large)": TUNED_V2_OFF,
    },
}


@dataclass(frozen=True)
class DocumentSettings:
    """One training, one tuning, and the tests after each.

    Attributes:
        hidden_size, num_layers, num_heads: of the transformer whose number of parameters every model has. span: the
            short-term memory's; the long-term delay is a quarter of it in tests, and from there to the span in training
            and tuning.
        task_fields: settings of the task. lengths, batch_size, fit: of the training, whose steps have samples of these
            lengths in turn. tuned_length, tuned_batch_size, tuning: of the tuning that follows.
        initialization: of v2 and its twin, see `ModelSize`. early_stages: before the training, of the twin alone.
        test_lengths: after training. tuned_test_lengths: after tuning. test_tokens: as many samples are tested at a
            length as this holds, within `test_samples` (fewest, most).
    """

    model: str
    hidden_size: int
    num_layers: int
    num_heads: int
    span: int
    task_fields: dict[str, Any]
    lengths: tuple[int, ...]
    batch_size: int
    fit: FitOptions
    tuned_length: int
    tuned_batch_size: int
    tuning: FitOptions
    test_lengths: tuple[int, ...]
    tuned_test_lengths: tuple[int, ...]
    test_tokens: int
    test_samples: tuple[int, int] = (16, 200)
    initialization: str = "normal"
    early_stages: tuple[EarlyStage, ...] = ()
    seed: int = 0

    @property
    def length(self) -> int:
        """The longest of training."""
        return max(self.lengths)

    def task_at(self, length: int) -> DocumentQA:
        """The task with samples of so many tokens."""
        return DocumentQA(length=length, **self.task_fields)

    def stages(self) -> list[TaskStage]:
        """Early stages, training, tuning."""
        seed, stages = self.seed * 10_000_019, []
        for number, stage in enumerate(self.early_stages):
            tasks = tuple(DocumentQA(**{**self.task_fields, **easier}) for easier in stage.tasks)
            stages.append(stage.as_stage(number, tasks, self.batch_size, seed))
        trained, tuned = tuple(map(self.task_at, self.lengths)), (self.task_at(self.tuned_length),)
        return [
            *stages,
            TaskStage("training", trained, self.batch_size, self.fit, seed),
            TaskStage("tuning", tuned, self.tuned_batch_size, self.tuning, seed + TUNING_SEED),
        ]

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        changes: dict[str, Any] = {"initialization": "fan_in"} if model == "llama" else {"early_stages": ()}
        if model in KERNELS:
            steps = max(2, round(V2_SHARE_OF_STEPS * self.fit.steps))
            changes["fit"] = replace(self.fit, learning_rate=V2_LEARNING_RATE, steps=steps)
        settings = replace(self, model=model, seed=seed, **changes)
        tokens = settings.fit.steps * self.batch_size * sum(self.lengths) // len(self.lengths)
        tokens += self.tuning.steps * self.tuned_batch_size * self.tuned_length
        return Run(f"{model}/seed {seed}", settings, float(tokens * (1.6 if model in KERNELS else 1.0)))


def _early_stages(options: FitOptions) -> tuple[EarlyStage, ...]:
    """From four names in the plainest wording to 400 in several documents.

    Among four names a model soon finds that the answer is the place behind the same name. Then come more words between
    them, more names, more documents; wordings take turns, so that none is forgotten.
    """
    plain, full, all_wordings = 0, FULL_WORDING, range(FULL_WORDING + 1)
    stages = (
        (250, [(plain, 4, 1)]),
        (1200, [(wording, 4, 1) for wording in all_wordings]),
        (500, [(wording, 8, 1) for wording in all_wordings]),
        (600, [*((wording, 16, 1) for wording in all_wordings), (full, 16, 2)]),
        (600, [(full, 64, documents) for documents in (1, 2, 3)]),
        (600, [(full, 400, documents) for documents in (1, 2, 3)]),
    )

    def easier(wording: int, known_names: int, documents: int) -> dict[str, Any]:
        length = DocumentQA(questions=4, wording=wording).length_of(documents)
        return {"questions": 4, "wording": wording, "known_names": known_names, "length": length}

    return tuple(
        EarlyStage(tuple(easier(*task) for task in tasks), replace(options, steps=steps, weight_decay=0.0), 32)
        for steps, tasks in stages
    )


_FIT = FitOptions(
    3000, 2e-3, warmup_ratio=0.05, weight_decay=0.1, betas=(0.9, 0.98), clip=1.0, scalar_learning_rate_scale=50.0
)
# Reduced: trained at up to 128 tokens (one to three documents), asked at up to eight times as many, tuned at 1,024 and
# asked at twice that.
_CPU = DocumentSettings(
    "mosaic_v2", 64, 2, 4, 16, {"questions": 4, "num_names": 400}, (64, 64, 96, 128), 16, _FIT, 1024, 2,
    replace(_FIT, steps=100, learning_rate=5e-4), test_lengths=(128, 256, 512, 1024),
    tuned_test_lengths=(128, 256, 512, 1024, 2048), test_tokens=16_384, early_stages=_early_stages(_FIT),
)  # fmt: skip
_SMOKE = replace(
    _CPU, hidden_size=16, num_heads=2, task_fields={"questions": 2, "num_names": 40}, lengths=(64,), batch_size=2,
    fit=FitOptions(2, 1e-3), tuned_length=128, tuned_batch_size=1, tuning=FitOptions(2, 1e-3), test_lengths=(64, 128),
    tuned_test_lengths=(64, 128), test_tokens=256, test_samples=(2, 2),
    early_stages=(EarlyStage(({"wording": 0, "known_names": 8, "length": 36},), FitOptions(2, 1e-3), 2),),
)  # fmt: skip
BUDGETS = {"smoke": _SMOKE, "cpu": _CPU}
SEEDS = {"smoke": 1, "cpu": 2}
plan = partial(seed_by_seed, budgets=BUDGETS, seeds=SEEDS, models=NAMES)


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train, test, tune and test; v2 each time once more with its long-term memories off."""
    settings = run.configuration
    model = build(settings).to(context.device)

    def scores(lengths: tuple[int, ...]) -> dict[str, Estimate]:
        """Length -> the share of right answers."""
        tested = (settings.test_tokens, settings.test_samples, context.device)
        return {str(n): held_out_scores(model, settings.task_at(n), n, *tested)["exact_match"] for n in lengths}

    def test(stage: str) -> dict[str, Any]:
        """The scores after a stage; none after the early ones."""
        lengths = {"training": settings.test_lengths, "tuning": settings.tuned_test_lengths}.get(stage)
        return scores_of_memories(model, partial(scores, lengths)) if lengths else {}

    return {"parameters": num_parameters(model), **train_on_tasks(model, settings.stages(), context, test)}


def build(settings: DocumentSettings) -> PreTrainedModel:
    """The untrained model."""
    vocab_size, kernel = settings.task_at(settings.length).vocab_size, KERNELS.get(settings.model)
    name, kernels = ("mosaic_v2", {"kernel": kernel}) if kernel else (settings.model, {})
    return small_model(settings, name, vocab_size=vocab_size, max_positions=16 * settings.span, **kernels)


def curves(records: Mapping[str, Record], stage: str) -> list[Curve]:
    """Right answers of every row after a stage, by length over seeds, in the order of the tables."""
    rows = []
    for model, seeds in by_model(records, NAMES).items():
        for name, scores in ((NAMES[model], "scores"), (OFF.get(model, ""), "without_long_term_memory")):
            of_seeds = [record.outcome[stage][scores] for record in seeds if scores in record.outcome[stage]]
            rows += [Curve(name, points_of(of_seeds), (len(of_seeds),))] if of_seeds else []
    return rows


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy after each stage, the paper's numbers, the settings."""
    parts = {}
    for stage, title in STAGES.items():
        parts[title] = curves_table(["model", "seeds"], curves(records, stage), length="{:,} tokens")
        lengths = LENGTHS[: max(map(len, PAPER[stage].values()))]
        cells = {name: ["fails" if n is None else f"{n:.1f}" for n in row] for name, row in PAPER[stage].items()}
        rows = [[name, *row, *["-"] * (len(lengths) - len(row))] for name, row in cells.items()]
        parts[f"{title}, paper"] = markdown(["model", *lengths], rows)

    def right(record: Record) -> dict[str, float]:
        """Right answers after training: a model learns the task or guesses."""
        return {f"{int(length):,} tokens": score[0] for length, score in record.outcome["training"]["scores"].items()}

    parts["Every training"] = trainings_table(records, NAMES, "loss", right)
    return parts | {"Settings": _settings(records.values())}


def _settings(records: Collection[Record]) -> str:
    """Here, and in section 5.2."""
    configurations = [record.configuration for record in records]
    first = configurations[0]
    task, tuned = first.task_at(first.length), first.task_at(first.tuned_length)
    steps, rates = (spread(getattr(s.fit, name) for s in configurations) for name in ("steps", "learning_rate"))
    stages = [record.outcome.items() for record in records if record.configuration.early_stages]
    early = [sum(stage["steps"] for name, stage in of_run if name.startswith("stage-")) for of_run in stages]
    parameters = spread(record.outcome["parameters"] for record in records)
    return settings_table(
        {
            "parameters": (parameters, "9.9 billion (v2 large), 8.8 billion (transformer)"),
            "layers": (first.num_layers, None),
            "width": (first.hidden_size, None),
            "heads": (first.num_heads, None),
            "trained length": (f"up to {first.length}", "4,096"),
            "tuned length": (first.tuned_length, "32,768"),
            "documents of a sample": (f"{task.num_documents} in training, {tuned.num_documents} in tuning", None),
            "questions of a sample": (task.questions, None),
            "short-term span": (first.span, 256),
            "long-term delay in training": (f"{first.span // 4} to {first.span}", "64 to 256"),
            "long-term delay in tests": (first.span // 4, 64),
            "steps": (f"{steps} in training, {first.tuning.steps:,} in tuning", None),
            **({"early steps of the twin": (spread(early), None)} if early else {}),
            "samples per step": (f"{first.batch_size} in training, {first.tuned_batch_size} in tuning", None),
            "peak learning rate": (f"{rates} in training, {first.tuning.learning_rate:g} in tuning", None),
            "documents": (f"stories about {task.people} people of their own", "SQuAD and HotpotQA paragraphs"),
        }
    )


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw one panel per stage; without long-term memories dotted."""
    first, by_name = next(iter(records.values())).configuration, styles(NAMES.values())
    by_name |= {off: {**by_name[NAMES[model]], "linestyle": ":"} for model, off in OFF.items()}
    with panels(path, 11, 5.6, columns=2, legend="shared") as axes:
        for axis, (stage, title) in zip(axes, STAGES.items(), strict=True):
            trained = first.length if stage == "training" else first.tuned_length
            rows = curves(records, stage)
            for curve in rows:
                draw_curve(axis, curve.points, curve.label, scale=100, **by_name[curve.label])
            doubling(axis, [length for curve in rows for length in curve.points])
            axis.axhline(100 / 6, color="black", linewidth=0.8, linestyle="--", label="guess")
            axis.axvline(trained, color="black", linewidth=0.8, linestyle=":")
            axis.set(ylim=(0, 102), xlabel="tokens of a sample", ylabel="right answers, %")
            axis.set_title(f"{title} at {trained:,} tokens")


EXPERIMENT = Experiment(LIBRARY["document_qa"], DocumentSettings, plan, execute, tables, plot, tuple(NAMES))
