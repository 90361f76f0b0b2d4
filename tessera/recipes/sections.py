"""The sections of a recipe: what there is to say about a training run, with types, defaults and rules."""

from dataclasses import dataclass, field
from typing import Any

import torch

from tessera.base.dataclass_io import MEANING, Problems, broken, option, shown
from tessera.data.tokenizers import TokenizerSpec

FORMATS = ("text", "json_lines")
PRECISIONS = ("auto", "bf16", "fp32")
ON_NONFINITE = ("stop", "skip")
REPORTERS = ("tensorboard", "wandb")
MOST_SEQUENCES = 1_000_000  # of a batch, whose sequences are in memory together
# What a `DataSection` says of text alone, and of a task alone.
OF_TEXT = "source validation validation_fraction begin_token end_token document_ids format separator text_column "
OF_TEXT += "subset split validation_split"
OF_TASK = "questions early_questions"


@dataclass(frozen=True)
class DataSection:
    """Text and how it is cut."""

    source: str | list[str] = option(
        "stories",
        "stories or novels (books that come with the library); a file, a folder or a pattern, or a list of them; a "
        "Hugging Face dataset as owner/name or hf://NAME; a source of your own by its name (--import)",
    )
    validation: str | list[str] | None = option(
        None,
        "text to validate on, named as `source` is; null: the validation split of stories and datasets, else the last "
        "part of the text",
    )
    validation_fraction: float = option(
        0.05, "the share of the tokens of files that is held out where `validation` is null"
    )
    context: int = option(512, "how many tokens a sequence has")
    begin_token: bool = option(False, "put the tokenizer's first token before each document")
    end_token: bool = option(True, "put the tokenizer's end token after each document")
    document_ids: bool = option(False, "tell the model which document each token belongs to (models that accept it)")
    format: str = option("text", "how files are written: text, or json_lines (one JSON value in each line)")
    separator: str | None = option(None, "the mark between documents of a text file; null: a file is a document")
    text_column: str = option("text", "column of a dataset, or key of json_lines, that holds the text")
    subset: str | None = option(None, "configuration of a dataset")
    split: str = option("train", "split of a dataset to train on")
    validation_split: str = option("validation", "split of a dataset to validate on")
    task: dict[str, Any] | None = option(
        None,
        "train on questions about texts, in place of text: `name` of a task, such as babilong or questions, and its "
        "settings. The loss counts the answers alone; training.curriculum must say the lengths of the texts",
    )
    questions: int = option(4, "with `task`, how many questions are asked about each text, which is read once for all")
    early_questions: int = option(
        0,
        "with `task`, how many questions are also asked after each segment, about what was read so far. They teach "
        "more for each text read, and each costs a tenth of it. Models that read no segments are not asked them",
    )

    @property
    def text_options(self) -> dict[str, Any]:
        """The settings that `tessera.data.sources.text_source` takes."""
        return {name: getattr(self, name) for name in ("text_column", "subset", "separator", "format")}

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule this section breaks."""
        problems = broken(
            self,
            (self.early_questions >= 0, "early_questions", "not be negative"),
            (self.questions >= 1, "questions", "be a positive integer"),
            (self.context >= 2, "context", "be at least 2 (one token to read, one to predict)"),
            (0 < self.validation_fraction < 1, "validation_fraction", "lie in (0, 1)"),
            (self.format in FORMATS, "format", f"be one of {', '.join(FORMATS)}"),
            (self.separator is None or self.format == "text", "separator", f"be left out for format {self.format}"),
            (bool(self.source), "source", "name text"),
        )
        if self.separator == "":
            problems.append(("separator", "must not be empty; got ''. Leave it out for one document per file."))
        if self.task is not None and not isinstance(self.task.get("name"), str):
            problems.append(("task.name", f"must name a task, such as babilong; got {self.task.get('name')!r}."))
        return problems


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

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule this stage breaks."""
        return broken(
            self,
            *((getattr(self, name) >= 1, name, "be at least 1") for name in ("length", "steps", "min_length")),
            (self.min_length <= self.length, "min_length", f"be at most length ({self.length})"),
            *((getattr(self, name) > 0, name, "be positive") for name in ("target", "learning_rate")),
        )

    @property
    def mean_length(self) -> float:
        """The mean number of segments of its steps."""
        return (self.min_length + self.length) / 2

    @property
    def cost(self) -> float:
        """What all its steps cost, when one costs in proportion to its length."""
        return self.steps * self.mean_length

    def length_at(self, step: int, seed: int) -> int:
        """The length of a step's batch: a function of the step, whatever was drawn before."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        return int(torch.randint(self.min_length, self.length + 1, (), generator=generator))


@dataclass(frozen=True)
class TrainingSection:
    """Optimisation, precision and bookkeeping of a run."""

    steps: int = option(1000, "how many steps the optimizer takes")
    batch_size: int = option(32, "sequences of one step, over all processes and micro-batches together")
    micro_batch_size: int | None = option(None, "sequences that a process reads at once; null: all of its share")
    learning_rate: float = option(1e-3, "the largest learning rate, which the warm-up leads to")
    min_learning_rate: float = option(
        0.0, "the learning rate to which a cosine leads down; the last step is one short of it"
    )
    warmup_steps: int = option(
        100, "steps in which the learning rate rises evenly to the largest; where there are fewer, a tenth of them"
    )
    betas: tuple[float, float] = option((0.9, 0.95), "how slowly AdamW forgets gradients, and their squares")
    weight_decay: float = option(0.1, "AdamW's weight decay; it acts on matrices alone, not on Mamba's A_log")
    clip: float = option(1.0, "gradients with a larger norm are scaled down to it; 0: no limit")
    scalar_learning_rate_scale: float = option(1.0, "multiplies the learning rate of the scalars that each head has")
    scalar_learning_rate_scales: dict[str, float] = option(
        {}, "the same for some of these scalars, by the last part of the parameter's name, such as mix"
    )
    precision: str = option(
        "auto",
        "number format of the products: bf16 (weights stay in float32), fp32, or auto, which is bf16 where the "
        "hardware multiplies in it",
    )
    compile: bool = option(False, "compile the model by torch.compile: a slow beginning, then faster steps")
    gradient_checkpointing: bool = option(
        False, "save memory: compute the layers' activations again in the backward pass"
    )
    checkpoint_layers_every: int = option(1, "with gradient_checkpointing, compute one of so many layers again")
    shard: bool = option(
        False,
        "under torchrun, spread weights, gradients and optimizer state over the processes (FSDP2); checkpoints resume "
        "on any number of processes",
    )
    on_nonfinite: str = option("stop", "when a loss or gradient is not finite: stop, or skip the step and count it")
    log_every: int = option(10, "write a line of metrics.jsonl after so many steps")
    evaluate_every: int = option(100, "validate after so many steps")
    evaluate_sequences: int = option(64, "sequences that a validation reads")
    checkpoint_every: int = option(500, "write a checkpoint after so many steps")
    keep_checkpoints: int = option(2, "how many checkpoints stay; older ones are deleted")
    report_to: list[str] = option(
        [], "also send metrics to tensorboard (event files in the run's folder) or wandb, which must be installed"
    )
    initialize_from: str | None = option(None, "folder of a run or model whose weights the training starts from")
    curriculum: list[Stage] = option(
        [],
        "stages one after the other, in place of `steps` and `learning_rate`: each has `length` (segments of "
        "model.segment_size tokens; of models that read no segments, of data.context), `min_length` (each step draws "
        "its number between them), `steps`, `learning_rate`, `target` (the score at which the stage ends), `settings` "
        "of the task (of babilong, for example, `from_memory`: the questions come in a segment of their own), and "
        "`model` (settings of the model's configuration that hold from this stage on: of ARMT, RMT and PRMT "
        "`backprop_segments`, of ARMT also `gate_penalty` and `strength_threshold`); it begins with the best weights "
        "of the one before",
    )
    patience: int | None = option(None, "end a stage after so many validations that were not better; null: never")
    freeze_base: bool = option(False, "train the memory alone and keep the weights of the base (ARMT, RMT and PRMT)")

    @property
    def warmup(self) -> int:
        """Steps of the warm-up: `warmup_steps`, or a tenth of `steps` where these are fewer."""
        return self.warmup_steps if self.warmup_steps <= self.steps else self.steps // 10

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule this section breaks."""
        counts = "steps checkpoint_layers_every log_every evaluate_every evaluate_sequences checkpoint_every "
        counts += "keep_checkpoints"
        micro, rate, report_to = self.micro_batch_size, self.learning_rate, self.report_to
        is_split = micro is None or (micro >= 1 and self.batch_size % micro == 0)
        names_each_once = set(report_to) <= set(REPORTERS) and len(set(report_to)) == len(report_to)
        is_rate = 0 < rate <= 1e6
        is_lower = not is_rate or 0 <= self.min_learning_rate <= rate
        problems = broken(
            self,
            *((getattr(self, name) >= 1, name, "be a positive integer") for name in counts.split()),
            (1 <= self.batch_size <= MOST_SEQUENCES, "batch_size", f"lie in [1, {MOST_SEQUENCES:,}]"),
            (self.warmup_steps >= 0, "warmup_steps", "not be negative"),
            (is_split, "micro_batch_size", f"divide batch_size ({self.batch_size})"),
            (is_rate, "learning_rate", "lie in (0, 1e6]"),
            (is_lower, "min_learning_rate", f"lie in 0..learning_rate ({rate})"),
            (all(0 <= beta < 1 for beta in self.betas), "betas", "lie in [0, 1)"),
            (self.weight_decay >= 0, "weight_decay", "not be negative"),
            (self.clip >= 0, "clip", "not be negative"),
            (self.scalar_learning_rate_scale >= 0, "scalar_learning_rate_scale", "not be negative"),
            (self.patience is None or self.patience >= 1, "patience", "be a positive integer"),
            (self.precision in PRECISIONS, "precision", f"be one of {', '.join(PRECISIONS)}"),
            (self.on_nonfinite in ON_NONFINITE, "on_nonfinite", f"be one of {', '.join(ON_NONFINITE)}"),
            (names_each_once, "report_to", f"list {', '.join(REPORTERS)}, or some of them"),
        )
        for name, scale in self.scalar_learning_rate_scales.items():
            if not scale >= 0:
                problems.append((f"scalar_learning_rate_scales.{name}", f"must not be negative; got {scale}."))
        return problems + self._curriculum_problems()

    @property
    def validation_in_steps(self) -> float:
        """How many steps take as long as a validation: forward passes are a third of the arithmetic."""
        return self.evaluate_sequences / self.batch_size / 3

    @property
    def curriculum_steps(self) -> int:
        """The most that all stages take together."""
        return sum(stage.steps for stage in self.curriculum)

    @property
    def stages(self) -> list[Stage]:
        """Those of the curriculum; without one, the whole training is a stage of whole contexts."""
        return self.curriculum or [Stage(length=1, steps=self.steps, learning_rate=self.learning_rate)]

    def _curriculum_problems(self) -> Problems:
        """Beside a curriculum: what its stages say."""
        if not self.curriculum:
            return [] if self.patience is None else [("patience", "must be null without a curriculum.")]
        defaults = TrainingSection()
        own = {"steps": self.curriculum_steps}
        names = "steps learning_rate min_learning_rate warmup_steps"
        return [
            (name, f"must be left out beside a curriculum; got {shown(getattr(self, name))}.")
            for name in names.split()
            if getattr(self, name) not in (getattr(defaults, name), own.get(name, getattr(defaults, name)))
        ]


