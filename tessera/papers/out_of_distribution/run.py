"""Out of distribution: models that were trained on stories read novels, or any text of the user's.

Memory Mosaics, figure 8; Sparse Attention as Compact Kernel Regression, figure 5.
"""

from dataclasses import dataclass, replace
from typing import Any

from tessera.data.sources import text_source
from tessera.evaluation.loss import EvaluationText, evaluate_text
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.papers.experiment import Run, RunContext, RunSelection
from tessera.papers.language_modeling import run as language

NOVELS = "novels"
SEQUENCES = {"smoke": 4, "cpu": 256}


@dataclass(frozen=True)
class TextSettings:
    """One trained model on one text.

    Attributes:
        trained: its training in `language_modeling`.
        text: `NOVELS`, or a name that the user gave with `--data`. digest: of the user's text, else "".
        sequences: at most so many, spread over the text.
    """

    trained: language.LanguageSettings
    text: str
    digest: str
    sequences: int

    @property
    def seed(self) -> int:
        """Of the training."""
        return self.trained.seed


def plan(selection: RunSelection) -> list[Run]:
    """Every model of `language_modeling`, in its order, on the bundled novels or on the texts of `--data`."""
    chosen = language.texts_of(selection.data)
    places = {text.name: text.path for text in chosen}
    models = [run for run in language.plan(replace(selection, data=None)) if run.configuration.part == language.MAIN]
    count = SEQUENCES[selection.budget]
    return [
        Run(f"{name}/{run.key}", TextSettings(run.configuration, name, digest, count), run.cost, places)
        for name, digest in [(text.name, text.digest) for text in chosen] or [(NOVELS, "")]
        for run in models
    ]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Evaluate a trained model, which is trained first unless `language_modeling` has; nats per token."""
    settings = run.configuration
    folder = language.trained_model(settings.trained, context)
    context.report(1.0, f"reading {settings.text}")
    source = text_source(run.data.get(settings.text, settings.text))
    text = EvaluationText(source, context=settings.trained.context)
    model = load_model(folder).to(context.device)
    measured = evaluate_text(model, load_tokenizer(folder), text, sequences=settings.sequences)
    numbers = {name: measured[name] for name in ("loss", "bits_per_byte", "tokens", "sequences")}
    return {**numbers, "loss_by_position": language.rounded(measured["loss_by_position"])}
