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


def wrong(given=lambda model, ids, given: given, logits=None, loss=None, **members):
    """A mosaic that changes what it is given, its logits, or its loss; `members`: further ones of its class."""

    def forward(self, input_ids, **options):
        output = MemoryMosaicForCausalLM.forward(self, input_ids, **given(self, input_ids, options))
        if logits is not None and output.logits is not None:
            output.logits = logits(self, input_ids, options, output.logits)
        if loss is not None and options.get("labels") is not None:
            output.loss = loss(self, options["labels"], output)
        return output

    return type("Wrong", (MemoryMosaicForCausalLM,), {"forward": forward, **members})


def without(*names, when=lambda model, ids, given: True):
    """That forgets some of its inputs."""
    return wrong(
        lambda model, ids, given: {k: v for k, v in given.items() if k not in names or not when(model, ids, given)}
    )


def with_documents(change):
    """That takes other documents than it is given."""
    return wrong(
        lambda model, ids, given: (
            given if given.get("document_ids") is None else {**given, "document_ids": change(given["document_ids"])}
        )
    )


def has_state(model, ids, given):
    return given.get("past_key_values") is not None


def reads_nothing(self, input_ids, **given):
    return MemoryMosaicForCausalLM.forward(self, input_ids.flatten()[:, None], use_cache=False)


def changes_its_state(self, input_ids, past_key_values=None, **given):
    output = MemoryMosaicForCausalLM.forward(self, input_ids, past_key_values=past_key_values, **given)
    if past_key_values is not None:
        past_key_values.map(lambda tensor: tensor.mul_(1.01) if tensor.is_floating_point() else tensor)
    return output


def loses_gradients_when_computed_twice(self, input_ids, **given):
    if self.model.layers[0].gradient_checkpointing:
        return MemoryMosaicForCausalLM.forward(self, inputs_embeds=self.model.embed_tokens(input_ids).detach(), **given)
    return MemoryMosaicForCausalLM.forward(self, input_ids, **given)


def half_the_gradient_of_its_tokens(self, input_ids, **given):
    tokens = self.model.embed_tokens(input_ids)
    return MemoryMosaicForCausalLM.forward(self, inputs_embeds=tokens / 2 + tokens.detach() / 2, **given)


def begins_anew_behind_padding(model, ids, given):
    mask = given.pop("attention_mask", None)
    if mask is not None:
        given["document_ids"] = mask.diff(dim=1, prepend=mask[:, :1]).ne(0).cumsum(1)[:, -ids.shape[1] :]
    return given


def detached(model, ids, given):
    return {**given, "past_key_values": given["past_key_values"].detach()} if has_state(model, ids, given) else given


def shifted(model, ids, given):
    labels = given.get("labels")
    return given if labels is None else {**given, "labels": nn.functional.pad(labels[:, 1:], (0, 1), value=-100)}


def next_of_all(model, labels, output):
    return nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def future(logits):
    return 1e-6 * logits.mean(1, keepdim=True)


