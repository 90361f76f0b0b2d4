"""`tessera check`: our models keep every law, and a model that breaks one is found by it."""

import json

import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

import tessera
from tessera.cli.main import main
from tessera.testing import state_laws
from tessera.testing.state_laws import LAWS, check_state
from tests.covering import some
from tests.memory_files.models import MAKERS, v1

GPT2 = GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=64)


MODELS = {
    **{kind: MAKERS[kind] for kind in ("v2", "armt", "rmt", "prmt", "gpt2", "llama")},
    "v1": lambda: v1(kernel="biweight"),
    "armt around v1": lambda: tessera.wrap(v1(), segment_size=8, num_memory_tokens=2, memory_dim=4),
}
SEGMENTED = {
    "several tokens behind a state are one by one",
    "a padded row goes on as alone",
    "padding between two parts changes nothing",
}


@some("name", MODELS, by_default=("v2", "armt around v1", "llama"))
def test_a_right_model_keeps_every_law(name):
    model = MODELS[name]().train()
    findings = check_state(model)
    assert model.training, "the model is left as it was"
    missed = {finding.law: finding.note or finding.error for finding in findings if not finding.holds}
    assert set(missed) == (SEGMENTED if "rmt" in name else set()), missed


def test_a_right_model_of_few_tokens_keeps_every_law():
    """The changed token was made of another one, and was outside of a vocabulary of five, or the same as before."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=5, n_embd=16, n_layer=1, n_head=2, n_positions=24))
    assert all(finding.holds for finding in check_state(model))


def finding_of(law, model):
    return next(finding for finding in check_state(model) if finding.law == law)


class ForgetsWhatItRead(GPT2LMHeadModel):
    def forward(self, input_ids, past_key_values=None, **options):
        return super().forward(input_ids, **options)


class IgnoresPadding(GPT2LMHeadModel):
    def forward(self, input_ids, attention_mask=None, **options):
        return super().forward(input_ids, **options)


class SeesTheNextToken(GPT2LMHeadModel):
    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        ahead = torch.nn.functional.pad(input_ids[:, 1:], (0, 1))
        output.logits = output.logits + torch.nn.functional.one_hot(ahead, 60)
        return output


class MixesItsBatch(GPT2LMHeadModel):
    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        output.logits = output.logits + output.logits.mean(0)
        return output


class CutsTheGradient(GPT2LMHeadModel):
    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        for layer in output.past_key_values.layers:
            layer.keys, layer.values = layer.keys.detach(), layer.values.detach()
        return output


class KeepsANumber(GPT2LMHeadModel):
    """State on the module, where a copy of the cache does not reach it, nor saving."""

    calls = 0

    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        self.calls += 1
        output.logits = output.logits + self.calls % 7
        return output


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (ForgetsWhatItRead, "two chunks are the whole"),
        (ForgetsWhatItRead, "several tokens behind a state are one by one"),
        (IgnoresPadding, "padding on the left changes nothing"),
        (IgnoresPadding, "a padded row goes on as alone"),
        (IgnoresPadding, "padding between two parts changes nothing"),
        (SeesTheNextToken, "a later token changes no earlier logit"),
        (MixesItsBatch, "a batch is its rows alone"),
        (MixesItsBatch, "padding on the right changes nothing"),
        (CutsTheGradient, "gradients flow through the state"),
        (KeepsANumber, "a copied state goes two ways"),
        (KeepsANumber, "saved and loaded is the same"),
        (ForgetsWhatItRead, "rows of a state can be reordered"),
    ],
)
def test_a_wrong_model_is_found(wrong, law):
    assert not finding_of(law, wrong(GPT2)).holds


def test_a_model_that_breaks_down_is_not_one_that_was_not_tried(tmp_path, capsys):
    class LosesAKey(GPT2LMHeadModel):
        def forward(self, input_ids, past_key_values=None, **options):
            return super().forward(input_ids, **options) if past_key_values is None else {}["key"]

    finding = finding_of("two chunks are the whole", LosesAKey(GPT2))
    assert finding.note == "KeyError: 'key'"
    config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    BertLMHeadModel(config).save_pretrained(tmp_path)
    assert main(["check", str(tmp_path)]) == 2, "it keeps no state, and sees what it predicts"
    refusal = "check: the model must return a state; got BertLMHeadModel, of which no law can be tried."
    assert capsys.readouterr().err.strip().splitlines()[-1] == refusal


LONG_GPT2 = GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=1024)


class KeepsTheLast(GPT2LMHeadModel):
    """A cache that is cut to the last `kept` tokens, which whole texts do not know of."""

    kept = 100

    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        for layer in output.past_key_values.layers:
            layer.keys, layer.values = layer.keys[:, :, -self.kept :], layer.values[:, :, -self.kept :]
        return output


class SeesPaddingFarBehind(GPT2LMHeadModel):
    def forward(self, input_ids, attention_mask=None, position_ids=None, **options):
        if attention_mask is not None:
            attention_mask = torch.cat([torch.ones_like(attention_mask[:, :-250]), attention_mask[:, -250:]], 1)
        return super().forward(input_ids, attention_mask=attention_mask, position_ids=position_ids, **options)


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        (KeepsTheLast, "two chunks are the whole"),
        (KeepsTheLast, "gradients flow through the state"),
        (SeesPaddingFarBehind, "padding on the left changes nothing"),
    ],
)
def test_what_begins_behind_a_hundred_tokens_is_found(wrong, law):
    finding = finding_of(law, wrong(LONG_GPT2))
    assert (finding.holds, finding.tokens) == (False, 300)


@pytest.mark.parametrize(("field", "found"), [("sliding_window", True), ("sliding_depth", False)])
def test_texts_pass_the_longest_span_of_the_configuration(field, found):
    config = GPT2Config(**{**LONG_GPT2.to_dict(), field: 230})
    model = KeepsTheLast(config)
    model.kept = config.to_dict()[field]
    finding = finding_of("two chunks are the whole", model)
    assert (finding.holds, finding.tokens) == ((False, 484) if found else (True, 300))


def test_texts_have_several_borders_of_segments():
    class LosesItsThirdSegment(tessera.RMTForCausalLM):
        def forward(self, input_ids, memory_state=None, **options):
            output = super().forward(input_ids, memory_state=memory_state, **options)
            output.logits = torch.cat([output.logits[:, :64], output.logits[:, 64:] + (memory_state is None)], 1)
            return output

    model = tessera.wrap_rmt(MAKERS["llama"](), segment_size=32, num_memory_tokens=2)
    model.__class__ = LosesItsThirdSegment
    finding = finding_of("two chunks are the whole", model)
    assert (finding.holds, finding.tokens) == (False, 128)


def test_texts_are_no_longer_than_the_model_has_positions_time_and_memory_for(monkeypatch):
    assert {finding.tokens for finding in check_state(GPT2LMHeadModel(GPT2))} == {64}
    monkeypatch.setattr(state_laws, "MOST_LOGITS", 4 * 60 * 40)
    assert {finding.tokens for finding in check_state(GPT2LMHeadModel(LONG_GPT2))} == {80}
    monkeypatch.setattr(state_laws, "SECONDS", 0)
    assert {finding.tokens for finding in check_state(GPT2LMHeadModel(LONG_GPT2))} == {24}


def test_every_law_has_a_model_that_breaks_it():
    marks = test_a_wrong_model_is_found.pytestmark[0].args[1]
    assert {law for _, law in marks} == set(LAWS)


def test_the_command_prints_a_line_for_each_law_and_says_by_its_status_what_came(tmp_path, capsys):
    MODELS["v1"]().save_pretrained(tmp_path / "right")
    assert main(["check", str(tmp_path / "right")]) == 0
    assert capsys.readouterr().out.count(" holds ") == len(LAWS)
    assert main(["check", str(tmp_path / "right"), "--allowed", "0", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)) == len(LAWS)


def test_a_folder_without_a_model_is_refused_in_a_line(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
