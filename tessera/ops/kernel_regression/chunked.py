"""Kernel regression in blocks: exact, with memory linear in the number of queries and pairs, for every row kernel.

The derivation, the counts and the measurements are in README.md of this folder.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tessera.kernels.rows import RowKernel
from tessera.kernels.workspace import Workspace
from tessera.ops.kernel_regression.call import Call
from tessera.ops.kernel_regression.query_blocks import QueryBlock, query_blocks

# Up to this many columns the CPU multiplies the transposed matrices faster: five times at 2 columns.
NARROW_WIDTH = 8


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    if not isinstance(call.kernel, RowKernel):
        return f"the kernel {call.kernel.name!r} has no `forward` and `backward` (it is not a RowKernel)"
    if call.dropout:
        return "it has no dropout of weights"
    return None


def run(call: Call) -> Tensor:
    """`y_T = sum_i w_i v_i` block by block; time O(visible pairs), memory O(T + N) per head beside one block.

    Scores, thresholds and sums are computed in float32 (float64 inputs: float64), products of weights with values
    and of gradients with keys and queries in the inputs' type. Not twice differentiable.
    """
    rows = call.query.shape[:3]
    dtype = working_dtype(call.query)
    slope, intercept = (
        # Widened before it is expanded: the gradient of a slope shared by many queries is summed in `dtype`.
        None if scale is None else torch.as_tensor(scale, device=call.query.device).to(dtype).expand(rows)
        for scale in (call.slope, call.intercept)
    )
    return _Blockwise.apply(call.query, call.key, call.value, slope, intercept, call)


class _Blockwise(torch.autograd.Function):
    """Saved for backward: the inputs and the kernel's row statistics, nothing of size T x N."""

    @staticmethod
    def forward(ctx, query, key, value, slope, intercept, call: Call) -> Tensor:
        """`y_t = sum_i w_ti v_i`, a block of queries at a time: (B, H, T, V) in the type of `value`."""
        kernel = call.kernel
        assert isinstance(kernel, RowKernel), "unsupported_reason refuses others"
        work = _Work(query, key, value, slope, intercept, kernel)
        output = work.empty_like_queries(value.shape[-1])
        statistics = []
        for block in query_blocks(call):
            for group in block.groups(query.shape[1]):
                weights, kept = kernel.forward(work.scores(block, group), work.spare)
                work.add_product(output, group, block.queries, weights, work.value[group, block.pairs])
                statistics.append(kept)
        ctx.call = call
        ctx.lengths = [len(kept) for kept in statistics]
        ctx.save_for_backward(query, key, value, slope, intercept, *(part for kept in statistics for part in kept))
        return output.view(*query.shape[:3], value.shape[-1]).to(value.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """Gradients from that of y, (B, H, T, V): each block's weights are computed again from the row statistics."""
        query, key, value, slope, intercept, *parts = ctx.saved_tensors
        call, parts = ctx.call, iter(parts)
        work = _Work(query, key, value, slope, intercept, call.kernel)
        grad = flatten(grad, work.dtype)
        sums = _Gradients(work, with_intercept=ctx.needs_input_grad[4])
        lengths = iter(ctx.lengths)
        for block in query_blocks(call):
            for group in block.groups(query.shape[1]):
                statistics = tuple(next(parts) for _ in range(next(lengths)))
                above = grad[group, block.queries]
                scores = work.scores(block, group)
                grad_weights = work.outer(above, work.value[group, block.pairs])
                weights, grad_scores = call.kernel.backward(scores, statistics, grad_weights, work.spare)
                sums.add(block, group, weights, grad_scores, above)
        return (*sums.finish(query, key, value, slope, intercept), None)


class _Work:
    """The inputs of one call with (batch, head) flattened to one dimension, in the type of the computation."""

    def __init__(self, query, key, value, slope, intercept, kernel: RowKernel) -> None:
        self.dtype = working_dtype(query)
        # Float16 products are slow on CPUs and overflow; bfloat16 ones are several times faster than float32.
        self.half = torch.bfloat16 if value.dtype == torch.bfloat16 else None
        self.query, self.key, self.value = (flatten(tensor, self.dtype) for tensor in (query, key, value))
        self.spare = Workspace()
        self.score_scale = kernel.score_scale
        self.slope = slope.flatten(0, 1).unsqueeze(-1)
        self.intercept = None
        if intercept is not None:
            self.intercept = intercept.flatten(0, 1).unsqueeze(-1) * kernel.score_scale

    def scores(self, block: QueryBlock, group: slice) -> Tensor:
        """`score_scale * scores` of one block (heads, queries, pairs), -inf where hidden."""
        self.spare.clear()
        query = self.sloped_query(block, group) * self.score_scale
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

    def __init__(self, work: _Work, with_intercept: bool) -> None:
        self.work = work
        self.query, self.slope = torch.zeros_like(work.query), work.empty_like_queries(1)
        self.key, self.value = torch.zeros_like(work.key), torch.zeros_like(work.value)
        self.intercept = work.empty_like_queries(1) if with_intercept else None

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

    def finish(self, query, key, value, slope, intercept) -> tuple[Tensor | None, ...]:
        """The gradients of query, key, value, slope and intercept, in their shapes and types."""
        grad_query, grad_key, grad_value = (
            total.view(like.shape).to(like.dtype)
            for total, like in zip((self.query, self.key, self.value), (query, key, value))
        )
        grad_intercept = None
        if self.intercept is not None:
            grad_intercept = self.intercept.view(intercept.shape)
        return grad_query, grad_key, grad_value, self.slope.view(slope.shape), grad_intercept


def working_dtype(query: Tensor) -> torch.dtype:
    """The type of scores, thresholds and sums: float32, or float64 where the inputs have it."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def flatten(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, H, length, width) -> (B H, length, width) in `dtype`."""
    return tensor.flatten(0, 1).to(dtype)
