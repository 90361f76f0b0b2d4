"""Gaussian kernel regression in bfloat16 on CPUs: blocks of softmax weights that stay in cache.

PyTorch's fused attention spends most of its time on CPUs outside the products. Here each block of scores is written by
one product and turned into weights by one softmax, both in bfloat16. What bfloat16 would lose is put into the
products, which sum in float32: scores are centred on an upper bound of the row, `slope (q . k_i - |q| max_j |k_j|)`,
so that those that matter are small and rounding them costs little; and the backward pass subtracts `sum_i w_i g_i`
inside the product that makes the g_i, through two extra columns. Counts and measurements are in README.md.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tessera.base.devices import device_type, is_readable
from tessera.base.first_derivative import only_first_derivative
from tessera.kernels.gaussian import Gaussian
from tessera.ops.kernel_regression.call import Call
from tessera.ops.kernel_regression.query_blocks import QUERIES, QueryBlock, query_blocks

# Queries per block when every query sees every pair: fewer sums over blocks, and no future to skip.
UNMASKED_QUERIES = 512
# A score of 64 rounded to bfloat16 is off by up to an eighth. Larger ones take a backend with float32 scores.
LARGEST_SCORE = 64.0
# Weights of one call that are kept for its backward pass at most; more are computed again there, block by block.
KEPT_BYTES = 1 << 26


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    if type(call.kernel) is not Gaussian:
        return f"it computes the gaussian kernel only, not {call.kernel.name!r}"
    if device_type(call.query) != "cpu" or call.value.dtype != torch.bfloat16 or call.query.dtype != torch.bfloat16:
        return f"it is for bfloat16 on a CPU, not {call.query.dtype} on {call.query.device.type}"
    if call.dropout:
        return "it has no dropout of weights"
    if torch.compiler.is_compiling():
        return "its blocks are a Python loop, which torch.compile would unroll"
    if call.query.shape[2] == 1:
        return "a single query has no block to fill (the fused backend is faster)"
    if is_readable(call.query) and _largest_score(call) > LARGEST_SCORE:
        return f"scores above {LARGEST_SCORE:g} lose too much in bfloat16"
    return None


def _largest_score(call: Call) -> float:
    """What the scores are centred on, at most; of keys and queries no longer than 1 the slope."""
    longest = 1.0
    for vectors in (call.query, call.key):
        if vectors.numel():
            longest *= max(1.0, float(_lengths(vectors.detach()).max()))
    return call.largest_slope() * longest


def _lengths(vectors: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vectors, dim=-1, dtype=torch.float32)


def run(call: Call) -> Tensor:
    """Softmax weights block by block: time O(visible pairs); memory O(T + N) per head, one block, and KEPT_BYTES."""
    if call.key.shape[2] == 0:
        return call.zeros()
    slope = call.slope.float().expand(call.query.shape[:3])
    return _Bfloat16.apply(call.query, call.key, call.value, slope, call)


class _Bfloat16(torch.autograd.Function):
    """Softmax regression in blocks; see the module's docstring for what is summed in float32."""

    @staticmethod
    def forward(ctx, query, key, value, slope, call: Call) -> Tensor:
        """`y_t = sum_i w_ti v_i` (B, H, T, V), `w_t = softmax(slope_t q_t . k_i)`; zeros where no pair is visible."""
        batch, heads, steps, _ = query.shape
        # Laid out as (B, T, H, V): the combining layer then reads it without a copy.
        output = query.new_empty(batch, steps, heads, value.shape[-1]).transpose(1, 2)
        with torch.autocast("cpu", enabled=False):
            work = _Work(query, key, value, slope)
            kept, covered = _Kept(any(ctx.needs_input_grad)), 0
            for block, group, weights in work.blocks(call, heads):
                kept.add(weights)
                part = torch.bmm(weights, work.value[group, block.pairs])
                for index, rows in zip(range(group.start, group.stop), part):
                    output[index // heads, index % heads, block.queries] = rows
                covered += part.shape[0] * part.shape[1]
        if covered < batch * heads * steps:
            _clear_uncovered(output, call)
        ctx.call = call
        ctx.save_for_backward(query, key, value, slope, output, *kept.weights)
        return output

    @staticmethod
    @only_first_derivative("kernel_regression")
    def backward(ctx, grad: Tensor):
        """Gradients from g, that of y: of the scores `w_ti (g_t . v_i - g_t . y_t)`, of the values `sum_t w_ti g_t`."""
        query, key, value, slope, output, *kept = ctx.saved_tensors
        heads = query.shape[1]
        work = _Work(query, key, value, slope)
        grad_query = torch.zeros_like(work.query[..., : query.shape[-1]])
        grad_key, grad_value = (
            key.new_zeros(work.key.shape[0], *pairs.shape[2:], dtype=torch.float32) for pairs in (key, value)
        )
        above, value_and_ones = _with_mean_gradient(grad, output), _append(work.value, 1.0, 1.0)
        width = value.shape[-1]
        for block, group, weights in work.blocks(ctx.call, heads, kept):
            upper = above[group, block.queries]
            grad_value[group, block.pairs] += torch.bmm(weights.mT, upper[..., :width])
            # w_i (g_i - sum_j w_j g_j): the difference is made inside the product, in float32. The last columns of keys
            # and queries are those of the centring.
            grad_scores = torch.bmm(upper, value_and_ones[group, block.pairs].mT).mul_(weights)
            torch.bmm(grad_scores, work.key[group, block.pairs, :-1], out=grad_query[group, block.queries])
            grad_key[group, block.pairs] += torch.bmm(grad_scores.mT, work.query[group, block.queries, :-1])
        grad_query = grad_query.view(query.shape)
        grad_slope = torch.linalg.vecdot(grad_query, query).float()
        grad_query = grad_query * slope.unsqueeze(-1).to(query.dtype)
        grad_key, grad_value = grad_key.view(key.shape).to(key.dtype), grad_value.view(value.shape).to(value.dtype)
        return grad_query, grad_key, grad_value, grad_slope, None


class _Kept:
    """The weights of all blocks, for the backward pass; none of them where they are more than KEPT_BYTES together."""

    def __init__(self, needs_backward: bool) -> None:
        self.room = KEPT_BYTES if needs_backward else 0
        self.weights: list[Tensor] = []

    def add(self, weights: Tensor) -> None:
        """Keep the next block's weights, or forget those of all blocks when there is no room for them."""
        self.room -= weights.nbytes
        if self.room >= 0:
            self.weights.append(weights)
        else:
            self.weights.clear()


class _Work:
    """The inputs of one call with (batch, head) flattened; queries and keys carry the centring in an extra column."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, slope: Tensor) -> None:
        bound = _lengths(query) * _lengths(key).amax(dim=-1, keepdim=True) * slope.abs()
        scaled = query * slope.unsqueeze(-1).to(query.dtype)
        self.query = torch.cat([scaled, -bound.unsqueeze(-1).to(query.dtype)], dim=-1).flatten(0, 1)
        self.key = _append(key.flatten(0, 1), 1.0)
        self.value = value.flatten(0, 1)

    def blocks(self, call: Call, heads: int, kept: Sequence[Tensor] = ()):
        """Each block of `call` with its group of heads and its weights (heads, queries, pairs), which are computed
        unless they were `kept` from an earlier time."""
        before = iter(kept)
        masked = call.window is not None or call.pair_documents is not None
        for block in query_blocks(call, QUERIES if masked else UNMASKED_QUERIES):
            empty = None if kept else _empty_rows(block)
            for group in block.groups(heads):
                if kept:
                    yield block, group, next(before)
                    continue
                scores = torch.bmm(self.query[group, block.queries], self.key[group, block.pairs].mT)
                block.hide(scores)
                weights = torch.softmax(scores, dim=-1)
                if empty is not None:
                    weights.masked_fill_(empty, 0.0)
                yield block, group, weights


def _empty_rows(block: QueryBlock) -> Tensor | None:
    """Bool (queries, 1), True for queries that see no pair of the block; None when there is none."""
    width = block.pairs.stop - block.pairs.start
    for columns, mask in block.hidden:
        if columns.stop - columns.start == width:
            empty = mask.all(dim=-1, keepdim=True)
            return empty if bool(empty.any()) else None
    return None


def _clear_uncovered(output: Tensor, call: Call) -> None:
    """Zero the queries that no block covers: those without any visible pair."""
    seen = output.new_zeros(output.shape[0], output.shape[2], dtype=torch.bool)
    for block in query_blocks(call):
        seen[block.batch, block.queries] = True
    output.masked_fill_(~seen[:, None, :, None], 0.0)


def _append(tensor: Tensor, *constants: float) -> Tensor:
    """`tensor` with constant columns behind its last dimension."""
    return torch.cat([tensor, *(tensor.new_full((*tensor.shape[:-1], 1), c) for c in constants)], dim=-1)


def _with_mean_gradient(grad: Tensor, output: Tensor) -> Tensor:
    """(B H, T, V + 2): the gradient of the output, and minus `sum_i w_i g_i = grad . output` in two bfloat16 parts."""
    mean = -torch.linalg.vecdot(grad.float(), output.float()).unsqueeze(-1)
    high = mean.to(grad.dtype)
    return torch.cat([grad, high, (mean - high.float()).to(grad.dtype)], dim=-1).flatten(0, 1)
