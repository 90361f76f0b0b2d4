"""The two passes of the blocked implementation: answers block by block, and their gradients."""

from collections.abc import Sequence

import torch
from torch import Tensor

from tessera.kernels.rows import RowKernel, Workspace
from tessera.ops.kernel_regression.call import Call
from tessera.ops.kernel_regression.query_blocks import QueryBlock, query_blocks

# Up to this many columns the CPU multiplies the transposed matrices faster: five times at 2 columns.
NARROW_WIDTH = 8

Statistics = list[tuple[Tensor, ...]]


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
