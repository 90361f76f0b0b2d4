"""Kernels whose rows can be computed and differentiated in place: what every fast path builds on."""

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from tessera.base.devices import is_transformed
from tessera.base.errors import expect
from tessera.base.first_derivative import fresh_result, only_first_derivative, refuse_forward_derivative
from tessera.base.shapes import Float
from tessera.kernels.base import Kernel, Rows, Statistics, Visible


class Workspace:
    """Buffers that are handed out in turn and taken back all at once.

    A block of scores is used for a few passes of some ten microseconds each; memory that is fresh from the operating
    system costs ten times that in page faults. Callers with tasks of several sizes start with the largest. A workspace
    belongs to one call, not to a module or the process.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._taken = 0

    def clear(self) -> None:
        """Take all buffers back: what was handed out may be overwritten from now on."""
        self._taken = 0

    def empty(self, shape: torch.Size | tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised contiguous tensor of `shape`, with the device and, unless given, the type of `like`."""
        dtype, size = dtype or like.dtype, math.prod(shape)
        if self._taken == len(self._buffers):
            self._buffers.append(torch.empty(size, dtype=dtype, device=like.device))
        buffer = self._buffers[self._taken]
        if buffer.numel() < size or buffer.dtype != dtype:
            buffer = self._buffers[self._taken] = torch.empty(size, dtype=dtype, device=like.device)
        self._taken += 1
        return buffer[:size].view(shape)

    def empty_like(self, tensor: Tensor) -> Tensor:
        """`empty` with the shape of `tensor`."""
        return self.empty(tensor.shape, tensor)


class RowKernel(Kernel):
    """A kernel that computes weights and their gradient for rows of scores; entries of -inf are absent pairs.

    `forward` and `backward` are all that `weights` and the blocked implementation of kernel regression need, so both
    share one formula. They work on `score_scale * scores` (the blocked implementation multiplies the queries
    by the factor, which costs nothing) and may overwrite their arguments (they own the block they are given).
    """

    @property
    def score_scale(self) -> float | Tensor:
        """The factor by which scores are multiplied before `forward` and `backward` see them."""
        return 1.0

    @property
    def row_parameter(self) -> Float[Tensor, "*#rows 1"] | None:
        """What rows have of their own and is learned, if anything: `backward` returns its gradient as a third."""
        return None

    def with_row_parameter(self, parameter: Float[Tensor, "*#rows 1"]) -> "RowKernel":
        """This kernel with other row parameters; the kernel itself where it has none."""
        return self

    def expect_rows(self, where: str, shape: tuple[int, ...]) -> None:
        """Raise `TesseraError` unless the row parameter, if any, broadcasts to rows of this shape."""
        if self.row_parameter is None:
            return
        got, full = self.row_parameter.shape, (*shape, 1)
        fits = len(got) <= len(full) and all(size in (1, rows) for size, rows in zip(got[::-1], full[::-1]))
        if not fits:
            what, needed = f"parameters of the kernel {self.name!r}", f"broadcast to {full}, one for each row"
            expect(False, where, what, needed, tuple(got))

    @abstractmethod
    def forward(self, scaled: Rows, workspace: Workspace) -> tuple[Rows, Statistics]:
        """Weights (..., N), zero in rows without finite entry, and the row statistics `backward` needs.

        The statistics have few entries per row, (..., 1) in most kernels: they are all that is kept for the
        backward pass. `scaled` may be overwritten; N is at least 1. The weights, not the statistics, may lie in
        `scaled` or in buffers of `workspace`.
        """

    @abstractmethod
    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Tensor, ...]:
        """The weights again, and the gradient of `sum(weights * grad)` with respect to the *unscaled* scores.

        Both are (..., N); behind them, that of the row parameter (..., 1) where there is one. `scaled` holds the same
        numbers as in `forward`. `scaled` and `grad` may be overwritten, and hold the results.
        """

    def weights(self, scores: Rows, visible: Visible = None) -> Rows:
        """`forward` with `backward` as its derivative; see `Kernel.weights`."""
        if scores.shape[-1] == 0:
            return scores
        masked, parameter = self.masked(scores, visible), self.row_parameter
        parameter = None if parameter is None else parameter.to(masked)
        refuse_forward_derivative("the weights of a kernel")
        arguments = (masked, parameter, self)
        has_gradient = masked.requires_grad or (parameter is not None and parameter.requires_grad)
        if is_transformed() or (torch.is_grad_enabled() and has_gradient):
            return _RowWeights.apply(*arguments)[0].to(scores.dtype)
        return _RowWeights.forward(*arguments)[0].to(scores.dtype)  # an autograd function's call takes 50 microseconds


