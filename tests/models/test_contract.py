"""Every registered model keeps every law, and wrong models are found out."""

import random

import pytest
import torch
from torch import nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from tessera.models.memory_mosaic import MemoryMosaicForCausalLM
from tessera.models.registry import strict_configs
from tessera.testing.models import LAWS
from tests.covering import some
from tests.models.contract import CASES, OF_EACH_CLASS, Case, v1

# Every law is tried on each class of models; what settings, variants and bases change is in `parts_are_the_whole`,
# where a state has something else in it. (Kernels have no part in it: tests/memories tries them.)
SAME_STATE = (
    "v1 compact", "v1 normalized relu", "v2 gaussian", "v2 normalized relu", "v2 neighbours",
    "rmt around memory_mosaic",
)  # fmt: skip


@some(
    ("name", "law"),
    [(name, law) for name in CASES for law in LAWS],
    by_default=lambda name, law: name in OF_EACH_CLASS or (law == "parts_are_the_whole" and name not in SAME_STATE),
)
def test_a_model_keeps_the_laws(name, law):
    LAWS[law](CASES[name])


def test_every_registered_model_is_a_case():
    tested = {type(case.build()) for case in CASES.values()}
    assert {MODEL_FOR_CAUSAL_LM_MAPPING[config] for config in strict_configs()} <= tested


