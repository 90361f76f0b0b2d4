"""Kernel regression in blocks: exact, with memory linear in the number of queries and pairs, for every row kernel.

The derivation, the counts and the measurements are in README.md of this folder.

In compiled programs it is an operator that PyTorch knows, with its gradient, so that `torch.compile` takes it as one
step of its graph: it would unroll the loop over blocks, whose number depends on the lengths and on the documents. Its
backward pass computes the row statistics again, as their number depends on these too.
"""

import json
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.kernels.base import KERNELS, kernel_from_config
from tessera.kernels.rows import RowKernel, Workspace
from tessera.ops.kernel_regression.call import Call, Window
from tessera.ops.kernel_regression.query_blocks import QueryBlock, query_blocks

# Up to this many columns the CPU multiplies the transposed matrices faster: five times at 2 columns.
NARROW_WIDTH = 8

Statistics = list[tuple[Tensor, ...]]
_CALL = (
    "Tensor query, Tensor key, Tensor value, Tensor slope, Tensor? intercept, str kernel, SymInt offset, "
    "SymInt? delay, SymInt? span, Tensor? delays, Tensor? query_documents, Tensor? pair_documents"
)


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    if not isinstance(call.kernel, RowKernel):
        return f"the kernel {call.kernel.name!r} has no `forward` and `backward` (it is not a RowKernel)"
    if call.dropout:
        return "it has no dropout of weights"
    name = call.kernel.name
    if torch.compiler.is_compiling() and not KERNELS.holds(name, type(call.kernel)):
        return f"a compiled program finds kernels by their name, and {name!r} is not registered"
    return None


def run(call: Call) -> Tensor:
    """`y_T = sum_i w_i v_i` block by block; time O(visible pairs), memory O(T + N) per head beside one block.

    Scores, thresholds and sums are computed in float32 (float64 inputs: float64), products of weights with values
    and of gradients with keys and queries in the inputs' type. Not twice differentiable.
    """
    slope = _expanded(call.slope, call)
    intercept = None if call.intercept is None else _expanded(call.intercept, call)
    call = replace(call, slope=slope, intercept=intercept)
    if torch.compiler.is_compiling():
        return regress(*arguments(call))
    assert isinstance(call.kernel, RowKernel), "unsupported_reason refuses others"
    parameter = call.kernel.row_parameter
    parameter = None if parameter is None else parameter.to(slope).expand(*slope.shape, 1)
    return _Blockwise.apply(call.query, call.key, call.value, slope, intercept, parameter, call)


def _expanded(scale: Tensor, call: Call) -> Tensor:
    """Widened before it is expanded: the gradient of a slope shared by many queries is summed in the wide type."""
    return scale.to(call.query.device, working_dtype(call.query)).expand(call.query.shape[:3])


class _Blockwise(torch.autograd.Function):
    """Saved for backward: the inputs and the kernel's row statistics, nothing of size T x N."""

    @staticmethod
    def forward(ctx, query, key, value, slope, intercept, parameter, call: Call) -> Tensor:
        """`y_t = sum_i w_ti v_i`, a block of queries at a time: (B, H, T, V) in the type of `value`."""
        call = _with_tensors(call, query, key, value, slope, intercept, parameter)
        output, statistics = answers(call)
        ctx.call = call
        ctx.lengths = [len(kept) for kept in statistics]
        kept_parts = (part for kept in statistics for part in kept)
        ctx.save_for_backward(query, key, value, slope, intercept, parameter, *kept_parts)
        return output

    @staticmethod
    @only_first_derivative("kernel_regression")
    def backward(ctx, grad: Tensor):
        """Gradients from that of y, (B, H, T, V): each block's weights are computed again from the row statistics."""
        query, key, value, slope, intercept, parameter, *parts = ctx.saved_tensors
        call = _with_tensors(ctx.call, query, key, value, slope, intercept, parameter)
        remaining = iter(parts)
        statistics = [tuple(next(remaining) for _ in range(length)) for length in ctx.lengths]
        return (*gradients(call, statistics, grad), None)


def _with_tensors(call: Call, query, key, value, slope, intercept, parameter) -> Call:
    assert isinstance(call.kernel, RowKernel), "unsupported_reason refuses others"
    kernel = call.kernel if parameter is None else call.kernel.with_row_parameter(parameter)
    return replace(call, query=query, key=key, value=value, slope=slope, intercept=intercept, kernel=kernel)


def arguments(call: Call) -> tuple:
    """`call` as the operator takes it."""
    kernel = _text_of(call.kernel.to_config())
    return call.query, call.key, call.value, call.slope, call.intercept, kernel, *call.visibility()


