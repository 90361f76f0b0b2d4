"""README.md beside the weights of a run: the card of a saved model, with what the run knows of its training."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.base.files import write_text_atomically
from tessera.models.saving.model_card import CARD, CAUSAL, TEMPLATE
from tessera.recipes.sections import Recipe

if TYPE_CHECKING:
    from tessera.training.summary import RunSummary

MARK = "<!-- written by tessera train; a README.md without this line is left alone -->"
LOADING = """```python
import tessera.models  # makes its model types known to transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER")
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
```

On the command line: `tessera generate FOLDER --prompt "Once upon a time"`."""
TRAINING = """| | |
|---|---|
| text | {source} |
| tokens seen | {tokens:,} ({steps:,} steps of {batch} sequences of {lengths} tokens) |
| tokenizer | {tokenizer} |
| learning rate | {learning_rate} |
| seed | {seed} |

Every setting is in `recipe.yaml`; versions, hardware and the command are in `run.json`."""
EVALUATION = """| on the validation text | |
|---|---|
{scores}"""


def model_card(recipe: Recipe, summary: "RunSummary") -> str:
    """The card of a finished run, in Markdown; names from the recipe are quoted."""
    training = TRAINING.format(
        source=_quoted(recipe.data.source if recipe.data.task is None else recipe.data.task),
        tokens=summary.tokens,
        steps=summary.steps,
        batch=recipe.training.batch_size,
        lengths=recipe.data.context if not recipe.training.curriculum else "growing numbers of",
        tokenizer=_quoted(recipe.tokenizer.path or recipe.tokenizer.type),
        learning_rate=_learning_rate(recipe),
        seed=recipe.seed,
    )
    scores = "\n".join(f"| {name} | {value:.4f} |" for name, value in _scores(summary) if value is not None)
    return TEMPLATE.format(
        first_line=f"{MARK}\n",
        name=_quoted(recipe.name),
        model_type=recipe.model["type"],
        kind=CAUSAL,
        parameters=summary.parameters,
        origin="trained with Tessera",
        loading=LOADING,
        training=training,
        evaluation=EVALUATION.format(scores=scores),
    )


def _learning_rate(recipe: Recipe) -> str:
    training = recipe.training
    if training.curriculum:
        rates = ", ".join(f"{stage.learning_rate:g} (length {stage.length})" for stage in training.curriculum)
        return f"{rates}, each with a warm-up of a tenth of the stage"
    return f"{training.learning_rate:g}, {training.warmup:,} steps of warm-up"


def _scores(summary: "RunSummary") -> list[tuple[str, float | None]]:
    return [
        ("right answers (higher is better)", summary.validation_exact_match),
        ("loss, nats per token (lower is better)", summary.validation_loss),
        ("bits per byte (lower is better)", summary.validation_bits_per_byte),
    ]


def write_model_card(folder: Path, recipe: Recipe, summary: "RunSummary") -> None:
    """Write README.md into `folder`, unless somebody wrote one of their own."""
    path = folder / CARD
    if not path.exists() or is_generated_card(path):
        write_text_atomically(path, model_card(recipe, summary))


def is_generated_card(path: Path) -> bool:
    """Whether `write_model_card` wrote this file."""
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")


def _quoted(value: Any) -> str:
    """Code in Markdown, on one line, that no character of `value` ends."""
    text = value if isinstance(value, str) else json.dumps(value)
    return "`" + " ".join(text.split()).replace("`", "'").replace("|", "\\|") + "`"