class SeesTheFuture(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        output.logits = output.logits + 1e-6 * output.logits.mean(1, keepdim=True)
        return output


class ReadsNothing(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        return super().forward(input_ids.flatten()[:, None], use_cache=False)


class ForgetsItsState(MemoryMosaicForCausalLM):
    def forward(self, input_ids, past_key_values=None, **inputs):
        return super().forward(input_ids, **inputs)


class SaysSomethingElseAfterAState(MemoryMosaicForCausalLM):
    def forward(self, input_ids, past_key_values=None, **inputs):
        output = super().forward(input_ids, past_key_values=past_key_values, **inputs)
        if past_key_values is not None and input_ids.shape[1] > 1:
            output.logits = output.logits.roll(1, -1)
        return output


class ForgetsDocuments(MemoryMosaicForCausalLM):
    def forward(self, input_ids, document_ids=None, **inputs):
        return super().forward(input_ids, **inputs)


class ForgetsPadding(MemoryMosaicForCausalLM):
    def forward(self, input_ids, attention_mask=None, **inputs):
        return super().forward(input_ids, **inputs)


class BeginsAnewBehindPadding(MemoryMosaicForCausalLM):
    def forward(self, input_ids, attention_mask=None, **inputs):
        documents = None
        if attention_mask is not None:
            real = attention_mask[:, -input_ids.shape[1] :].bool()
            documents, attention_mask = torch.where(real, 0, -1), None
        return super().forward(input_ids, document_ids=documents, **inputs)


class KeepsPadding(MemoryMosaicForCausalLM):
    def forward(self, input_ids, past_key_values=None, attention_mask=None, **inputs):
        if past_key_values is not None:
            attention_mask = None
        return super().forward(input_ids, attention_mask, past_key_values=past_key_values, **inputs)


class ConfusesBeams(MemoryMosaicForCausalLM):
    def _reorder_cache(self, past_key_values, beam_idx):
        return past_key_values.select_batch(beam_idx.flip(0))


class KeepsSomethingUnsaved(MemoryMosaicForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.unsaved = random.random()

    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        output.logits = output.logits * self.unsaved
        return output


class ChangesItsState(MemoryMosaicForCausalLM):
    def forward(self, input_ids, past_key_values=None, **inputs):
        output = super().forward(input_ids, past_key_values=past_key_values, **inputs)
        if past_key_values is not None:
            past_key_values.map(lambda tensor: tensor.mul_(1.01) if tensor.is_floating_point() else tensor)
        return output


class LosesGradientsWhenComputedTwice(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        if self.model.layers[0].gradient_checkpointing:
            return super().forward(inputs_embeds=self.model.embed_tokens(input_ids).detach(), **inputs)
        return super().forward(input_ids, **inputs)


class NeedsManyBits(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        if output.logits is not None:
            output.logits = (output.logits + 1e3) - 1e3
        return output


class NeedsManyTokens(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        output.logits = output.logits + (input_ids.shape[1] == 1)
        return output


class HalfTheGradientOfItsTokens(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        tokens = self.model.embed_tokens(input_ids)
        return super().forward(inputs_embeds=tokens / 2 + tokens.detach() / 2, **inputs)


class DetachesItsState(MemoryMosaicForCausalLM):
    def forward(self, input_ids, past_key_values=None, **inputs):
        past_key_values = None if past_key_values is None else past_key_values.detach()
        return super().forward(input_ids, past_key_values=past_key_values, **inputs)


class WrongBehindItsBlock(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        output.logits = torch.cat([output.logits[:, :64], 2 * output.logits[:, 64:]], 1)
        return output


class OneRowsDocuments(MemoryMosaicForCausalLM):
    def forward(self, input_ids, document_ids=None, **inputs):
        document_ids = None if document_ids is None else document_ids[:1].expand_as(document_ids)
        return super().forward(input_ids, document_ids=document_ids, **inputs)


class DocumentsRise(MemoryMosaicForCausalLM):
    def forward(self, input_ids, document_ids=None, **inputs):
        document_ids = None if document_ids is None else document_ids.cummax(1).values
        return super().forward(input_ids, document_ids=document_ids, **inputs)


class ForgetsDocumentsOfSingleTokens(MemoryMosaicForCausalLM):
    def forward(self, input_ids, document_ids=None, past_key_values=None, **inputs):
        document_ids = None if past_key_values is not None and input_ids.shape[1] == 1 else document_ids
        return super().forward(input_ids, document_ids=document_ids, past_key_values=past_key_values, **inputs)


class ForgetsDocumentsInTraining(MemoryMosaicForCausalLM):
    def forward(self, input_ids, document_ids=None, **inputs):
        return super().forward(input_ids, document_ids=None if self.training else document_ids, **inputs)


class PredictsTheNextDocument(MemoryMosaicForCausalLM):
    def forward(self, input_ids, labels=None, **inputs):
        output = super().forward(input_ids, **inputs)
        if labels is not None:
            output.loss = nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return output


class SeesTheFutureInTraining(MemoryMosaicForCausalLM):
    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        output.logits = output.logits + self.training * 1e-6 * output.logits.mean(1, keepdim=True)
        return output


class AnotherLossInTraining(MemoryMosaicForCausalLM):
    def forward(self, input_ids, labels=None, **inputs):
        output = super().forward(input_ids, labels=labels, **inputs)
        if labels is not None and self.training:
            output.loss = 1.5 * output.loss
        return output


class ShiftsItsLabelsTwice(MemoryMosaicForCausalLM):
    def forward(self, input_ids, labels=None, **inputs):
        labels = None if labels is None else nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        return super().forward(input_ids, labels=labels, **inputs)


WRONG = [
    (ForgetsItsState, "parts_are_the_whole"),
    (ForgetsItsState, "parts_are_the_whole_in_float32"),
    (SeesTheFuture, "the_future_has_no_influence"),
    (ReadsNothing, "the_future_has_no_influence"),
    (ForgetsDocuments, "documents_do_not_see_each_other"),
    (ForgetsPadding, "padding_on_the_left_has_no_influence"),
    (ShiftsItsLabelsTwice, "padding_on_the_right_has_no_influence"),
    (BeginsAnewBehindPadding, "padding_between_tokens_has_no_influence"),
    (KeepsPadding, "padding_between_tokens_has_no_influence"),
    (SaysSomethingElseAfterAState, "generation_goes_on_from_a_state"),
    (ForgetsPadding, "generation_chooses_what_the_whole_says"),
    (ConfusesBeams, "generation_chooses_what_the_whole_says"),
    (KeepsSomethingUnsaved, "saved_is_loaded"),
    (ChangesItsState, "a_state_is_a_value"),
    (ForgetsItsState, "a_state_is_a_value"),
    (LosesGradientsWhenComputedTwice, "layers_computed_twice_have_the_same_gradients"),
    (NeedsManyBits, "bfloat16_is_near"),
    (NeedsManyTokens, "one_token_is_the_first_of_many"),
    (ShiftsItsLabelsTwice, "the_loss_is_that_of_the_logits"),
    (AnotherLossInTraining, "the_loss_is_that_of_the_logits"),
    (HalfTheGradientOfItsTokens, "gradients_are_derivatives"),
    (DetachesItsState, "gradients_flow_through_a_state"),
    (WrongBehindItsBlock, "parts_of_a_long_text_are_the_whole"),
    (OneRowsDocuments, "documents_do_not_see_each_other"),
    (DocumentsRise, "documents_do_not_see_each_other"),
    (ForgetsDocumentsOfSingleTokens, "documents_do_not_see_each_other"),
    (ForgetsDocumentsInTraining, "documents_do_not_see_each_other"),
    (PredictsTheNextDocument, "documents_do_not_see_each_other"),
    (SeesTheFutureInTraining, "the_future_has_no_influence"),
]


@pytest.mark.parametrize(("wrong", "law"), WRONG, ids=lambda value: getattr(value, "__name__", value))
def test_a_wrong_model_is_found_out(wrong, law):
    def build():
        model = v1()
        model.__class__ = wrong
        if wrong is KeepsSomethingUnsaved:
            model.unsaved = random.random()
        return model

    with pytest.raises(AssertionError):
        LAWS[law](Case(build, registered=False))


def test_every_law_finds_some_model_wrong():
    assert {law for _, law in WRONG} == set(LAWS)
