"""The association matrix on GPUs: a reading in one launch and a writing in one, where PyTorch needs four and fifteen.

The sums are small (tens of pairs, hundreds of features), so launches and passes over A cost more than the products.
The backward pass is the reference's, from recomputed values.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tessera.ops.association_matrix import reference
from tessera.ops.association_matrix.call import ReadCall, WriteCall
from tessera.ops.triton_device import refuse_device

MOST_PAIRS = 128


def refuse(call: ReadCall | WriteCall) -> str | None:
    """Why this call cannot run here, or None."""
    written = isinstance(call, WriteCall)
    tensors = (call.key, call.value, call.strength) if written else (call.query,)
    dtypes = {x.dtype for x in (call.matrix, call.normaliser, *tensors)}
    if len(dtypes) > 1 or call.matrix.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"all tensors must be float32, float16 or bfloat16 alike; got {', '.join(sorted(map(str, dtypes)))}"
    if written and call.order != "parallel":
        return "a sequential writing has nothing to do at once"
    if written and call.key.shape[1] > MOST_PAIRS:
        return f"at most {MOST_PAIRS} pairs fit in registers; got {call.key.shape[1]}"
    if 0 in call.matrix.shape or 0 in tensors[0].shape:
        return "an empty tensor has nothing to compute"
    return refuse_device(call.matrix)


@torch.compiler.disable
def read(call: ReadCall) -> Tensor:
    """`A^T phi(q) / (z . phi(q) + eps)` for every query."""
    with torch.cuda.device_of(call.matrix):
        return _Read.apply(call.matrix, call.normaliser, call.query, call.epsilon)


@torch.compiler.disable
def write(call: WriteCall) -> tuple[Tensor, Tensor]:
    """The new A and z, all pairs at once."""
    arguments = (call.key, call.value, call.strength, call.empty, call.correction, call.epsilon)
    with torch.cuda.device_of(call.matrix):
        return _Write.apply(call.matrix, call.normaliser, *arguments)


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, normaliser, query, epsilon):
        import triton

        from tessera.ops.association_matrix import triton_kernels
        from tessera.ops.triton_product import dot_precision

        ctx.save_for_backward(matrix, normaliser, query)
        ctx.epsilon = epsilon
        batch, queries, features = query.shape
        out = torch.empty(batch, queries, matrix.shape[2], dtype=query.dtype, device=query.device)
        rows, columns = 64, min(128, max(16, triton.next_power_of_2(matrix.shape[2])))
        grid = (triton.cdiv(queries, rows), triton.cdiv(matrix.shape[2], columns), batch)
        triton_kernels.read[grid](
            matrix.contiguous(), normaliser.contiguous(), query.contiguous(), out, queries, features, matrix.shape[2],
            epsilon, ROWS=rows, FEATURES=32, COLUMNS=columns, PRECISION=dot_precision()
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
            out = reference.read(ReadCall(*leaves, ctx.epsilon))
        return *torch.autograd.grad(out, leaves, grad), None


class _Write(torch.autograd.Function):
    @staticmethod
    def forward(ctx, matrix, normaliser, key, value, strength, empty, correction, epsilon):
        import triton

        from tessera.ops.association_matrix import triton_kernels
        from tessera.ops.triton_product import dot_precision

        ctx.save_for_backward(matrix, normaliser, key, value, strength, empty)
        ctx.options = correction, epsilon
        batch, features, width = matrix.shape
        pairs = key.shape[1]
        new_matrix = torch.empty(batch, features, width, dtype=matrix.dtype, device=matrix.device)
        new_normaliser = torch.empty(batch, features, dtype=normaliser.dtype, device=matrix.device)
        columns = min(64, max(16, triton.next_power_of_2(width)))
        triton_kernels.write[(triton.cdiv(width, columns), batch)](
            matrix.contiguous(), normaliser.contiguous(), key.contiguous(), value.contiguous(), strength.contiguous(),
            empty.to(torch.int32).contiguous(), new_matrix, new_normaliser, pairs, features, width, epsilon,
            CORRECTION=correction, PAIRS=max(16, triton.next_power_of_2(pairs)), FEATURES=32, COLUMNS=columns,
            PRECISION=dot_precision()
        )  # fmt: skip
        return new_matrix, new_normaliser

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_matrix, grad_normaliser):
        *tensors, empty = ctx.saved_tensors
        correction, epsilon = ctx.options
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in tensors]
            written = reference.write(WriteCall(*leaves, empty, correction, "parallel", epsilon))
        return *torch.autograd.grad(written, leaves, (grad_matrix, grad_normaliser)), None, None, None