@dataclass(frozen=True)
class Recipe:
    """One training run, complete: the same recipe on the same text gives the same model."""

    name: str = field(
        metadata={MEANING: "name of the run, and of its folder in runs/; by default that of the recipe file"}
    )
    model: dict[str, Any] = field(
        metadata={
            MEANING: "`type`: memory_mosaic, transformer, or any model type of transformers; beside it the fields of "
            "its configuration. The vocabulary size is the tokenizer's unless it is given"
        }
    )
    data: DataSection = option(DataSection(), "the text, and how it is cut")
    tokenizer: TokenizerSpec = option(TokenizerSpec(), "how the text becomes tokens")
    training: TrainingSection = option(TrainingSection(), "how the model learns, and what is written down")
    seed: int = option(0, "decides the initial weights and the order of the text")

    def problems(self) -> Problems:
        """(field, what is wrong) for every rule that concerns the recipe as a whole."""
        problems: Problems = []
        is_name = self.name.strip() not in ("", ".", "..") and not set(self.name) & set("/\\\0\n")
        written = self.name.encode(errors="replace")  # half of a surrogate pair as a question mark
        if not is_name or len(written) > 200 or written.decode() != self.name:
            problems.append(("name", f"must be a name, not a path, of at most 200 bytes; got {self.name!r}."))
        if not 0 <= self.seed < 2**32:
            problems.append(("seed", f"must lie in 0..2^32 - 1; got {shown(self.seed)}."))
        unused, where = (OF_TASK, "without") if self.data.task is None else (OF_TEXT, "beside")
        for key in unused.split():
            if (value := getattr(self.data, key)) != getattr(DataSection(), key):
                problems.append((f"data.{key}", f"must be left out {where} data.task; got {shown(value)}."))
        if self.data.task is not None:
            if not self.training.curriculum:
                problems.append(("training.curriculum", "must name the stages of a task's training; got none."))
            if self.tokenizer != TokenizerSpec():
                problems.append(("tokenizer", "must be left out with data.task, which has its own; got another."))
            if self.training.shard:  # a process without a row of a batch would leave the others waiting for its shards
                problems.append(("training.shard", "must be false with data.task; got true."))
        stages = {f"training.curriculum[{i}].model": stage.model for i, stage in enumerate(self.training.curriculum)}
        for key, settings in {"model": self.model, **stages}.items():
            if self.data.early_questions and settings.get("segment_end_ids"):
                ends = shown(settings["segment_end_ids"])
                message = f"must be left out beside data.early_questions, of segments of one length; got {ends}."
                problems.append((f"{key}.segment_end_ids", message))
        if not isinstance(self.model.get("type"), str):
            got = repr(self.model.get("type"))
            problems.append(("model.type", f"must name a model type, such as memory_mosaic; got {got}."))
        return problems


@dataclass(frozen=True)
class Curriculum:
    """Stages in their order, as experiments store them."""

    stages: tuple[Stage, ...]
