"""What came out of a run, and README.md beside its weights: the card of a saved model, with what the run knows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import portable
from tessera.models.saving.beside_weights import CARD, render_card
from tessera.recipes.sections import Recipe

MARK = "<!-- written by tessera train; a README.md without this line is left alone -->"
RECORDS = "Every setting is in `recipe.yaml`; versions, hardware and the command are in `run.json`."


@dataclass(frozen=True)
class RunSummary:
    """What came out of a run. Losses in nats per token; speed is the median over the log lines.

    Of a run on questions, the loss is that of the answers' tokens, and `exact_match` the share of right answers; it has
    no bits per byte.
    """

    name: str
    folder: str
    parameters: int
    steps: int
    tokens: int
    skipped_steps: int
    validation_loss: float
    validation_bits_per_byte: float | None
    tokens_per_second: float | None
    validation_exact_match: float | None = None

    @property
    def quality(self) -> str:
        """The validation in words."""
        if self.validation_exact_match is not None:
            right = f"{100 * self.validation_exact_match:.1f} % of the answers are right"
            return f"validation: {right}, loss {self.validation_loss:.4f} nats/token of the answers (mean of batches)"
        bits = f", {self.validation_bits_per_byte:.4f} bits/byte" if self.validation_bits_per_byte is not None else ""
        return f"validation loss {self.validation_loss:.4f} nats/token{bits}"


def model_card(recipe: Recipe, summary: RunSummary, own: Sequence[str] = ()) -> str:
    """The card of a finished run, in Markdown; names from the recipe are quoted, paths without their folders.

    `own`: see `own_modules`.
    """
    task, lengths = recipe.data.task, "growing numbers of" if recipe.training.curriculum else recipe.data.context
    batches = f"{summary.steps:,} steps of {recipe.training.batch_size} sequences of {lengths} tokens"
    training = {
        "text": _quoted(recipe.data.source if task is None else task),
        "tokens seen": f"{summary.tokens:,} ({batches})",
        "tokenizer": _tokenizer(recipe),
        "learning rate": _learning_rate(recipe),
        "seed": recipe.seed,
    }
    of_what = "" if summary.validation_exact_match is None else " of the answers, mean of batches"
    scores = {
        "right answers (higher is better)": summary.validation_exact_match,
        f"loss, nats per token{of_what} (lower is better)": summary.validation_loss,
        "bits per byte (lower is better)": summary.validation_bits_per_byte,
    }
    measured = {name: f"{score:.4f}" for name, score in scores.items() if score is not None}
    return render_card(
        recipe.model["type"],
        mark=f"{MARK}\n",
        name=_quoted(recipe.name),
        parameters=summary.parameters,
        origin="trained with Tessera",
        run=True,
        own=own,
        command=task and 'tessera ask FOLDER "QUESTION" --text FILE',
        training=f"{_table(' ', training)}\n\n{RECORDS}",
        evaluation=_table(" on the validation text ", measured),
    )


def _table(title: str, rows: dict[str, Any]) -> str:
    return "\n".join([f"|{title}| |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _tokenizer(recipe: Recipe) -> str:
    if recipe.data.task is None:
        return _quoted(recipe.tokenizer.path or recipe.tokenizer.type)
    own = recipe.data.task.get("tokenizer")
    return _quoted(own) if own else "words of the task, in lower case"


def _learning_rate(recipe: Recipe) -> str:
    training = recipe.training
    if training.curriculum:
        rates = ", ".join(f"{stage.learning_rate:g} (length {stage.length})" for stage in training.curriculum)
        return f"{rates}, each with a warm-up of a tenth of the stage"
    return f"{training.learning_rate:g}, {training.warmup:,} steps of warm-up"


def write_model_card(folder: Path, recipe: Recipe, summary: RunSummary, own: Sequence[str] = ()) -> None:
    """Write README.md into `folder`, unless somebody wrote one of their own."""
    path = folder / CARD
    if not path.exists() or is_generated_card(path):
        write_text_atomically(path, model_card(recipe, summary, own))


def is_generated_card(path: Path) -> bool:
    """Whether `write_model_card` wrote this file."""
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")


def _quoted(value: Any) -> str:
    """Code in Markdown, on one line, that no character of `value` ends; an absolute path as its last part."""
    bare = portable(value)  # where a file lies on the machine of the training is nobody else's business
    text = bare if isinstance(bare, str) else json.dumps(bare)
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"
