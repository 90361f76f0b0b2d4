"""Logits that are computed when somebody looks at them.

A training step needs the loss alone, which is made from a block of logits at a time; holding all of them costs more
memory than the model. But a loss of the user's own reads `output.logits`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from tessera.base.errors import TesseraError, expect


class LazyLogits:
    """What `compute(hidden)` gives, under the autocast of the call that made `hidden`.

    Autocast's logits are float32, as accelerate makes those that it sees. `head` is what `compute` calls: when its
    weights have changed since, or `hidden` is None because it was not kept, looking raises `TesseraError`.
    """

    def __init__(self, compute: Callable[[Tensor], Tensor], hidden: Tensor | None, head: nn.Module):
        kind = "cpu" if hidden is None else hidden.device.type
        self.compute, self.hidden, self.head = compute, hidden, head
        self.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        self.versions = _versions(head)

    def value(self) -> Tensor:
        """The logits."""
        is_fresh = self.versions == _versions(self.head)
        where, advice = "output.logits", "Call the model with skip_logits=False."
        if self.hidden is None:
            raise TesseraError(f"{where}: the loss did not keep what the head reads. {advice}")
        advice = "Read output.logits before the optimizer's step, or call the model with skip_logits=False."
        expect(is_fresh, where, "the lm_head", "be that of the call", "changed weights", advice)
        kind, dtype, enabled = self.autocast
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            logits = self.compute(self.hidden)
        return logits.float() if enabled else logits


def _versions(module: nn.Module) -> list[int]:
    return [0 if parameter.is_inference() else parameter._version for parameter in module.parameters()]


class LooksUpLogits(ModelOutput):
    """An output whose logits may be `LazyLogits`: attributes and items are tensors.

    `items()` and `values()` leave them alone: wrappers that rebuild an output from these keep them lazy.
    """

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if isinstance(value, LazyLogits):
            value = value.value()
            setattr(self, name, value)
        return value

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int):
            key = tuple(self.keys())[key]
        value = super().__getitem__(key)
        return getattr(self, key) if isinstance(value, LazyLogits) else value

    def get(self, key: str, default: Any = None) -> Any:
        """As a dictionary's."""
        return self[key] if key in self else default  # noqa: SIM401 (which would call itself)


@dataclass
class LazyOutput(LooksUpLogits, CausalLMOutputWithPast):
    """A causal language model's."""
