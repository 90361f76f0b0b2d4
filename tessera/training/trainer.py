"""The transformers `Trainer` with this library's optimizer, order of sequences, metrics and checkpoints."""

import shutil
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_callback import PrinterCallback

from tessera.base.checkpoints import FOLDER, TEMPORARY, latest_complete, prune, publish
from tessera.base.files import remove, writing
from tessera.base.precision import autocast
from tessera.data.windows import TrainingWindows, ValidationWindows, stacked
from tessera.evaluation.loss import LossByPosition, bits_per_byte, loss_by_position
from tessera.recipes.sections import Recipe
from tessera.training.callbacks import NonFiniteGuard, ProgressBar, Schedule, StepClock
from tessera.training.metrics import MetricsFile
from tessera.training.optimizer import make_optimizer, make_scheduler
from tessera.training.overwrite import discard_replaced
from tessera.training.sharded_checkpoint import is_sharded, read_optimizer, read_weights
from tessera.training.signals import Interruption
from tessera.training.time_estimate import Expectation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast, TrainerControl, TrainingArguments

PICKLED_ARGUMENTS = "training_args.bin"


class RecipeTrainer(Trainer):
    """Trains `model` as `recipe` says, in folder `run`.

    The windows' own order is the order of training. Metrics go to `run/metrics.jsonl`, complete checkpoints to
    `run/checkpoints/checkpoint-<step>`.
    """

    optimizer: Any  # None before training, then wrapped by accelerate, as is the next
    lr_scheduler: Any
    control: "TrainerControl"

    def __init__(
        self,
        model: "PreTrainedModel",
        recipe: Recipe,
        run: Path,
        arguments: "TrainingArguments",
        tokenizer: "PreTrainedTokenizerFast",
        training: TrainingWindows,
        validation: ValidationWindows,
        progress: bool = True,
    ) -> None:
        self.recipe, self.run, self.validation = recipe, run, validation
        self.metrics = MetricsFile(run / "metrics.jsonl")
        self.clock, self.progress = StepClock(), ProgressBar(recipe.name, progress)
        self.guard, self.interruption = NonFiniteGuard(recipe.training.on_nonfinite), Interruption()
        expectation = Expectation(recipe, len(validation), progress)
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=training,
            data_collator=stacked,
            processing_class=tokenizer,
            callbacks=[
                Schedule(recipe.training),
                expectation,
                self.clock,
                self.progress,
                self.guard,
                self.interruption,
            ],
        )
        self.remove_callback(PrinterCallback)
        self.guard.all_finite = self._all_processes
        if arguments.world_size > 1:
            self.interruption.any_process = lambda requested: not self._all_processes(not requested)
        self.guard.last_checkpoint = lambda: latest_complete(run)[0]

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """See `Trainer`."""
        if self.optimizer is None:
            self.optimizer = make_optimizer(self.model if model is None else model, self.recipe.training)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """See `Trainer`."""
        if self.lr_scheduler is None:
            self.lr_scheduler = make_scheduler(optimizer or self.optimizer, self.recipe.training)
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset if train_dataset is None else train_dataset)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Write a line of metrics and update the progress bar."""
        if "loss" in logs and self.is_world_process_zero():
            seconds, steps = self.clock.take()
            per_step = self.recipe.training.batch_size * self.recipe.data.context
            record = {
                "step": self.state.global_step,
                "loss": logs["loss"],
                "learning_rate": logs["learning_rate"],
                "gradient_norm": logs.get("grad_norm"),
                "tokens": self.state.global_step * per_step,
                "tokens_per_second": round(steps * per_step / seconds, 1) if seconds else None,
                "skipped_steps": self.guard.skipped,
            }
            self.metrics.append(record)
            self.progress.note(
                loss=f"loss {logs['loss']:.3f}", speed=f"{record['tokens_per_second'] or 0:,.0f} tokens/s"
            )
            logs = {**logs, "tokens": record["tokens"], "tokens_per_second": record["tokens_per_second"] or 0.0}
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Validation loss over all processes, as a line of metrics."""
        result = self._validation_loss()
        record = {
            "step": self.state.global_step,
            "validation_loss": result.mean,
            "validation_bits_per_byte": bits_per_byte(result.mean, self.validation.split.tokens_per_byte),
        }
        if self.is_world_process_zero():
            self.metrics.append(record)
            self.progress.note(validation=f"validation {result.mean:.3f}")
        logs = {"eval_loss": result.mean, "eval_bits_per_byte": record["validation_bits_per_byte"]}
        self.control = self.callback_handler.on_log(self.args, self.state, self.control, logs)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logs)
        return logs

    def _validation_loss(self) -> LossByPosition:
        precision = "bf16" if self.args.bf16 else "fp32"
        part = loss_by_position(
            self.model,
            self.validation,
            self.args.per_device_eval_batch_size,
            context=partial(autocast, precision, self.args.device.type),
            rank=self.args.process_index,
            world_size=self.args.world_size,
        )
        sums = torch.stack([part.total, part.count]).to(self.args.device)
        return LossByPosition(*self.accelerator.reduce(sums, "sum").cpu())

    def _all_processes(self, condition: bool) -> bool:
        failures = torch.tensor(0.0 if condition else 1.0, device=self.args.device)
        return float(self.accelerator.reduce(failures, "sum")) == 0.0

    def _get_output_dir(self, trial: Any = None) -> str:
        return str(self.run / FOLDER / TEMPORARY)

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        """Let the Trainer write into a temporary folder, then give what is complete its name."""
        name = f"checkpoint-{self.state.global_step}"
        try:
            with self._writing_checkpoint(name):
                self._draft_checkpoint(model, trial)
                self._publish_checkpoint(name)
        finally:
            self._remove_draft()
        self.accelerator.wait_for_everyone()

    def finish_checkpoint(self) -> None:
        """Wait until no checkpoint is being written."""

    def _writing_checkpoint(self, name: str) -> AbstractContextManager[None]:
        return writing(self.run / FOLDER / name, "checkpoint", "Earlier ones are complete: --resume goes on.")

    def _draft_checkpoint(self, model: Any, trial: Any) -> None:
        """What the Trainer writes, in the temporary folder."""
        self.guard.require_finite_weights(self.model, self.state.global_step)
        if self.args.should_save:
            remove(self.run / FOLDER / TEMPORARY)
        self.accelerator.wait_for_everyone()
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()

    def _publish_checkpoint(self, name: str) -> None:
        """Give a complete draft its name."""
        if self.args.should_save:
            draft = self.run / FOLDER / TEMPORARY / name
            (draft / PICKLED_ARGUMENTS).unlink(missing_ok=True)
            publish(draft, self.run / FOLDER / name)
            prune(self.run, self.recipe.training.keep_checkpoints)
            discard_replaced(self.run)

    def _remove_draft(self) -> None:
        if self.args.should_save:
            shutil.rmtree(self.run / FOLDER / TEMPORARY, ignore_errors=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if is_sharded(Path(resume_from_checkpoint)):
            read_weights(Path(resume_from_checkpoint), self.model)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not is_sharded(Path(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        read_optimizer(Path(checkpoint), self.model, getattr(self.optimizer, "optimizer", self.optimizer))
        scheduler = torch.load(Path(checkpoint) / SCHEDULER_NAME, map_location="cpu", weights_only=True)
        self.lr_scheduler.load_state_dict(scheduler)
