"""Checkpoints of a training, complete or absent, the same files for experiments and for runs of many processes.

`checkpoints/checkpoint-<step>` of a folder holds training.json (stages that are over, progress, step counts of the
optimizer), random.safetensors, and the tensors (`checkpoint_tensors`): model.safetensors with what loads a model
(config.json, a tokenizer) and optimizer.safetensors, or where they are sharded, all of them in `shards/`.
"""

import json
import math
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer

from tessera.base.checkpoints import FOLDER, TEMPORARY, latest_complete, prune, publish, step_of
from tessera.base.errors import TesseraError
from tessera.base.files import remove, writing
from tessera.training.checkpoint_tensors import (
    NUMBERS,
    SHARDS,
    WEIGHT,
    WEIGHTS,
    ShardWriter,
    model_tensors,
    optimizer_steps,
    optimizer_tensors,
    prefixed,
    read_tensors,
    restore_optimizer,
    restore_weights,
    write_tensors,
)
from tessera.training.distributed import SINGLE_PROCESS, Processes

RANDOM, OPTIMIZER = "random.safetensors", "optimizer.safetensors"
BEST = "best."  # what the names of the best weights begin with
LOSSES = 50  # of the last steps, whose mean is `TrainingProgress.loss`


@dataclass
class TrainingProgress:
    """How far a stage has come: steps done, mean loss of the recent ones, validations, seconds, steps left out.

    `checks` are the validations' (step, value), `best` the lowest value. Of steps since the last line of the log:
    `unlogged` losses and `step_seconds`; `gradient_norm` is the last step's.
    """

    steps: int = 0
    loss: float = math.nan
    best: float = math.inf
    best_step: int = 0
    checks: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    skipped: int = 0
    recent: deque[Tensor] = field(default_factory=lambda: deque(maxlen=LOSSES))
    unlogged: list[Tensor] = field(default_factory=list)
    step_seconds: float = 0.0
    gradient_norm: float | None = None

    def outcome(self) -> dict[str, Any]:
        """JSON-ready."""
        shown = {name: value for name, value in self.stored().items() if name != "skipped"}
        return {**shown, "seconds": round(self.seconds, 1)}

    def stored(self) -> dict[str, Any]:
        """What `read` makes the progress of again, but for the recent losses; numbers that are not finite are None."""
        names = ("steps", "loss", "best", "best_step", "checks", "seconds", "skipped")
        values = {name: getattr(self, name) for name in names}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }

    @classmethod
    def read(cls, stored: dict[str, Any], recent: list[Tensor]) -> "TrainingProgress":
        """See `stored`."""
        known = {name: value for name, value in stored.items() if value is not None}
        known["checks"] = [(step, value) for step, value in stored["checks"]]
        return cls(**known, recent=deque(recent, maxlen=LOSSES))


