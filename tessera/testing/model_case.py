"""A model that laws are tried on, and what they give it to read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

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
