"""What each budget of document questions trains, tunes and tests."""

from dataclasses import dataclass, replace
from typing import Any

from tessera.papers.document_qa import DocumentQA
from tessera.papers.document_qa.published import NAMES
from tessera.papers.document_qa.task import FULL_WORDING
from tessera.papers.experiment import Run
from tessera.papers.task_stage import EarlyStage, TaskStage
from tessera.training.fit import FitOptions

MODELS = tuple(NAMES)
TUNING_SEED = 500_000  # apart from the seeds of the training's steps
# v2's key extractors start with small weights, which larger ones or a higher rate overrun. It learns the task in a few
# hundred steps; its twin needs thousands, from larger weights, and easier forms of the task first. ALiBi and the LSTM
# are trained as long as the twin, without these forms.
V2_LEARNING_RATE, V2_SHARE_OF_STEPS = 1e-3, 0.15


@dataclass(frozen=True)
class DocumentSettings:
    """One training, one tuning, and the tests after each.

    Attributes:
        model: one of `MODELS`. hidden_size, num_layers, num_heads: of the transformer whose number of parameters every
            model has. span: the short-term memory's; the long-term delay is a quarter of it in tests, and from there to
            the span in training and tuning.
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
        seed = self.seed * 10_000_019
        early = [
            stage.as_stage(
                number,
                tuple(DocumentQA(**{**self.task_fields, **easier}) for easier in stage.tasks),
                self.batch_size,
                seed,
            )
            for number, stage in enumerate(self.early_stages)
        ]
        trained = tuple(map(self.task_at, self.lengths))
        tuned = (self.task_at(self.tuned_length),)
        return [
            *early,
            TaskStage("training", trained, self.batch_size, self.fit, seed),
            TaskStage("tuning", tuned, self.tuned_batch_size, self.tuning, seed + TUNING_SEED),
        ]

    def num_tests(self, length: int) -> int:
        """Samples to test at a length."""
        fewest, most = self.test_samples
        return max(fewest, min(most, self.test_tokens // length))

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        fit, initialization = self.fit, "fan_in" if model == "llama" else "normal"
        if model == "mosaic_v2":
            steps = max(2, round(V2_SHARE_OF_STEPS * fit.steps))
            fit = replace(fit, learning_rate=V2_LEARNING_RATE, steps=steps)
        early = self.early_stages if model == "llama" else ()
        settings = replace(self, model=model, seed=seed, fit=fit, initialization=initialization, early_stages=early)
        tokens = settings.fit.steps * self.batch_size * sum(self.lengths) // len(self.lengths)
        tokens += self.tuning.steps * self.tuned_batch_size * self.tuned_length
        return Run(f"{model}/seed {seed}", settings, float(tokens * (1.6 if model == "mosaic_v2" else 1.0)))


# By wording: tokens of four questions and of one, two or three documents about four people.
EARLY_LENGTHS = ((30, 44, 58), (38, 56, 74), (46, 68, 90), (62, 88, 114), (62, 88, 114))


def _early_stages(options: FitOptions) -> tuple[EarlyStage, ...]:
    """From four names in the plainest wording to 400 in several documents.

    Among four names a model soon finds that the answer is the place behind the same name. Then come more words between
    them, more names, more documents; wordings take turns, so that none is forgotten.
    """
    fit = replace(options, weight_decay=0.0)
    plain, full, all_wordings = 0, FULL_WORDING, range(FULL_WORDING + 1)
    stages = (
        (250, [(plain, 4, 1)]),
        (1200, [(wording, 4, 1) for wording in all_wordings]),
        (500, [(wording, 8, 1) for wording in all_wordings]),
        (600, [*((wording, 16, 1) for wording in all_wordings), (full, 16, 2)]),
        (600, [(full, 64, documents) for documents in (1, 2, 3)]),
        (600, [(full, 400, documents) for documents in (1, 2, 3)]),
    )
    return tuple(
        EarlyStage(tuple(_easier(*task) for task in tasks), replace(fit, steps=steps), batch_size=32)
        for steps, tasks in stages
    )


def _easier(wording: int, known_names: int, documents: int) -> dict[str, Any]:
    length = EARLY_LENGTHS[wording][documents - 1]
    return {"questions": 4, "wording": wording, "known_names": known_names, "length": length}


_FIT = FitOptions(
    3000, 2e-3, warmup_ratio=0.05, weight_decay=0.1, betas=(0.9, 0.98), clip=1.0, scalar_learning_rate_scale=50.0
)
# Reduced: trained at up to 128 tokens (one to three documents), asked at up to eight times as many, tuned at 1,024 and
# asked at twice that.
CPU = DocumentSettings(
    "mosaic_v2", 64, 2, 4, 16, {"questions": 4, "num_names": 400}, (64, 64, 96, 128), 16, _FIT, 1024, 2,
    FitOptions(100, 5e-4, warmup_ratio=0.05, weight_decay=0.1, betas=(0.9, 0.98), clip=1.0,
               scalar_learning_rate_scale=50.0),
    test_lengths=(128, 256, 512, 1024), tuned_test_lengths=(128, 256, 512, 1024, 2048), test_tokens=16_384,
    early_stages=_early_stages(_FIT),
)  # fmt: skip
SMOKE = replace(
    CPU, hidden_size=16, num_heads=2, task_fields={"questions": 2, "num_names": 40}, lengths=(64,), batch_size=2,
    fit=FitOptions(2, 1e-3), tuned_length=128, tuned_batch_size=1, tuning=FitOptions(2, 1e-3), test_lengths=(64, 128),
    tuned_test_lengths=(64, 128), test_tokens=256, test_samples=(2, 2),
    early_stages=(EarlyStage(({"wording": 0, "known_names": 8, "length": 36},), FitOptions(2, 1e-3), 2),),
)  # fmt: skip
# The lengths and windows of a larger model: 512 tokens as published proportions have it, for a GPU.
FULL = replace(
    CPU, hidden_size=512, num_layers=8, num_heads=8, span=32, task_fields={"questions": 8, "num_names": 4900},
    lengths=(128, 256, 512), batch_size=64, fit=replace(CPU.fit, steps=20_000), tuned_length=4096, tuned_batch_size=8,
    tuning=replace(CPU.tuning, steps=200), test_lengths=(512, 1024, 2048, 4096),
    tuned_test_lengths=(512, 1024, 2048, 4096, 8192), test_tokens=1_000_000, test_samples=(100, 1000),
)  # fmt: skip
BUDGETS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
SEEDS = {"smoke": 1, "cpu": 2, "full": 3}
