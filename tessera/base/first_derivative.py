"""For backward passes of one's own that are no functions of the operation's inputs as far as autograd can see.

What they take from `ctx` beside inputs and outputs counts as a constant in a second derivative, which would be another
number. PyTorch's `once_differentiable` leaves such a part out without a word where the gradient it is given has no
graph, or where the part is not on the way to what is asked for.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from tessera.base.errors import TesseraError


def only_first_derivative(name: str) -> Callable[[Callable], Callable]:
    """Decorate `backward(ctx, *grads)` of the operation `name`: differentiating its result raises `TesseraError`.

    The inputs of the operation, or its outputs, must be among `ctx.saved_tensors`.
    """

    def decorate(backward: Callable) -> Callable:
        @wraps(backward)
        def wrapped(ctx: Any, *grads: Tensor | None) -> Any:
            with torch.no_grad():
                results = backward(ctx, *grads)
            if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                return results
            alone = isinstance(results, Tensor)
            results = [results] if alone else list(results)
            indices = [index for index, result in enumerate(results) if isinstance(result, Tensor)]
            sources = (source for source in (*ctx.saved_tensors, *grads) if isinstance(source, Tensor))
            linked = [source for source in sources if source.requires_grad]
            made = _Refusal.apply(name, len(indices), *(results[index] for index in indices), *linked)
            for index, result in zip(indices, made, strict=True):
                results[index] = result
            return results[0] if alone else tuple(results)

        return wrapped

    return decorate


def refuse_forward_derivative(name: str) -> None:
    """`TesseraError` where one is taken: for an autograd function of ours PyTorch has another message, or none."""
    if torch.autograd.forward_ad._current_level >= 0:
        raise TesseraError(f"{name}: a forward derivative (jvp, jacfwd) is not there; take grad, vjp or jacrev.")


def fresh_result(result: Tensor) -> Tensor:
    """`result` of the forward pass of an autograd function, in a compiled program as a tensor made just for it.

    In PyTorch 2.11 a compiled function whose result was written in place, or passed through a `to` that changes
    nothing, has a gradient of 0: the program returns that tensor once per operation, and autograd keeps the last.
    """
    return result.clone() if torch.compiler.is_compiling() else result


class _Refusal(torch.autograd.Function):
    """Gives back the first `count` tensors; its derivative, by all of them, is an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(name: str, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Copies without data of their own."""
        return tuple(tensor.view_as(tensor) for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        ctx.name = inputs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> None:
        raise TesseraError(
            f"{ctx.name}: a second derivative is not there: its backward pass cannot be differentiated. "
            'For kernel_regression the gaussian kernel has one, by backend="reference".'
        )