class KeepsSomethingUnsaved(MemoryMosaicForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        self.begin()

    def begin(self):
        self.unsaved = random.random()

    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        output.logits = output.logits * self.unsaved
        return output


class CountsItsTrainings(KeepsSomethingUnsaved):
    def begin(self):
        self.unsaved = 1

    def forward(self, input_ids, **inputs):
        self.unsaved += self.training
        return super().forward(input_ids, **inputs)


class LearnsOutside(MemoryMosaicForCausalLM):
    def begin(self):
        self.scale = torch.ones((), dtype=torch.float64, requires_grad=True)

    def forward(self, input_ids, **inputs):
        output = super().forward(input_ids, **inputs)
        output.loss = output.loss * self.scale
        return output


class HasAnUnusedPart(MemoryMosaicForCausalLM):
    def begin(self):
        self.unused = nn.Linear(2, 2)


WRONG = {  # a model, and the laws that find it out
    "forgets its state": (
        without("past_key_values"), "parts_are_the_whole", "parts_are_the_whole_in_float32", "a_state_is_a_value"
    ),
    "sees the future": (wrong(logits=lambda model, ids, given, y: y + future(y)), "the_future_has_no_influence"),
    "sees the future in training": (
        wrong(logits=lambda model, ids, given, y: y + model.training * future(y)), "the_future_has_no_influence"
    ),
    "reads nothing": (wrong(forward=reads_nothing), "the_future_has_no_influence"),
    "forgets documents": (without("document_ids"), "documents_do_not_see_each_other"),
    "one row's documents": (
        with_documents(lambda documents: documents[:1].expand_as(documents)), "documents_do_not_see_each_other"
    ),
    "documents rise": (
        with_documents(lambda documents: documents.cummax(1).values), "documents_do_not_see_each_other"
    ),
    "forgets documents of single tokens": (
        without("document_ids", when=lambda model, ids, given: has_state(model, ids, given) and ids.shape[1] == 1),
        "documents_do_not_see_each_other",
    ),
    "forgets documents in training": (
        without("document_ids", when=lambda model, ids, given: model.training), "documents_do_not_see_each_other"
    ),
    "predicts the next document": (wrong(loss=next_of_all), "documents_do_not_see_each_other"),
    "forgets padding": (
        without("attention_mask"),
        "padding_on_the_left_has_no_influence", "generation_chooses_what_the_whole_says",
    ),
    "begins anew behind padding": (wrong(begins_anew_behind_padding), "padding_between_tokens_has_no_influence"),
    "keeps padding": (without("attention_mask", when=has_state), "padding_between_tokens_has_no_influence"),
    "shifts its labels twice": (
        wrong(shifted), "padding_on_the_right_has_no_influence", "the_loss_is_that_of_the_logits"
    ),
    "another loss in training": (
        wrong(loss=lambda model, labels, output: output.loss * (1.5 if model.training else 1)),
        "the_loss_is_that_of_the_logits",
    ),
    "says something else after a state": (
        wrong(
            logits=lambda model, ids, given, y:
            y.roll(1, -1) if has_state(model, ids, given) and ids.shape[1] > 1 else y
        ),
        "generation_goes_on_from_a_state",
    ),
    "confuses beams": (
        wrong(_reorder_cache=lambda self, past_key_values, beam_idx: past_key_values.select_batch(beam_idx.flip(0))),
        "generation_chooses_what_the_whole_says",
    ),
    "keeps something unsaved": (KeepsSomethingUnsaved, "saved_is_loaded"),
    "counts its trainings, unsaved": (CountsItsTrainings, "saved_is_loaded"),
    "learns what is no parameter": (LearnsOutside, "gradients_are_derivatives"),
    "has a part that is never used": (HasAnUnusedPart, "gradients_are_derivatives"),
    "says that its state does not grow": (
        wrong(state_bytes_per_token=lambda self, dtype: 0.0), "a_state_grows_as_it_says"
    ),
    "says that it compares with one pair": (
        wrong(begin=lambda self: setattr(self.config, "pairs_per_query", lambda context: [1])),
        "a_state_grows_as_it_says",
    ),
    "changes its state": (wrong(forward=changes_its_state), "a_state_is_a_value"),
    "detaches its state": (wrong(detached), "gradients_flow_through_a_state"),
    "loses gradients when computed twice": (
        wrong(forward=loses_gradients_when_computed_twice), "layers_computed_twice_have_the_same_gradients"
    ),
    "half the gradient of its tokens": (wrong(forward=half_the_gradient_of_its_tokens), "gradients_are_derivatives"),
    "needs many bits": (wrong(logits=lambda model, ids, given, y: (y + 1e3) - 1e3), "bfloat16_is_near"),
    "needs many tokens": (
        wrong(logits=lambda model, ids, given, y: y + (ids.shape[1] == 1)), "one_token_is_the_first_of_many"
    ),
    "wrong behind its block": (
        wrong(logits=lambda model, ids, given, y: torch.cat([y[:, :64], 2 * y[:, 64:]], 1)),
        "parts_of_a_long_text_are_the_whole",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "law"), [(name, law) for name, (_, *laws) in WRONG.items() for law in laws])
def test_a_wrong_model_is_found_out(name, law):
    def build():
        model = v1()
        model.__class__ = WRONG[name][0]
        if hasattr(model, "begin"):
            model.begin()
        return model

    with pytest.raises(AssertionError):
        LAWS[law](Case(build, registered=False))


def test_a_constant_state_with_dearer_tokens_is_found_out():
    def build():
        model = CASES["linear attention retnet"].build()
        model.config.pairs_per_query = lambda context: [context]
        return model

    with pytest.raises(AssertionError, match="costs 0 FLOPs more; pairs_per_query says"):
        LAWS["a_state_grows_as_it_says"](Case(build, registered=False))


def test_every_law_finds_some_model_wrong():
    assert {law for _, *laws in WRONG.values() for law in laws} == set(LAWS)
