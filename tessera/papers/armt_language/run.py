"""ARMT on language: does what a memory keeps of earlier segments lower the loss of later ones?

The figure of the ARMT paper's appendix on language, on stories, and on novels.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from tessera.base.locks import folder_held
from tessera.data.sources import text_source
from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import bits_per_byte, loss_by_position
from tessera.evaluation.text import EvaluationText
from tessera.models.saving.loading import load_model
from tessera.models.sizes import num_parameters
from tessera.papers.armt_language import report
from tessera.papers.armt_language.settings import BASE, CONTINUED, MODELS, SegmentSettings, plan
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext
from tessera.training.corpus import Corpus, open_corpus
from tessera.training.curriculum import train_stages_of
from tessera.training.initial_model import starting_model
from tessera.training.overwrite import RESULT
from tessera.training.run import train
from tessera.training.staged_data import StagedText

TESTED_SHARE = 0.5  # of the held-out book; the rest of it chooses the weights
DIGITS = 4


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Sizes, stages of the training, and for each text and reading one row per text of bits per byte by segment."""
    settings = run.configuration
    base = _trained_base(settings, context)
    corpus = open_corpus(settings.read_base_recipe(), base)
    chosen_by, tested = corpus.validation.divided(TESTED_SHARE)
    stages: list[dict[str, Any]] = []
    if settings.model == BASE:
        model: PreTrainedModel = load_model(base)
    else:
        model, stages = _trained_from(base, replace(corpus, validation=chosen_by), settings, context)
    model.to(context.device)
    length = settings.tested * settings.segment
    windows = {"stories": ValidationWindows(tested, length, settings.sequences)}
    with tempfile.TemporaryDirectory() as cache:
        novels = EvaluationText(text_source("novels"), context=length)
        windows["novels"] = novels.windows(corpus.tokenizer, settings.sequences, Path(cache))
        measured: dict[str, Any] = {}
        for text, of_text in windows.items():
            context.report(1.0, f"reading {text}")
            readings = _readings(model, settings).items()
            measured[text] = {name: bits_by_segment(reader, of_text, settings.segment) for name, reader in readings}
    return {"parameters": num_parameters(model), "stages": stages, "bits_per_byte": measured}


class SegmentsAlone(nn.Module):
    """`model` reading each segment of a text without those before it; its logits stand at the text's positions.

    So a segment's first token is predicted from the last position before it, as by a model with a memory.
    """

    def __init__(self, model: PreTrainedModel, segment: int) -> None:
        super().__init__()
        self.model, self.segment = model, segment

    @property
    def config(self) -> PreTrainedConfig:
        """The model's, which stages may adjust."""
        return self.model.config

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, use_cache: bool = False) -> CausalLMOutput:
        """Logits (B, T, vocabulary) of tokens (B, T), T a multiple of the segment; the mean loss of labels (B, T)."""
        logits = self.model(input_ids=input_ids.reshape(-1, self.segment), use_cache=use_cache).logits
        logits = logits.reshape(*input_ids.shape, -1)
        loss = None if labels is None else cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)


def bits_by_segment(model: nn.Module, windows: ValidationWindows, segment: int) -> list[list[float]]:
    """Bits per byte of each segment (a list) of each text (a list of these).

    A segment's first token is predicted from the last position before it, but the text's first token by nothing.
    """
    rows = []
    for number in range(len(windows)):
        losses = loss_by_position(model, [windows[number]], 1)
        total, count = (_by_segment(sums, segment) for sums in (losses.total, losses.count))
        bits = [bits_per_byte(nats, windows.split.tokens_per_byte) for nats in (total / count).tolist()]
        rows.append([round(sums, DIGITS) for sums in bits])
    return rows


def _by_segment(values: Tensor, segment: int) -> Tensor:
    """Sums over segments of what `loss_by_position` says of all tokens but the text's first."""
    return torch.cat([values.new_zeros(1), values]).view(-1, segment).sum(1)


def _readings(model: PreTrainedModel, settings: SegmentSettings) -> dict[str, nn.Module]:
    alone = SegmentsAlone(model, settings.segment)
    if settings.model == BASE:
        return {"one_segment": alone, "whole_context": model}
    return {settings.model: alone if settings.model == CONTINUED else model}


def _trained_base(settings: SegmentSettings, context: RunContext) -> Path:
    """The folder of the base, which the first run that needs it trains; the others wait for it."""
    recipe = settings.read_base_recipe()
    folder = context.folder.parent / "bases" / f"{recipe.name}-{recipe.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with folder_held(folder):
        if not (folder / RESULT).is_file():
            context.report(0.0, "training the base")
            train(recipe, folder, resume=True, progress=False)
    return folder


def _trained_from(
    base: Path, corpus: Corpus, settings: SegmentSettings, context: RunContext
) -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    recipe = settings.read_recipe(base)
    data = StagedText(recipe, settings.segment, corpus)
    model = starting_model(recipe, data.tokenizer, context=settings.tested * settings.segment).to(context.device)
    trained = SegmentsAlone(model, settings.segment) if settings.model == CONTINUED else model
    return model, train_stages_of(trained, recipe, data, context.folder, context.report)


PUBLISHED = "The published trainings are recipes: `tessera train gpt2-wikitext-103`, then `armt-wikitext-103`."
EXPERIMENT = Experiment(
    LIBRARY["armt_language"], SegmentSettings, plan, execute, report.tables, report.plot, MODELS, (), PUBLISHED
)
