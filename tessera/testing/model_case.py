"""A model that laws are tried on, what they give it to read, and what its gradients must satisfy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from tessera.base.random_numbers import random_numbers_kept
from tessera.testing.derivatives import check_gradient
from tessera.testing.laws import REORDERED_FLOAT64

STEPS, SEGMENT = 21, 8


@dataclass(frozen=True)
class ModelCase:
    """A model to test.

    Attributes:
        make: the model, whose token 0 is padding; one that reads in segments reads 8 tokens in each. Its weights are
            moved away from their start, so that every part has an effect.
        state: the argument of `forward` that takes a state as a value, with its name in the output; None: there is
            none.
        continues: whether it reads in parts. packs: takes `document_ids`. pads_left: padding before tokens.
        pads_anywhere: also padding between tokens, and behind a state. generates: also behind padding. checkpoints: has
        layers that may be computed twice. registered: with AutoModel. plain: `forward` is transformers' own, or the
        baseline's: without `skip_logits` and `num_items_in_batch`.
    """

    make: Callable[[], PreTrainedModel]
    state: str | None = "past_key_values"
    continues: bool = True
    packs: bool = True
    pads_left: bool = True
    pads_anywhere: bool = True
    generates: bool = True
    checkpoints: bool = True
    registered: bool = True
    plain: bool = False

    @random_numbers_kept()
    def build(self) -> PreTrainedModel:
        """The model in float64, in evaluation mode, always the same weights."""
        torch.manual_seed(1)
        model = self.make().double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model.eval()


def tokens(model: PreTrainedModel, batch: int = 2, steps: int = STEPS) -> Tensor:
    """Token indices (batch, steps) of the model's vocabulary, none of them the padding 0."""
    return torch.randint(1, model.config.vocab_size, (batch, steps), generator=torch.Generator().manual_seed(0))


def check_close(one: Tensor, other: Tensor) -> None:
    """AssertionError unless both are equal up to the order of sums in float64."""
    torch.testing.assert_close(one, other, rtol=REORDERED_FLOAT64, atol=REORDERED_FLOAT64)


def behind_a_segment(case: ModelCase, model: PreTrainedModel) -> tuple[Tensor, Any, dict[str, bool]]:
    """Tokens of three segments, the state behind the first, and the argument that asks for one."""
    ids = tokens(model, 2, 3 * SEGMENT)
    cached = {"use_cache": True} if case.state == "past_key_values" else {}
    return ids, getattr(model(ids[:, :SEGMENT], **cached), str(case.state)), cached


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
