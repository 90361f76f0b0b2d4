"""The association matrix on GPUs: a reading in one launch and a writing in one, where PyTorch needs four and fifteen.

The sums are small (tens of pairs, hundreds of features), so launches and passes over A cost more than the products.
The backward pass is PyTorch's products (`gradients`), from recomputed values.
"""

import torch
from torch import Tensor

from tessera.ops.association_matrix.call import ReadCall, WriteCall
from tessera.ops.association_matrix.gradients import read_gradients, write_gradients
from tessera.ops.association_matrix.reference import growth
from tessera.ops.triton_device import refuse_device

MOST_PAIRS = 128


def refuse(call: ReadCall | WriteCall) -> str | None:
    """Why this call cannot run here, or None."""
    written = isinstance(call, WriteCall)
    tensors = (call.key, call.value, call.strength) if written else (call.query,)
    held, given = {call.matrix.dtype, call.normaliser.dtype}, {x.dtype for x in tensors}
    if len(held) > 1 or len(given) > 1 or not held | given <= {torch.float32, torch.float16, torch.bfloat16}:
        names = ", ".join(sorted(map(str, held | given)))
        return f"the memory must be of one dtype of float32, float16, bfloat16, and what meets it too; got {names}"
    if written and call.order != "parallel":
        return "a sequential writing has nothing to do at once"
    if written and call.key.shape[1] > MOST_PAIRS:
        return f"at most {MOST_PAIRS} pairs fit in registers; got {call.key.shape[1]}"
    if 0 in call.matrix.shape or 0 in tensors[0].shape:
        return "an empty tensor has nothing to compute"
    return refuse_device(call.matrix)


def read(call: ReadCall) -> Tensor:
    """`A^T phi(q) / (z . phi(q) + eps)` for every query."""
    return recall(call.matrix, call.normaliser, call.query, call.epsilon)


def write(call: WriteCall) -> tuple[Tensor, Tensor]:
    """The new A and z, all pairs at once."""
    pairs = (call.key, call.value, call.strength)
    return store(call.matrix, call.normaliser, *pairs, call.empty, call.correction, call.epsilon)


@torch.library.custom_op("tessera::association_read", mutates_args=())
def recall(matrix: Tensor, normaliser: Tensor, query: Tensor, epsilon: float) -> Tensor:
    """`read`, for `torch.compile` one step of its graph."""
    import triton

    from tessera.ops.association_matrix import triton_kernels
    from tessera.ops.triton_product import dot_precision

    batch, queries, features = query.shape
    out = _unwritten_reading(matrix, query)
    rows, columns = 64, min(128, max(16, triton.next_power_of_2(matrix.shape[2])))
    grid = (triton.cdiv(queries, rows), triton.cdiv(matrix.shape[2], columns), batch)
    with torch.cuda.device_of(matrix):
        triton_kernels.read[grid](
            matrix.contiguous(), normaliser.contiguous(), query.contiguous(), out, queries, features, matrix.shape[2],
            epsilon, ROWS=rows, FEATURES=32, COLUMNS=columns, PRECISION=dot_precision()
        )  # fmt: skip
    return out


@recall.register_fake
def _(matrix, normaliser, query, epsilon):
    return _unwritten_reading(matrix, query)


def _unwritten_reading(matrix: Tensor, query: Tensor) -> Tensor:
    return query.new_empty(*query.shape[:2], matrix.shape[2])


def _save_reading(ctx, inputs, output) -> None:
    *tensors, ctx.epsilon = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_reading(ctx, grad):
    return *read_gradients(grad, *ctx.saved_tensors, ctx.epsilon), None


recall.register_autograd(_differentiate_reading, setup_context=_save_reading)


@torch.library.custom_op("tessera::association_write", mutates_args=())
def store(
    matrix: Tensor, normaliser: Tensor, key: Tensor, value: Tensor, strength: Tensor, empty: Tensor, correction: bool,
    epsilon: float
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`write`, for `torch.compile` one step of its graph."""
    import triton

    from tessera.ops.association_matrix import triton_kernels
    from tessera.ops.triton_product import dot_precision

    batch, features, width = matrix.shape
    pairs = key.shape[1]
    new_matrix, new_normaliser = _unwritten_memory(matrix, normaliser)
    columns = min(64, max(16, triton.next_power_of_2(width)))
    with torch.cuda.device_of(matrix):
        triton_kernels.write[(triton.cdiv(width, columns), batch)](
            matrix.contiguous(), normaliser.contiguous(), key.contiguous(), value.contiguous(), strength.contiguous(),
            empty.to(torch.int32).contiguous(), new_matrix, new_normaliser, pairs, features, width, epsilon,
            CORRECTION=correction, PAIRS=max(16, triton.next_power_of_2(pairs)), FEATURES=32, COLUMNS=columns,
            PRECISION=dot_precision()
        )  # fmt: skip
    return new_matrix, new_normaliser


@store.register_fake
def _(matrix, normaliser, key, value, strength, empty, correction, epsilon):
    return _unwritten_memory(matrix, normaliser)


def _unwritten_memory(matrix: Tensor, normaliser: Tensor) -> tuple[Tensor, Tensor]:
    return matrix.new_empty(matrix.shape), normaliser.new_empty(normaliser.shape)


def _save_writing(ctx, inputs, output) -> None:
    *tensors, ctx.correction, ctx.epsilon = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_writing(ctx, *grads):
    *tensors, empty = ctx.saved_tensors
    _, normaliser, key, _, _ = tensors
    gamma = growth(key, normaliser, empty, ctx.correction, ctx.epsilon)
    return *write_gradients(grads, *tensors, gamma, ctx.epsilon), None, None, None


store.register_autograd(_differentiate_writing, setup_context=_save_writing)