class _RowWeights(torch.autograd.Function):
    """`kernel.forward` with `kernel.backward` as its derivative; the statistics come out for `torch.func`."""

    @staticmethod
    def forward(scores: Tensor, parameter: Tensor | None, kernel: RowKernel) -> tuple[Tensor, ...]:
        """The weights (..., N) of scores (..., N), and the statistics of their rows."""
        kernel = kernel if parameter is None else kernel.with_row_parameter(parameter)
        weights, statistics = kernel.forward(scores * kernel.score_scale, Workspace())
        # PyTorch would take weights that are kept as they are for a statistic, which has no gradient.
        return fresh_result(weights), *(kept.detach() if kept is weights else kept for kept in statistics)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        scores, parameter, ctx.kernel = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(scores, parameter, *output[1:])

    @staticmethod
    @only_first_derivative("the weights of a kernel")
    def backward(ctx, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the scores and of the row parameter, from that of the weights."""
        scores, parameter, *statistics = ctx.saved_tensors
        apply = _RowGradients.apply if is_transformed() else _RowGradients.forward
        d_scores, *rest = apply(scores, parameter, ctx.kernel, grad, *statistics)
        return d_scores, rest[0].sum_to_size(parameter.shape) if rest else None, None

    @staticmethod
    def vmap(info, in_dims: tuple, *inputs: Any) -> tuple:
        """Of rows with one more dimension."""
        return _mapped(_RowWeights, info.batch_size, in_dims, inputs)


class _RowGradients(torch.autograd.Function):
    """The backward pass of `_RowWeights`, as something that `vmap` can map."""

    @staticmethod
    def forward(
        scores: Tensor, parameter: Tensor | None, kernel: RowKernel, grad: Tensor, *statistics: Tensor
    ) -> tuple[Tensor, ...]:
        """Those of scores (..., N) and, of each row, of its parameter (..., 1) if there is one."""
        kernel = kernel if parameter is None else kernel.with_row_parameter(parameter)
        return kernel.backward(scores * kernel.score_scale, statistics, grad.clone(), Workspace())[1:]

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        """Nothing: `only_first_derivative` calls it."""

    @staticmethod
    def vmap(info, in_dims: tuple, *inputs: Any) -> tuple:
        """Of rows with one more dimension."""
        return _mapped(_RowGradients, info.batch_size, in_dims, inputs)


def _mapped(function: type[torch.autograd.Function], size: int, dims: tuple, inputs: tuple) -> tuple:
    """`function` with the dimension of `vmap` in front of all tensors; the first has as many dimensions as any."""
    rank = inputs[0].dim() - (dims[0] is not None)

    def in_front(value: Any, dim: int | None) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        return value.reshape(size, *[1] * (rank + 1 - value.dim()), *value.shape[1:])

    outputs = function.apply(*map(in_front, inputs, dims))
    return outputs, (0,) * len(outputs)


def row_maximum(scores: Rows) -> Float[Tensor, "*rows 1"]:
    """Largest entry of each row (..., 1); 0 for rows that hold nothing but -inf, so that differences stay defined."""
    largest = scores.amax(dim=-1, keepdim=True)
    return largest.masked_fill_(largest == -torch.inf, 0.0)