@torch.compiler.assume_constant_result
def _text_of(config: dict[str, object]) -> str:
    return json.dumps(config)  # of plain values: torch 2.11 cannot hand on a dataclass


def _call(
    query, key, value, slope, intercept, kernel, offset, delay, span, delays, query_documents, pair_documents
) -> Call:
    window = None if delay is None and delays is None else Window(delay if delays is None else delays, span)
    spec = kernel_from_config(json.loads(kernel))
    return Call(query, key, value, spec, slope, intercept, window, offset, query_documents, pair_documents)


@torch.library.custom_op("tessera::kernel_regression_in_blocks", mutates_args=(), schema=f"({_CALL}) -> Tensor")
def regress(*arguments):
    """y (B, H, T, V)."""
    return answers(_call(*arguments))[0]


@regress.register_fake
def _(query, key, value, *rest):
    return value.new_empty(*query.shape[:3], value.shape[-1])


@torch.library.custom_op(
    "tessera::kernel_regression_in_blocks_backward", mutates_args=(), schema=f"(Tensor grad, {_CALL}) -> Tensor[]"
)
def regress_backward(grad, *arguments):
    """Gradients of query, key, value, slope and, if there is one, intercept."""
    call = _call(*arguments)
    # A compiled program expects the strides that the operator announces, whatever those of its inputs.
    return [part.contiguous() for part in gradients(call, answers(call)[1], grad) if part is not None]


@regress_backward.register_fake
def _(grad, query, key, value, slope, intercept, *rest):
    tensors = (query, key, value, slope) if intercept is None else (query, key, value, slope, intercept)
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _save(ctx, inputs, output) -> None:
    *tensors, kernel, offset, delay, span, delays, query_documents, pair_documents = inputs
    ctx.plan = (kernel, offset, delay, span)
    ctx.save_for_backward(*tensors, delays, query_documents, pair_documents)


@only_first_derivative("kernel_regression")
def _differentiate(ctx, grad):
    query, key, value, slope, intercept, *masks = ctx.saved_tensors
    parts = regress_backward(grad, query, key, value, slope, intercept, *ctx.plan, *masks)
    with_intercept = parts if intercept is not None else [*parts, None]
    return *with_intercept, *[None] * 7


regress.register_autograd(_differentiate, setup_context=_save)


def answers(call: Call) -> tuple[Tensor, Statistics]:
    """y (B, H, T, V) in the values' type, and the kernel's row statistics of every block: all that `gradients` needs.

    The slope, and the intercept unless it is None, are (B, H, T) in the type of the computation, and so is the kernel's
    row parameter, (B, H, T, 1).
    """
    work = _Work(call)
    output, statistics = work.empty_like_queries(call.value.shape[-1]), []
    for block in query_blocks(call):
        for group in block.groups(call.query.shape[1]):
            weights, kept = work.kernel_of(block, group).forward(work.scores(block, group), work.spare)
            work.add_product(output, group, block.queries, weights, work.value[group, block.pairs])
            statistics.append(kept)
    return output.view(*call.query.shape[:3], call.value.shape[-1]).to(call.value.dtype), statistics


def gradients(call: Call, statistics: Sequence[tuple[Tensor, ...]], grad: Tensor) -> tuple[Tensor | None, ...]:
    """Those of query, key, value, slope, intercept and row parameter (None without one), from that of y."""
    work = _Work(call)
    grad, remaining = flatten(grad, work.dtype), iter(statistics)
    sums = _Gradients(work)
    for block in query_blocks(call):
        for group in block.groups(call.query.shape[1]):
            above = grad[group, block.queries]
            scores = work.scores(block, group)
            grad_weights = work.outer(above, work.value[group, block.pairs])
            kernel = work.kernel_of(block, group)
            weights, grad_scores, *rest = kernel.backward(scores, next(remaining), grad_weights, work.spare)
            sums.add(block, group, weights, grad_scores, above)
            if sums.parameter is not None:
                sums.parameter[group, block.queries] = rest[0]
    return sums.finish(call)