class Checkpoints:
    """The checkpoints of a training of `model` in `folder`, of which the `keep` latest stay.

    Args:
        resume: go on from the latest; else what the folder holds is not looked at.
        describe: puts the other files of a model into a folder. published: called when a checkpoint is complete.

    Raises:
        TesseraError: there are checkpoints, but none is complete.
    """

    def __init__(
        self,
        folder: Path,
        model: nn.Module,
        *,
        resume: bool = True,
        processes: Processes = SINGLE_PROCESS,
        keep: int = 1,
        describe: Callable[[Path], object] = lambda folder: None,
        published: Callable[[], object] = lambda: None,
    ) -> None:
        self.folder, self.model, self.processes, self.keep = folder, model, processes, keep
        self.describe, self.published = describe, published
        self.stages: list[TrainingProgress] = []  # those that are over: the next checkpoint is of the next one
        self.latest: Path | None = None
        self.passed: list[str] = []  # a line for each damaged one
        if resume:
            self.latest, self.passed = latest_complete(folder)
        self._writer, self._writing = ShardWriter(), ""
        self._read: dict[str, Any] = {"stages": [], "progress": None}  # what training.json of the latest says
        if self.latest is not None:
            self._read = json.loads((self.latest / NUMBERS).read_text(encoding="utf-8"))
        elif self.passed:
            reasons = "; ".join(self.passed)
            raise TesseraError(f"{folder}: no complete checkpoint to resume from: {reasons}. Start again: --overwrite.")

    @property
    def step(self) -> int:
        """The step of the latest checkpoint, over all stages; 0 where there is none."""
        return 0 if self.latest is None else step_of(self.latest)

    def ended(self, number: int) -> TrainingProgress | None:
        """The progress of a stage that was over when the latest checkpoint was written; None of any other."""
        if number >= len(self._read["stages"]):
            return None
        self.stages.append(TrainingProgress.read(self._read["stages"][number], []))
        return self.stages[-1]

    def restore(self, optimizer: Optimizer) -> tuple[TrainingProgress, dict[str, Tensor] | None]:
        """Bring model, optimizer and random state to where the latest checkpoint of this stage left them.

        Returns the progress and the best weights; without a checkpoint, a progress of no steps.
        """
        if self.latest is None or len(self.stages) != len(self._read["stages"]) or self._read["progress"] is None:
            return TrainingProgress(), None
        stored, self._read["progress"] = self._read["progress"], None
        restore_weights(self.latest, self.model)
        restore_optimizer(self.latest, self.model, optimizer, self._read["optimizer"])
        best = None
        if stored["best"] is not None:
            best = {name: torch.zeros_like(tensor) for name, tensor in model_tensors(self.model).items()}
            read_tensors(self.latest, prefixed(BEST, best))
        device = _device(self.model)
        random = load_file(self.latest / RANDOM)
        torch.set_rng_state(random["cpu"])
        if "cuda" in random and device.type == "cuda":
            torch.cuda.set_rng_state(random["cuda"], device)
        return TrainingProgress.read(stored, list(torch.tensor(self._read["recent"], device=device))), best

    def save(self, optimizer: Optimizer, progress: TrainingProgress, best: dict[str, Tensor] | None) -> None:
        """Write a checkpoint: the first process, or where the model is sharded, all of them in the background.

        Raises `TesseraError`: it cannot be written.
        """
        self.finish()
        is_sharded = isinstance(self.model, FSDPModule)
        if not (is_sharded or self.processes.is_first):
            return
        name = f"checkpoint-{sum(stage.steps for stage in [*self.stages, progress])}"
        draft = self.folder / FOLDER / TEMPORARY / name
        others = optimizer_tensors(self.model, optimizer) | prefixed(BEST, best or {})
        with self._writable(name):
            if self.processes.is_first:
                remove(draft.parent)
                draft.mkdir(parents=True)
                self.describe(draft)
                self._write_numbers(draft, optimizer, progress)
            if is_sharded:
                self.processes.wait()
                tensors = prefixed(WEIGHT, model_tensors(self.model)) | others
                self._writer.start(draft / SHARDS, tensors, partial(self._publish, name))
                self._writing = name
            else:
                write_tensors(draft / WEIGHTS, model_tensors(self.model))
                write_tensors(draft / OPTIMIZER, others)
                self._publish(name)

    def finish(self) -> None:
        """Wait until no checkpoint is being written."""
        name, self._writing = self._writing, ""
        if name:
            with self._writable(name):
                self._writer.finish()
            self.processes.wait()

    def _write_numbers(self, draft: Path, optimizer: Optimizer, progress: TrainingProgress) -> None:
        recent = torch.stack(list(progress.recent)).tolist() if progress.recent else []
        numbers = {
            "stages": [stage.stored() for stage in self.stages],
            "progress": progress.stored(),
            "recent": recent,
            "optimizer": optimizer_steps(self.model, optimizer),
        }
        (draft / NUMBERS).write_text(json.dumps(numbers) + "\n", encoding="utf-8")
        states = {"cpu": torch.get_rng_state()}
        if _device(self.model).type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(_device(self.model))
        save_file(states, draft / RANDOM)

    def _writable(self, name: str) -> AbstractContextManager[None]:
        return writing(self.folder / FOLDER / name, "checkpoint", "Earlier ones are complete: --resume goes on.")

    def _publish(self, name: str) -> None:
        """Give a complete draft its name."""
        if self.processes.is_first:
            publish(self.folder / FOLDER / TEMPORARY / name, self.folder / FOLDER / name)
            self.latest = self.folder / FOLDER / name
            remove(self.folder / FOLDER / TEMPORARY)
            prune(self.latest, self.keep)
            self.published()


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
