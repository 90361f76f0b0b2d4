"""What the gradients of every causal language model must satisfy."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tessera.testing.derivatives import check_gradient
from tessera.testing.model_case import SEGMENT, ModelCase, behind_a_segment, check_close, tokens


def gradients_of(model: PreTrainedModel, ids: Tensor) -> dict[str, Tensor]:
    """Those of a training step's loss, by parameter."""
    model.zero_grad()
    torch.manual_seed(2)  # for what is drawn in training
    model(ids, labels=ids).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def gradients_are_derivatives(case: ModelCase) -> None:
    """Each weight has a gradient of the loss in training, that of finite differences; nothing else has one."""
    model = case.build().train()
    ids = tokens(model, 2, 2 * SEGMENT)  # ARMT's gamma, as published, has no gradient: it is not 1 from the third on

    def loss() -> Tensor:
        torch.manual_seed(2)  # for what is drawn in training
        if not case.plain:
            return model(ids, labels=ids).loss
        logits = model(ids).logits  # transformers sums losses in float32
        return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    check_gradient(loss, {name: weight for name, weight in model.named_parameters() if weight.requires_grad})


def gradients_flow_through_a_state(case: ModelCase) -> None:
    """The gradient of what is read behind a state is that of the same text read at once."""
    if case.state is None:
        return
    model = case.build()
    ids, state, _ = behind_a_segment(case, model)
    embeddings: Any = model.get_input_embeddings().weight
    behind, at_once = model(ids[:, SEGMENT:], **{case.state: state}).logits, model(ids).logits[:, SEGMENT:]
    through, expected = (torch.autograd.grad(logits.square().mean(), embeddings)[0] for logits in (behind, at_once))
    check_close(through, expected)


def layers_computed_twice_have_the_same_gradients(case: ModelCase) -> None:
    """Gradient checkpointing changes no gradient."""
    if not case.checkpoints:
        return
    model = case.build().train()
    ids = tokens(model)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    expected, computed = gradients_of(model, ids), 0

    def twice(*arguments: object) -> object:
        nonlocal computed
        computed += 1
        return checkpoint(*arguments, use_reentrant=False)

    for module in model.modules():  # what the method to switch it on, renamed between versions, does in the end
        if isinstance(module, GradientCheckpointingLayer):
            module.gradient_checkpointing, module._gradient_checkpointing_func = True, twice
    gradients = gradients_of(model, ids)
    assert computed
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name])
