"""A curriculum: stages of growing length. Each starts from the best weights of the last and ends at its target."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tessera.base.dataclass_io import from_json
from tessera.base.errors import expect
from tessera.base.yaml_files import read_yaml
from tessera.training.distributed import ALONE, Processes
from tessera.training.fit import FitOptions, Report, fit, unreported
from tessera.training.fit_checkpoint import Fit


@dataclass(frozen=True)
class Stage:
    """Train on lengths of `min_length` to `length` (segments, pairs: whatever the task counts), drawn anew each step.

    Attributes:
        steps: at most. target: the score, at most 1, at which the stage ends; above 1 it takes all its steps.
        learning_rate: its peak. settings: of the task in this stage, such as a key size.
        model: settings of the model's configuration that hold from this stage on, see
            `tessera.models.adjusting.adjust_model`.
    """

    length: int
    steps: int
    min_length: int = 1
    target: float = 1.0
    learning_rate: float = 1e-3
    settings: dict = field(default_factory=dict)
    model: dict = field(default_factory=dict)

    def problems(self) -> list[tuple[str, str]]:
        """(field, what is wrong) for every rule this stage breaks."""
        invalid = []
        for name in ("length", "steps", "min_length"):
            if getattr(self, name) < 1:
                invalid.append((name, f"must be at least 1; got {getattr(self, name)}."))
        if self.min_length > self.length:
            invalid.append(("min_length", f"must be at most length ({self.length}); got {self.min_length}."))
        for name in ("target", "learning_rate"):
            if not getattr(self, name) > 0:
                invalid.append((name, f"must be positive; got {getattr(self, name)}."))
        return invalid

    @property
    def mean_length(self) -> float:
        """Of its steps."""
        return (self.min_length + self.length) / 2

    def length_at(self, step: int, seed: int) -> int:
        """The length of a step's batch: a function of the step, whatever was drawn before."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return int(torch.randint(self.min_length, self.length + 1, (), generator=generator))


@dataclass(frozen=True)
class Curriculum:
    """Stages in their order. As YAML: `stages:` and a list of mappings with the fields of `Stage`."""

    stages: tuple[Stage, ...]

    @classmethod
    def from_dict(cls, mapping: Any, where: str = "curriculum") -> "Curriculum":
        """Read plain data.

        Raises:
            TesseraError: one line per problem: unknown or missing keys, wrong types, impossible values.
        """
        has_stages = isinstance(mapping, dict) and list(mapping) == ["stages"] and isinstance(mapping["stages"], list)
        expect(has_stages and mapping["stages"], where, "file", "hold `stages:` and a list of them", repr(mapping)[:60])
        return from_json(cls, mapping, where)

    @classmethod
    def read(cls, path: str | Path) -> "Curriculum":
        """From a YAML file. Raises `TesseraError` if it is none, or not a curriculum."""
        path = Path(path)
        return cls.from_dict(read_yaml(path), path.name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` inverts it."""
        return {"stages": [asdict(stage) for stage in self.stages]}


def train_stages(
    model: nn.Module,
    curriculum: Curriculum,
    options: FitOptions,
    folder: Path,
    loss_at: Callable[[Stage, int, int], Tensor],
    score: Callable[[Stage], float],
    report: Report = unreported,
    observe: Callable[[Stage, int, Fit, float], None] = lambda stage, number, progress, learning_rate: None,
    is_stopped: Callable[[], bool] = lambda: False,
    begin: Callable[[Stage], None] = lambda stage: None,
    processes: Processes = ALONE,
) -> list[dict[str, Any]]:
    """Train `model` in place, one `fit` per stage; returns one JSON-ready record per stage.

    Each stage starts from the weights with the best `score(stage)` (at most 1, higher is better) of the one before.

    Args:
        options: what all stages share; `steps` and `learning_rate` are the stage's.
        loss_at: the loss of (stage, its number, step); it must depend on these and the model alone, as `fit` asks.
        report: hears the share of all stages, where a step costs in proportion to its length.
        observe: sees (stage, its number, progress, learning rate), see `fit`. is_stopped: see `fit`.
        begin: called before each stage, also before one whose checkpoint says that it is done.
        processes: see `fit`.
    """
    records: list[dict[str, Any]] = []
    done, total = 0.0, sum(stage.steps * stage.mean_length for stage in curriculum.stages)
    for number, stage in enumerate(curriculum.stages):
        begin(stage)
        progress = fit(
            model,
            partial(loss_at, stage, number),
            replace(options, steps=stage.steps, learning_rate=stage.learning_rate),
            folder,
            report=_part(report, done / total, stage.steps * stage.mean_length / total),
            validate=partial(_missing_score, score, stage),
            name=f"stage-{number}",
            target=1.0 - stage.target + 1e-9,
            observe=partial(observe, stage, number),
            is_stopped=is_stopped,
            processes=processes,
        )
        outcome = progress.outcome()
        records.append({**asdict(stage), **{key: outcome[key] for key in ("loss", "best_step", "seconds")}})
        records[-1] |= {"steps_done": progress.steps, "best": 1.0 - progress.best, "checks": _scores(progress.checks)}
        done += stage.steps * stage.mean_length
    return records


def _missing_score(score: Callable[[Stage], float], stage: Stage) -> float:
    return 1.0 - score(stage)


def _part(report: Report, before: float, part: float) -> Report:
    return lambda share, note: report(before + part * share, note)


def _scores(checks: list[tuple[int, float]] | None) -> list[tuple[int, float]]:
    return [(step, round(1.0 - value, 6)) for step, value in checks or []]
