"""What the readings of ARMT on language are, and how they are compared; the smoke budget is in test_contract.py."""

import math

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import CausalLMOutput

from tessera.data.sources import text_source
from tessera.data.tokenizers import build_tokenizer
from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import EvaluationText
from tessera.papers.armt_language import report as module
from tessera.papers.armt_language.report import BASES, BUDGETS, CONTINUED, MODELS, SegmentsAlone
from tessera.papers.experiment import EXPERIMENTS, Run, RunContext, RunSelection
from tessera.recipes.sections import TokenizerSpec
from tests.covering import some

RUNS = {run.key: run.configuration for run in EXPERIMENTS["armt_language"].runs(RunSelection("cpu"))}


class Counting(nn.Module):
    """The probability of a token is higher by a factor 2 for each token before it: logits of token 0 alone."""

    def __init__(self):
        super().__init__()
        self.parameter = nn.Parameter(torch.zeros(()))

    def forward(self, input_ids, use_cache=False):
        steps = torch.arange(1.0, input_ids.shape[1] + 1)
        logits = torch.zeros(*input_ids.shape, 256)
        logits[..., 0] = steps
        return CausalLMOutput(logits=logits)


def test_bits_of_segments_are_those_of_their_tokens(tmp_path):
    text = EvaluationText(text_source("novels"), context=12)
    windows = text.windows(build_tokenizer(TokenizerSpec(type="byte")), 2, tmp_path)
    assert isinstance(windows, ValidationWindows)
    ratio = 0.25
    for reader, logits in ((Counting(), range(1, 12)), (SegmentsAlone(Counting(), 4), [1, 2, 3, 4] * 2 + [1, 2, 3])):
        # no byte of the text is 0, so each costs log(255 + exp(logit of 0)); the text's first is predicted by nothing
        nats = [math.log(255 + math.exp(logit)) for logit in logits]
        parts = (nats[:3], nats[3:7], nats[7:])
        expected = [sum(part) / len(part) / math.log(2) * ratio for part in parts]
        for row in module.bits_by_segment(reader, windows, 4, ratio):
            assert row == pytest.approx(expected, abs=1e-4)


def test_the_loss_of_segments_alone_is_that_of_their_logits():
    tokens = torch.randint(3, (2, 12), generator=torch.Generator().manual_seed(0))
    output = SegmentsAlone(Counting(), 4)(tokens, labels=tokens)
    of_tokens = -output.logits.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:, None])
    torch.testing.assert_close(output.loss, of_tokens.mean())


@pytest.mark.parametrize("budget", BASES)
def test_all_that_starts_from_a_base_sees_the_same_texts(budget, tmp_path):
    for base, section in BASES[budget].items():
        settings = [BUDGETS[budget].run(model, base, section, 0).configuration for model in MODELS[1:]]
        recipes = [one.read_recipe(tmp_path) for one in settings]
        for one, recipe in zip(settings, recipes):
            assert recipe.training.curriculum == recipes[0].training.curriculum
            assert recipe.training.batch_size == recipes[0].training.batch_size
            assert (recipe.training.initialize_from == str(tmp_path)) == (one.model == CONTINUED)


@pytest.mark.usefixtures("short_books")
@some("model", MODELS[1:], by_default=(CONTINUED, MODELS[-1]))
def test_a_base_is_trained_on_with_each_segment_alone(model, tmp_path, monkeypatch):
    trained, read = [], []
    monkeypatch.setattr(module, "train_recipe_stages", lambda model, *rest: trained.append((model, rest[1])) or [])
    monkeypatch.setattr(module, "bits_by_segment", lambda model, *sizes: read.append(sizes) or [])
    settings = BUDGETS["smoke"].run(model, "transformer", BASES["smoke"]["transformer"], 0).configuration
    module.execute(Run("a run", settings), RunContext(tmp_path / "run"))
    ((reader, data),) = trained
    assert isinstance(reader, SegmentsAlone) == (model == CONTINUED)
    assert data.segment == settings.segment
    for windows, _, ratio in read:
        assert ratio == windows.tokens_per_byte(data.tokenizer) != windows.split.tokens_per_byte
    assert len(read) == 2


def test_runs_of_a_base_share_its_training():
    recipes = {key.split("/")[0]: [] for key in RUNS}
    for key, settings in RUNS.items():
        recipes[key.split("/")[0]].append(settings.base_recipe)
    for of_base in recipes.values():
        assert all(one == of_base[0] for one in of_base)
    assert len({one[0]["model"]["type"] for one in recipes.values()}) == len(recipes)


def test_differences_need_a_common_seed():
    assert module.difference({0: torch.ones(2, 3)}, {1: torch.ones(2, 3)}, slice(1, 3)) is None
