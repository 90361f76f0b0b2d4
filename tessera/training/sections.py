"""The sections of a recipe: what there is to say about a training run, with types, defaults and rules."""

from dataclasses import dataclass, field
from typing import Any

from tessera.data.tokenizers import TokenizerSpec

FORMATS = ("text", "json_lines")
PRECISIONS = ("auto", "bf16", "fp32")
ON_NONFINITE = ("stop", "skip")
# What this library decides about the Trainer; `training.trainer` may set anything else.
OWN_TRAINER_ARGUMENTS = frozenset(
    "output_dir max_steps num_train_epochs per_device_train_batch_size per_device_eval_batch_size learning_rate "
    "gradient_accumulation_steps lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args weight_decay "
    "adam_beta1 adam_beta2 max_grad_norm bf16 fp16 torch_compile activation_checkpointing gradient_checkpointing "
    "logging_strategy logging_steps logging_first_step logging_nan_inf_filter disable_tqdm report_to eval_strategy "
    "eval_steps save_strategy save_steps save_total_limit seed data_seed resume_from_checkpoint "
    "remove_unused_columns".split()
)

Problems = list[tuple[str, str]]


@dataclass(frozen=True)
class DataSection:
    """Text and how it is cut.

    source, validation : see `tessera.data.sources.text_source`. Without `validation`, the stories and datasets use
        their validation split; files hold out the last `validation_fraction` of their tokens.
    context : tokens per sequence. begin_token, end_token : put around each document.
    document_ids : tell the model which document each token belongs to (models that accept `document_ids`).
    format : of files, text or json_lines. separator : the mark between documents of a text file.
    text_column, subset, split, validation_split : of a dataset.
    """

    source: str | list[str] = "stories"
    validation: str | list[str] | None = None
    validation_fraction: float = 0.05
    context: int = 512
    begin_token: bool = False
    end_token: bool = True
    document_ids: bool = False
    format: str = "text"
    separator: str | None = None
    text_column: str = "text"
    subset: str | None = None
    split: str = "train"
    validation_split: str = "validation"

    @property
    def text_options(self) -> dict[str, Any]:
        """The settings that `tessera.data.sources.text_source` takes."""
        names = ("text_column", "subset", "separator", "format")
        return {name: getattr(self, name) for name in names}

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule this section breaks."""
        found = []
        if self.context < 2:
            found.append(("context", f"must be at least 2 (one token to read, one to predict); got {self.context}."))
        if not 0 < self.validation_fraction < 1:
            found.append(("validation_fraction", f"must lie in (0, 1); got {self.validation_fraction}."))
        if self.format not in FORMATS:
            found.append(("format", f"must be one of {', '.join(FORMATS)}; got {self.format!r}."))
        if self.separator is not None and self.format != "text":
            found.append(("separator", f"must be left out for format {self.format}; got {self.separator!r}."))
        if self.separator == "":
            found.append(("separator", "must not be empty; got ''. Leave it out for one document per file."))
        if not self.source:
            found.append(("source", f"must name text; got {self.source!r}."))
        return found


@dataclass(frozen=True)
class TrainingSection:
    """Optimisation, precision and bookkeeping of a run.

    steps : optimizer steps. batch_size : sequences per step, over all processes and accumulated micro-batches.
    micro_batch_size : sequences per process and forward pass; None: no accumulation.
    learning_rate, min_learning_rate, warmup_steps : linear warm-up, then a cosine down to the minimum at `steps`.
    weight_decay : on matrices only. clip : largest gradient norm (0: none).
    scalar_learning_rate_scale : multiplies the learning rate of per-head scalars. scalar_learning_rate_scales : in its
        place for scalars of some names (the last part of the parameter's name, such as mix).
    precision : auto (bf16 where the hardware has it), bf16 (autocast, weights in float32) or fp32.
    gradient_checkpointing : recompute the layers' activations in the backward pass instead of keeping them; of every
        `checkpoint_layers_every` layers one is recomputed (1: all of them).
    shard : under torchrun, spread weights, gradients and optimizer state over the processes (FSDP2). Checkpoints stay
        whole: they resume on any number of processes.
    on_nonfinite : stop, or skip and count the step, when a loss or gradient is not finite.
    evaluate_every, evaluate_sequences : validation loss every so many steps on so many sequences.
    checkpoint_every, keep_checkpoints : in steps; how many to keep.
    initialize_from : a run or model folder whose weights to start from.
    trainer : further `transformers.TrainingArguments` (fsdp, fsdp_config, dataloader_num_workers, ...).
    """

    steps: int = 1000
    batch_size: int = 32
    micro_batch_size: int | None = None
    learning_rate: float = 1e-3
    min_learning_rate: float = 0.0
    warmup_steps: int = 100
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0
    scalar_learning_rate_scale: float = 1.0
    scalar_learning_rate_scales: dict[str, float] = field(default_factory=dict)
    precision: str = "auto"
    compile: bool = False
    gradient_checkpointing: bool = False
    checkpoint_layers_every: int = 1
    shard: bool = False
    on_nonfinite: str = "stop"
    log_every: int = 10
    evaluate_every: int = 100
    evaluate_sequences: int = 64
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    initialize_from: str | None = None
    trainer: dict[str, Any] = field(default_factory=dict)

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule this section breaks."""
        counts = (
            "steps batch_size checkpoint_layers_every log_every evaluate_every evaluate_sequences checkpoint_every "
            "keep_checkpoints"
        )
        found = [
            (name, f"must be a positive integer; got {getattr(self, name)}.")
            for name in counts.split()
            if getattr(self, name) < 1
        ]
        if not 0 <= self.warmup_steps <= self.steps:
            found.append(("warmup_steps", f"must lie in 0..steps ({self.steps}); got {self.warmup_steps}."))
        if self.micro_batch_size is not None and (self.micro_batch_size < 1 or self.batch_size % self.micro_batch_size):
            found.append(
                ("micro_batch_size", f"must divide batch_size ({self.batch_size}); got {self.micro_batch_size}.")
            )
        if not 0 < self.learning_rate <= 1e6:
            found.append(("learning_rate", f"must lie in (0, 1e6]; got {self.learning_rate}."))
        elif not 0 <= self.min_learning_rate <= self.learning_rate:
            found.append(
                (
                    "min_learning_rate",
                    f"must lie in 0..learning_rate ({self.learning_rate}); got {self.min_learning_rate}.",
                )
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            found.append(("betas", f"must lie in [0, 1); got {list(self.betas)}."))
        for name in ("weight_decay", "clip", "scalar_learning_rate_scale"):
            if not getattr(self, name) >= 0:
                found.append((name, f"must not be negative; got {getattr(self, name)}."))
        for name, scale in self.scalar_learning_rate_scales.items():
            if not scale >= 0:
                found.append((f"scalar_learning_rate_scales.{name}", f"must not be negative; got {scale}."))
        for name, allowed in (("precision", PRECISIONS), ("on_nonfinite", ON_NONFINITE)):
            if getattr(self, name) not in allowed:
                found.append((name, f"must be one of {', '.join(allowed)}; got {getattr(self, name)!r}."))
        return found + self._trainer_problems()

    def _trainer_problems(self) -> Problems:
        own = sorted(self.trainer.keys() & OWN_TRAINER_ARGUMENTS)
        return [
            (f"trainer.{name}", f"must be set by the recipe's own keys; got {self.trainer[name]!r}.") for name in own
        ]


@dataclass(frozen=True)
class Recipe:
    """One training run, complete: the same recipe on the same text gives the same model.

    model : `{type: memory_mosaic | transformer | <any model type of transformers>, <configuration fields>}`; the
        vocabulary size is the tokenizer's unless it is given.
    """

    name: str
    model: dict[str, Any]
    data: DataSection = field(default_factory=DataSection)
    tokenizer: TokenizerSpec = field(default_factory=TokenizerSpec)
    training: TrainingSection = field(default_factory=TrainingSection)
    seed: int = 0

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule that concerns the recipe as a whole."""
        is_name = self.name.strip() not in ("", ".", "..") and not set(self.name) & set("/\\\0\n")
        if not is_name or len(self.name.encode()) > 200:
            return [("name", f"must be a name, not a path, of at most 200 bytes; got {self.name!r}.")]
        if not isinstance(self.model.get("type"), str):
            return [("model.type", f"must name a model type, such as memory_mosaic; got {self.model.get('type')!r}.")]
        return []
