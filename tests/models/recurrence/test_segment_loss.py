"""Logits and losses are the base model's, however they are computed."""

import copy

import pytest
import torch
from torch import nn

import tessera.armt as armt
from tessera.models.classification import ARMTForSequenceClassification
from tessera.models.recurrence import modeling, segment_loss
from tessera.models.recurrence.segment_loss import plain_lm_head
from tests.models.armt.bases import BASES, make, tokens
from tests.models.contract import v2
from tests.tolerances import close


def trained(model, ids, labels):
    """Loss and gradients of a training step, without dropout."""
    value = model(ids, labels=labels, num_items_in_batch=7, skip_logits=True).loss
    return value, torch.autograd.grad(value, [p for p in model.parameters() if p.requires_grad], allow_unused=True)


@pytest.mark.parametrize("family", BASES)
def test_the_head_is_the_bases_own(family, monkeypatch):
    model, ids = make("armt", family), tokens(2, 21)
    labels = torch.where(torch.rand(ids.shape) < 0.3, -100, ids)
    assert plain_lm_head(model.base) is model.base.get_output_embeddings()
    monkeypatch.setattr(segment_loss, "MANY", 0)  # also the small sizes of a test take the way of large ones
    with torch.no_grad():
        read = model(ids, labels=labels, logits_to_keep=15), model(ids[:1])
    step = trained(model, ids, labels)
    monkeypatch.setattr(modeling, "plain_lm_head", lambda base: None)
    at_once = model(ids, labels=labels)
    close(read[0].loss, at_once.loss)
    close(read[0].logits, at_once.logits[:, -15:])
    close(read[1].logits, at_once.logits[:1])
    close(step, trained(model, ids, labels))


@pytest.mark.parametrize("logit_scale", [1.0, 0.5])
def test_a_mosaic_of_v2_scales_its_logits(logit_scale, monkeypatch):
    base = v2(logit_scale=logit_scale, training_long_term_delay=(4, 4))  # nothing is drawn
    model, ids = armt.wrap(base, segment_size=8, num_memory_tokens=3, memory_dim=4).double(), tokens(2, 21)
    assert (plain_lm_head(base) is None) == (logit_scale != 1.0)
    loss = model(ids, labels=ids, skip_logits=True).loss
    monkeypatch.setattr(modeling, "plain_lm_head", lambda base: None)
    close(loss, model(ids, labels=ids).loss)


def test_more_logits_than_tokens_are_all():
    model, ids = make(), tokens(1, 20)
    with torch.no_grad():
        close(model(ids, logits_to_keep=30).logits, model(ids).logits)


def test_what_does_more_than_a_product_is_left_to_the_base():
    base = BASES["gpt2"]()
    assert plain_lm_head(base) is base.lm_head
    handle = base.lm_head.register_forward_hook(lambda *_: None)
    assert plain_lm_head(base) is None
    handle.remove()
    base.lm_head = nn.Sequential(base.lm_head)
    assert plain_lm_head(base) is None
    base = BASES["memory_mosaic"]()
    base.config.logit_scale = 0.5
    assert plain_lm_head(base) is None


def test_the_fused_activation_is_the_same_function():
    base, ids = BASES["gpt2"]().double().eval(), tokens(1, 8)
    model = armt.wrap(copy.deepcopy(base), segment_size=8, num_memory_tokens=3, memory_dim=4).eval()
    names = [type(layer.layer.mlp.act).__name__ for layer in model.base.transformer.h]
    assert names == ["GELUTanh", "GELUTanh"]
    with torch.no_grad():
        close(model(ids).logits, base(ids).logits)


@pytest.fixture
def one_process(tmp_path):
    """That would share its gradients with others, if there were any."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "options", "first_label"),
    [("armt", {}, 0), ("armt", {"segment_size": 4, "backprop_segments": 1}, 0), ("rmt", {"backprop_segments": 1}, 16)],
)
def test_parameters_that_a_text_does_not_use_keep_no_other_process_waiting(kind, options, first_label, request):
    """A text of one segment, or whose memory has no gradients: its loss does not depend on the memory's parameters."""
    model, ids = make(kind, **options), tokens(2, 8 + first_label)
    labels = ids.clone()
    labels[:, :first_label] = -100
    alone = trained(model, ids, labels)
    assert None in alone[1]
    request.getfixturevalue("one_process")
    value, gradients = trained(model, ids, labels)
    assert torch.equal(value, alone[0])
    assert [type(gradient) for gradient in gradients] == [type(gradient) for gradient in alone[1]]
    shared = nn.parallel.DistributedDataParallel(model)
    for _ in range(2):  # an error of the first step is raised by the second one
        model.zero_grad()
        shared(ids, labels=labels, num_items_in_batch=7).loss.backward()
    for parameter, gradient in zip(model.parameters(), alone[1]):
        torch.testing.assert_close(parameter.grad, torch.zeros_like(parameter) if gradient is None else gradient)


def test_classifiers_of_a_single_segment_keep_no_other_process_waiting(one_process):
    classifier = ARMTForSequenceClassification(make().config).train()
    shared = nn.parallel.DistributedDataParallel(classifier)
    for _ in range(2):
        shared(tokens(2, 8), labels=torch.tensor([0, 1])).loss.backward()
    assert all(parameter.grad is not None for parameter in classifier.parameters())
