"""The models and texts of every budget."""

from dataclasses import dataclass, replace

from tessera.papers.experiment import Run, RunSelection
from tessera.papers.language_modeling.settings import MAIN, LanguageSettings, runs_of, texts_of

NOVELS = "novels"
SEQUENCES = {"smoke": 4, "cpu": 256, "full": 2048}
WHERE = "reproduce out_of_distribution"


@dataclass(frozen=True)
class TextSettings:
    """One trained model on one text.

    Attributes:
        trained: its training in `language_modeling`.
        text: `NOVELS`, or a name that the user gave with `--data`. digest: of the user's text, else "".
        sequences: at most so many, spread over the text.
    """

    trained: LanguageSettings
    text: str
    digest: str
    sequences: int

    @property
    def seed(self) -> int:
        """Of the training."""
        return self.trained.seed


def runs_on_texts(selection: RunSelection) -> list[Run]:
    """Every model of `language_modeling` on the bundled novels, or on the texts of `--data`."""
    chosen = texts_of(WHERE, selection.data)
    places = {text.name: text.path for text in chosen}
    texts = [(text.name, text.digest) for text in chosen] or [(NOVELS, "")]
    models = [
        run for run in runs_of(replace(selection, data=None), "out_of_distribution") if run.configuration.part == MAIN
    ]
    count = SEQUENCES[selection.budget]
    return [
        Run(f"{name}/{run.key}", TextSettings(run.configuration, name, digest, count), run.cost, places)
        for name, digest in texts
        for run in models
    ]
