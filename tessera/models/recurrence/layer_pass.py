"""How a memory reaches the layers of any base model: a context of one call, never kept on a module.

Every decoder layer is wrapped in a `MemoryLayer`. While the base model runs, a context variable holds the `LayerPass`
of this very call (of this thread), and every `MemoryLayer` asks it what to do around its layer. It is taken away when
the call ends, by an exception too; without one, a `MemoryLayer` is its layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

_CURRENT: ContextVar["LayerPass | None"] = ContextVar("tessera_layer_pass", default=None)


class LayerPass:
    """One call of the base model: what happens before and after each layer. This one changes nothing.

    Attributes:
        front, back: how many memory tokens stand at the start and at the end of the sequence of this call.
        last_hidden: what the base model gave to its read-out, after the final norm.
    """

    def __init__(self, front: int = 0, back: int = 0):
        self.front, self.back = front, back
        self.last_hidden: Tensor | None = None

    def before(self, index: int, hidden: Tensor) -> Tensor:
        """The input of layer `index` in place of `hidden`."""
        return hidden

    def after(self, index: int, hidden: Tensor) -> None:
        """Look at the output of layer `index`."""

    def run(self, index: int, layer: nn.Module, hidden: Tensor, args: tuple, kwargs: dict) -> Any:
        """Layer `index` with this pass around it."""
        output = layer(self.before(index, hidden), *args, **kwargs)
        self.after(index, output[0] if isinstance(output, tuple) else output)
        return output

    @contextmanager
    def running(self) -> Iterator[None]:
        """For the duration of a call, in this thread."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)


class MemoryLayer(nn.Module):
    """A decoder layer that does what the current `LayerPass` says around it; its other attributes are the layer's."""

    def __init__(self, layer: nn.Module, index: int):
        super().__init__()
        self.layer = layer
        self.index = index

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The layer's own output."""
        current = _CURRENT.get()
        if current is None:
            return self.layer(hidden_states, *args, **kwargs)
        return current.run(self.index, self.layer, hidden_states, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "layer":
                raise
            return getattr(self.layer, name)


def keep_last_hidden(module: nn.Module, args: tuple, output: Any) -> None:
    """Forward hook of the base's decoder: hand its output to the current pass."""
    current = _CURRENT.get()
    if current is not None:
        current.last_hidden = output[0]
