"""How a memory reaches the layers of any base model: a context of one call, never kept on a module.

Every decoder layer is wrapped in a `MemoryLayer`. While the base model runs, a context variable holds the `LayerHooks`
of this very call (of this thread), and every `MemoryLayer` asks them what to do around its layer. They are taken away
when the call ends, by an exception too; without them, a `MemoryLayer` is its layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

_CURRENT: ContextVar["LayerHooks | None"] = ContextVar("tessera_layer_hooks", default=None)


class LayerHooks:
    """One call of the base model: what happens before and after each layer. These change nothing.

    `front`, `back`: how many memory tokens stand at the start and at the end of the sequence of this call.
    """

    def __init__(self, front: int = 0, back: int = 0):
        self.front, self.back = front, back
        self.last_hidden: Tensor | None = None  # the input of the base's head, once the call is done
        self.needed: int | None = None  # positions at the end for which the last layer's network runs; None: all
        self.left_out = 0
        # The ordinary tokens before each layer, where they are kept. What follows is computed from these very tensors,
        # so that they have gradients.
        self.inputs: list[Tensor] | None = None

    def before(self, index: int, hidden: Tensor) -> Tensor:
        """The input of layer `index` in place of `hidden`."""
        return hidden

    def after(self, index: int, hidden: Tensor) -> None:
        """Look at the output of layer `index`."""

    def run(self, index: int, layer: nn.Module, hidden: Tensor, args: tuple, kwargs: dict) -> Any:
        """Layer `index` with these hooks around it."""
        if self.inputs is not None:
            end = hidden.shape[1] - self.back
            ordinary = hidden[:, self.front : end]
            self.inputs.append(ordinary)
            hidden = torch.cat([hidden[:, : self.front], ordinary, hidden[:, end:]], 1)
        output = layer(self.before(index, hidden), *args, **kwargs)
        self.after(index, output[0] if isinstance(output, (tuple, list)) else output)
        return output

    @contextmanager
    def active(self) -> Iterator[None]:
        """For the duration of a call, in this thread."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


class MemoryLayer(nn.Module):
    """A decoder layer with the current `LayerHooks` around it; its other attributes are the layer's."""

    def __init__(self, layer: nn.Module, index: int):
        super().__init__()
        self.layer = layer
        self.index = index

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The layer's own output."""
        hooks = _CURRENT.get()
        if hooks is None:
            return self.layer(hidden_states, *args, **kwargs)
        return hooks.run(self.index, self.layer, hidden_states, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "layer":
                raise
            return getattr(self.layer, name)


def wrap_layers(layers: nn.ModuleList) -> None:
    """Put a `MemoryLayer` around each layer, in place; layers that have one keep it."""
    for index, layer in enumerate(layers):
        if not isinstance(layer, MemoryLayer):
            layers[index] = MemoryLayer(layer, index)


def leave_out_unneeded(feed_forward: nn.Module) -> None:
    """Let the last layer's position-wise `feed_forward` compute only what the current hooks need; elsewhere it is 0."""
    feed_forward.register_forward_pre_hook(_needed_positions)
    feed_forward.register_forward_hook(_in_their_place)


def _needed_positions(module: nn.Module, args: tuple) -> tuple | None:
    hooks = _CURRENT.get()
    if hooks is None or hooks.needed is None:
        return None
    hidden, *others = args
    hooks.left_out = hidden.shape[1] - hooks.needed
    return hidden[:, hooks.left_out :].contiguous(), *others


def _in_their_place(module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
    hooks = _CURRENT.get()
    return None if hooks is None or hooks.needed is None else pad(output, (0, 0, hooks.left_out, 0))


def keep_last_hidden(module: nn.Module, args: tuple, output: Any) -> None:
    """Forward hook of the base's decoder: hand its output to the current hooks."""
    hooks = _CURRENT.get()
    if hooks is not None:
        hooks.last_hidden = output[0]