class _Work:
    """The inputs of one call with (batch, head) flattened to one dimension, in the type of the computation."""

    def __init__(self, call: Call) -> None:
        assert isinstance(call.kernel, RowKernel), "unsupported_reason refuses others"
        self.kernel, self.dtype = call.kernel, working_dtype(call.query)
        self.parameter = None if self.kernel.row_parameter is None else self.kernel.row_parameter.flatten(0, 1)
        if self.parameter is not None:
            self.kernel = self.kernel.with_row_parameter(self.parameter)
        # Float16 products are slow on CPUs and overflow; bfloat16 ones are several times faster than float32.
        self.half = torch.bfloat16 if call.value.dtype == torch.bfloat16 else None
        self.query, self.key, self.value = (
            flatten(tensor, self.dtype) for tensor in (call.query, call.key, call.value)
        )
        self.spare = Workspace()
        self.slope = call.slope.flatten(0, 1).unsqueeze(-1)
        self.intercept = None
        if call.intercept is not None:
            self.intercept = call.intercept.flatten(0, 1).unsqueeze(-1) * self.kernel.score_scale

    def kernel_of(self, block: QueryBlock, group: slice) -> RowKernel:
        """The kernel of one block's queries."""
        if self.parameter is None:
            return self.kernel
        return self.kernel.with_row_parameter(self.parameter[group, block.queries])

    def scores(self, block: QueryBlock, group: slice) -> Tensor:
        """`score_scale * scores` of one block (heads, queries, pairs), -inf where hidden."""
        self.spare.clear()
        query = self.sloped_query(block, group) * self.kernel_of(block, group).score_scale
        scores = self.outer(query, self.key[group, block.pairs])
        if self.intercept is not None:
            scores += self.intercept[group, block.queries]
        block.hide(scores)
        return scores

    def sloped_query(self, block: QueryBlock, group: slice) -> Tensor:
        """`slope * query` of one block."""
        return self.query[group, block.queries] * self.slope[group, block.queries]

    def outer(self, left: Tensor, right: Tensor) -> Tensor:
        """`left @ right^T` of (heads, queries, width) and (heads, pairs, width), in spare memory."""
        shape = (left.shape[0], left.shape[1], right.shape[1])
        return torch.bmm(left, right.mT, out=self.spare.empty(shape, left))

    def add_product(self, sums: Tensor, group: slice, rows: slice, left: Tensor, right: Tensor) -> None:
        """`sums[group, rows] += left @ right`; in bfloat16 with sums in float32 where values are bfloat16."""
        target = sums[group, rows]
        if self.half is None and right.shape[-1] <= NARROW_WIDTH and right.device.type == "cpu":
            target += self.outer(right.mT.contiguous(), left).mT
        elif self.half is None:
            target.baddbmm_(left, right)
        else:
            rounded = self.spare.empty(left.mT.shape if left.stride(-1) != 1 else left.shape, left, self.half)
            rounded = rounded.mT if left.stride(-1) != 1 else rounded
            target += torch.bmm(rounded.copy_(left), right.to(self.half))

    def empty_like_queries(self, width: int) -> Tensor:
        """Zeros (batch * heads, T, width): what queries without visible pair keep."""
        return self.query.new_zeros(*self.query.shape[:2], width)


class _Gradients:
    """Sums of the blocks' gradients."""

    def __init__(self, work: _Work) -> None:
        self.work = work
        self.query, self.slope = torch.zeros_like(work.query), work.empty_like_queries(1)
        self.key, self.value = torch.zeros_like(work.key), torch.zeros_like(work.value)
        self.intercept = work.empty_like_queries(1) if work.intercept is not None else None
        self.parameter = work.empty_like_queries(1) if work.parameter is not None else None

    def add(self, block: QueryBlock, group: slice, weights: Tensor, grad_scores: Tensor, above: Tensor) -> None:
        """Add one block's part, given its weights, the gradient of its scores and that of its outputs."""
        work, queries, pairs = self.work, block.queries, block.pairs
        if self.intercept is not None:
            self.intercept[group, queries] = grad_scores.sum(-1, keepdim=True)
        work.add_product(self.value, group, pairs, weights.mT, above)
        work.add_product(self.key, group, pairs, grad_scores.mT, work.sloped_query(block, group))
        work.add_product(self.query, group, queries, grad_scores, work.key[group, pairs])
        # So far that is the gradient of slope * query, which no other block adds to.
        product = self.query[group, queries]
        self.slope[group, queries] = (product * work.query[group, queries]).sum(-1, keepdim=True)
        product.mul_(work.slope[group, queries])

    def finish(self, call: Call) -> tuple[Tensor | None, ...]:
        """The gradients of query, key, value, slope, intercept and row parameter, in their shapes and types."""
        grad_query, grad_key, grad_value = (
            total.view(like.shape).to(like.dtype)
            for total, like in zip((self.query, self.key, self.value), (call.query, call.key, call.value))
        )
        grad_intercept = None if self.intercept is None else self.intercept.view(call.slope.shape)
        grad_parameter = None if self.parameter is None else self.parameter.view(*call.slope.shape, 1)
        return grad_query, grad_key, grad_value, self.slope.view(call.slope.shape), grad_intercept, grad_parameter


def working_dtype(query: Tensor) -> torch.dtype:
    """The type of scores, thresholds and sums: float32, or float64 where the inputs have it."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def flatten(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, H, length, width) -> (B H, length, width) in `dtype`."""
    return tensor.flatten(0, 1).to(dtype)
