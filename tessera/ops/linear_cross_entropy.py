"""Cross entropy of a linear output layer, a block of logits at a time."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tessera.base.arguments import explains_mistakes
from tessera.base.devices import is_gpu, is_readable, is_transformed
from tessera.base.errors import expect
from tessera.base.first_derivative import fresh_result, only_first_derivative
from tessera.base.shapes import Float, Int

IGNORED = -100  # the label that Hugging Face leaves out of the loss
# Tokens per block. On a CPU a block of float32 logits stays in cache for vocabularies of some ten thousand. A GPU needs
# large products and few launches, and every block adds a gradient of the output layer's weight to the sum of those
# before: its blocks have as many tokens as keep their logits below 1 GiB.
ROWS = 256
GPU_LOGITS = 2**28


@explains_mistakes
def linear_cross_entropy(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], labels: Int[Tensor, " N"], scale: float = 1.0
) -> Float[Tensor, ""]:
    """Sum of `-log softmax(scale * hidden weight^T)[label]` over the labels that are not -100, in nats.

    Args:
        hidden: (N, D). weight: (V, D). labels: integers (N,) in 0..V - 1 or -100;
            others are refused, on a GPU by the device (`gather`), which is not waited for.
    Returns:
        A scalar in float32 (float64 for float64 inputs). Under autocast the products run in its dtype.
    Cost: O(N V) time; beyond inputs and their gradients, the logits of 256 rows at a time (on a GPU of as many as
    make 1 GiB in float32). The gradients are made in the forward pass, while the logits are at hand. On a CPU, N are
    the rows that count; a GPU and a compiler also compute the others, because they would have to wait for their number.
    """
    are_matrices = hidden.dim() == weight.dim() == 2 and hidden.shape[1] == weight.shape[1]
    if not are_matrices or labels.shape != hidden.shape[:1]:
        shapes = [tuple(tensor.shape) for tensor in (hidden, weight, labels)]
        expect(False, "linear_cross_entropy", "hidden, weight and labels", "be (N, D), (V, D) and (N)", shapes)
    expect_labels("linear_cross_entropy", labels, weight.shape[0])
    labels = labels.long()
    if is_transformed():
        logits = (scale * hidden @ weight.T).to(torch.promote_types(hidden.dtype, torch.float32))
        return cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return _LinearCrossEntropy.apply(hidden, weight, labels, scale)


def expect_labels(where: str, labels: Tensor, count: int) -> None:
    """Raise `TesseraError` for labels that are neither -100 nor among `count` tokens; on a GPU it sees the dtype."""
    is_integer = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    expect(is_integer, where, "labels", "be integers", labels.dtype)
    if is_readable(labels):
        labels = labels.long()  # those of few bits hold neither -100 nor `count`
        wrong = labels[(labels != IGNORED) & ((labels < 0) | (labels >= count))]
        got = int(wrong[0]) if wrong.numel() else None
        expect(got is None, where, "labels", f"lie in 0..{count - 1} (vocab_size) or be {IGNORED}", got)


class _LinearCrossEntropy(torch.autograd.Function):
    """Forward: loss and, where needed, both gradients, block by block. Backward: scales them."""

    @staticmethod
    def forward(ctx, hidden, weight, labels, scale):
        """The scalar of `linear_cross_entropy`; keeps the gradients of hidden (N, D) and weight (V, D)."""
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else torch.promote_types(hidden.dtype, weight.dtype)
        precise = torch.float64 if dtype == torch.float64 else torch.float32
        # Probabilities are too small for float16, in which a loss is scaled only after this.
        product = torch.float32 if dtype == torch.float16 else dtype
        needs_gradients = any(ctx.needs_input_grad[:2])
        with torch.autocast(device, enabled=False):
            rows, head = hidden.to(dtype), weight.to(dtype)
            counting = _counting_rows(labels)
            if counting is not None:
                rows, labels = rows[counting], labels[counting]
            grad_hidden = torch.empty_like(rows, dtype=product) if needs_gradients else None
            grad_weight = torch.zeros_like(weight, dtype=precise) if needs_gradients else None
            total = hidden.new_zeros((), dtype=precise)
            step = max(ROWS, GPU_LOGITS // weight.shape[0]) if is_gpu(hidden) else ROWS
            for start in range(0, rows.shape[0], step):
                block = slice(start, start + step)
                logits = (rows[block] @ head.T).to(precise)
                if scale != 1.0:
                    logits.mul_(scale)
                loss, grad = _block(logits, labels[block], needs_gradients)
                total += loss
                if grad_hidden is not None and grad_weight is not None:
                    grad = grad.mul_(scale).to(product) if scale != 1.0 else grad.to(product)
                    torch.mm(grad, head.to(product), out=grad_hidden[block])
                    if product == precise:
                        grad_weight.addmm_(grad.T, rows[block].to(product))
                    else:
                        grad_weight += grad.T @ rows[block]
            if grad_hidden is not None and counting is not None:
                grad_hidden = torch.zeros_like(hidden, dtype=product).index_copy_(0, counting, grad_hidden)
        ctx.save_for_backward(grad_hidden, grad_weight, hidden, weight)
        ctx.dtypes = hidden.dtype, weight.dtype
        return fresh_result(total)

    @staticmethod
    @only_first_derivative("linear_cross_entropy")
    def backward(ctx, grad):
        """Those gradients times `grad`, the scalar's own."""
        grad_hidden, grad_weight, *_ = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        return (grad_hidden * grad).to(hidden_dtype), (grad_weight * grad).to(weight_dtype), None, None


def _counting_rows(labels: Tensor) -> Tensor | None:
    """The indices of the rows with a label; None to compute all."""
    if not is_readable(labels):
        return None
    counting = (labels != IGNORED).nonzero().squeeze(1)
    return None if len(counting) == len(labels) else counting


def _block(logits: Tensor, labels: Tensor, needs_gradients: bool) -> tuple[Tensor, Tensor]:
    """Summed loss of one block, and its gradient with respect to the logits (written over them)."""
    counted = labels != IGNORED
    index = torch.where(counted, labels, 0)[:, None]  # another negative label is out of range for `gather`
    chosen = logits.gather(1, index).squeeze(1)
    normaliser = torch.logsumexp(logits, dim=1)
    loss = torch.where(counted, normaliser - chosen, 0.0).sum()
    if not needs_gradients:
        return loss, logits
    if torch.compiler.is_compiling():
        # One pass from the logits to the gradient in its dtype; a scatter would need it in memory in float32 first.
        hit = torch.arange(logits.shape[1], device=logits.device) == index
        return loss, torch.where(counted[:, None], (logits - normaliser[:, None]).exp() - hit.to(logits.dtype), 0.0)
    # Rows that do not count are shifted by infinity: no pass over the gradient, no look at the labels.
    grad = logits.sub_(normaliser.masked_fill(~counted, torch.inf)[:, None]).exp_()
    return loss, grad.scatter_add_(1, index, -counted.to(grad.dtype)[:, None])
