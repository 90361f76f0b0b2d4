"""Kernel regression by Triton as an operator that PyTorch knows, with its gradient.

Being a registered operator, `torch.compile` takes it as one step of its graph, and tensors without data (meta, fake)
pass through it. Nothing here needs triton itself.
"""

import torch

from tessera.base.first_derivative import only_first_derivative
from tessera.ops.kernel_regression.triton_plan import Plan, unwritten_gradients, unwritten_results

_PLAN = (
    "str family, float order, float margin, SymInt offset, SymInt? delay, SymInt? span, Tensor? delays, "
    "Tensor? query_documents, Tensor? pair_documents, int[]? forward_tiles, int[]? backward_tiles"
)


@torch.library.custom_op(
    "tessera::kernel_regression",
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, Tensor slope, Tensor intercept, bool save, {_PLAN}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def regress(query, key, value, slope, intercept, save, *plan):
    """`y = sum_i w_i v_i` (B, H, T, V) from queries, keys, values, and the rows' slopes and intercepts (B, H, T).

    Behind y come what the backward pass needs: the statistics (3, B, H, T) of the queries, their best pairs (B, H, T)
    for ReLUmax, and for adaptive bandwidths, where `save` holds, one more y. What a family does not need is empty.
    """
    from tessera.ops.kernel_regression import triton_launch

    with torch.cuda.device_of(query):
        return triton_launch.forward(query, key, value, slope, intercept, save, Plan(*plan))


@regress.register_fake
def _(query, key, value, slope, intercept, save, *plan):
    return unwritten_results(query, value, Plan(*plan).family, save)


@torch.library.custom_op(
    "tessera::kernel_regression_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor slope, Tensor statistics, Tensor best, "
    f"Tensor product, {_PLAN}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def regress_backward(grad, query, key, value, slope, statistics, best, product, *plan):
    """Gradients of query, key, value, slope and intercept (B, H, T); `product`: the y of which grad . y is taken."""
    from tessera.ops.kernel_regression import triton_launch

    with torch.cuda.device_of(query):
        return triton_launch.backward(grad, query, key, value, slope, statistics, best, product, Plan(*plan))


@regress_backward.register_fake
def _(grad, query, key, value, slope, statistics, best, product, *plan):
    return unwritten_gradients(query, key, value)


def _save(ctx, inputs, output) -> None:
    query, key, value, slope, _, _, *rest = inputs
    y, statistics, best, smooth = output
    plan = Plan(*rest)
    ctx.plan = plan._replace(delays=None, query_documents=None, pair_documents=None)
    masks = plan.delays, plan.query_documents, plan.pair_documents
    product = smooth if plan.family == "adaptive" else y
    ctx.save_for_backward(query, key, value, slope, statistics, best, product, *masks)
    ctx.set_materialize_grads(False)


@only_first_derivative("kernel_regression")
def _gradients(ctx, grad, *_):
    *tensors, delays, query_documents, pair_documents = ctx.saved_tensors
    plan = ctx.plan._replace(delays=delays, query_documents=query_documents, pair_documents=pair_documents)
    *gradients, d_intercept = regress_backward(grad, *tensors, *plan)
    # Only normalised ReLU changes when a row of scores moves.
    moved = d_intercept if plan.family == "fixed" else None
    return *gradients, moved, *[None] * (1 + len(plan))


regress.register_autograd(_gradients, setup_context=_save)
