"""Gradients of a tensor that is put together from segments, for whom calls its `retain_grad`.

What follows in the model was computed from the tensors of the segments, not from the whole: their gradients are added.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Seen(NamedTuple):
    """`source[..., *parts]`, which is returned, of `source`, which the model goes on with."""

    source: Tensor
    parts: tuple[slice, ...] = ()

    def of(self, tensor: Tensor) -> Tensor:
        """This part of a tensor of the source's shape."""
        index: Any = (..., *self.parts)
        return tensor[index]


class Followed:
    """The parts of one whole tensor."""

    def __init__(self) -> None:
        self.parts: list[tuple[Seen, Tensor, Callable[[Tensor, Tensor], None]]] = []

    def part(self, seen: Seen, add: Callable[[Tensor, Tensor], None]) -> Tensor:
        """The part itself; `add(whole, values)` adds values of its shape to its place in the whole."""
        part = seen.of(seen.source)
        if part.requires_grad and not torch.compiler.is_compiling():
            self.parts.append((seen, part, add))
        return part

    def whole(self, whole: Tensor) -> Tensor:
        """`whole`, whose retained gradient will have what reaches its parts through the model."""
        whole = whole.view_as(whole) if any(whole is slice_of_whole for _, slice_of_whole, _ in self.parts) else whole
        for seen, slice_of_whole, add in self.parts:
            direct: dict[str, Tensor] = {}  # what reaches the part through the whole, which autograd adds by itself
            slice_of_whole.register_hook(partial(direct.__setitem__, "gradient"))
            seen.source.register_hook(partial(_pass_on, weakref.ref(whole), direct, seen, add))
        return whole


def _pass_on(
    reference: Callable[[], Tensor | None],
    direct: dict[str, Tensor],
    seen: Seen,
    add: Callable[[Tensor, Tensor], None],
    gradient: Tensor,
) -> None:
    gradient, through_whole, whole = seen.of(gradient), direct.pop("gradient", None), reference()
    if whole is not None and whole.retains_grad:
        whole.grad = torch.zeros_like(whole) if whole.grad is None else whole.grad
        add(whole.grad, gradient if through_whole is None else gradient - through_whole)
