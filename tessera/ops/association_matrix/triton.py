"""The association matrix on GPUs: a reading in one launch and a writing in one, where PyTorch needs four and fifteen.

The sums are small (tens of pairs, hundreds of features), so launches and passes over A cost more than the products.
The backward pass is PyTorch's products (`read_gradients`, `write_gradients`), from recomputed values.

Both are registered operators: `torch.compile` takes them as one step of its graph, and tensors without data (meta,
fake) pass through them. Nothing here needs triton itself.
"""

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.ops.association_matrix.call import ReadCall, WriteCall
from tessera.ops.association_matrix.reference import denominator, divisor, growth
from tessera.ops.triton_device import unsupported_device

MOST_PAIRS = 128


def unsupported_reason(call: ReadCall | WriteCall) -> str | None:
    """Why this call cannot run here, or None."""
    tensors = (call.key, call.value, call.strength) if isinstance(call, WriteCall) else (call.query,)
    memory_dtypes, dtypes = {call.matrix.dtype, call.normaliser.dtype}, {x.dtype for x in tensors}
    alike = len(memory_dtypes) == len(dtypes) == 1 and dtypes <= {torch.float32, torch.float16, torch.bfloat16}
    if not alike or not memory_dtypes <= dtypes | {torch.float32}:
        names = ", ".join(sorted(map(str, memory_dtypes | dtypes)))
        return (
            "what meets the memory must be of one dtype of float32, float16, bfloat16, and the memory of this or "
            f"float32; got {names}"
        )
    if isinstance(call, WriteCall) and call.order != "parallel":
        return "a sequential writing has nothing to do at once"
    if isinstance(call, WriteCall) and call.key.shape[1] > MOST_PAIRS:
        return f"at most {MOST_PAIRS} pairs fit in registers; got {call.key.shape[1]}"
    if 0 in call.matrix.shape or 0 in tensors[0].shape:
        return "an empty tensor has nothing to compute"
    return unsupported_device(call.matrix)


def run(call: ReadCall | WriteCall) -> Tensor | tuple[Tensor, Tensor]:
    """What a reading answers, or the memory that a writing of all pairs at once leaves."""
    if isinstance(call, ReadCall):
        return read_op(call.matrix, call.normaliser, call.query, call.eps)
    pairs = (call.key, call.value, call.strength)
    return write_op(call.matrix, call.normaliser, *pairs, call.empty, call.correction, call.eps, call.gate_normaliser)


@torch.library.custom_op("tessera::association_read", mutates_args=())
def read_op(matrix: Tensor, normaliser: Tensor, query: Tensor, eps: float) -> Tensor:
    """See `read_association`."""
    from tessera.ops.association_matrix import triton_kernels

    with torch.cuda.device_of(matrix):
        return triton_kernels.launch_read(matrix, normaliser, query, eps)


@read_op.register_fake
def _(matrix, normaliser, query, eps):
    return query.new_empty(*query.shape[:2], matrix.shape[2])


def _save_reading(ctx, inputs, output) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


@only_first_derivative("read_association")
def _differentiate_reading(ctx, grad):
    dtypes = [x.dtype for x in ctx.saved_tensors]
    grad, matrix, normaliser, query = precise(grad, *ctx.saved_tensors)
    total = denominator(query, normaliser, ctx.eps)
    gradients = read_gradients(grad, matrix, normaliser, query, total)
    return *(gradient.to(dtype) for gradient, dtype in zip(gradients, dtypes, strict=True)), None


read_op.register_autograd(_differentiate_reading, setup_context=_save_reading)


@read_op.register_vmap
def _(info, in_dims, *arguments):
    *tensors, eps = arguments
    return _unfolded(read_op(*_folded(info, in_dims, tensors), eps), info), 0


@torch.library.custom_op("tessera::association_write", mutates_args=())
def write_op(
    matrix: Tensor, normaliser: Tensor, key: Tensor, value: Tensor, strength: Tensor, empty: Tensor, correction: bool,
    eps: float, gated: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """See `write_association`, parallel order."""
    from tessera.ops.association_matrix import triton_kernels

    with torch.cuda.device_of(matrix):
        return triton_kernels.launch_write(matrix, normaliser, key, value, strength, empty, correction, eps, gated)


@write_op.register_fake
def _(matrix, normaliser, key, value, strength, empty, correction, eps, gated):
    return matrix.new_empty(matrix.shape), normaliser.new_empty(normaliser.shape)


def _save_writing(ctx, inputs, output) -> None:
    *tensors, ctx.correction, ctx.eps, ctx.gated = inputs
    ctx.save_for_backward(*tensors)


@only_first_derivative("write_association")
def _differentiate_writing(ctx, d_matrix, d_normaliser):
    *tensors, empty = ctx.saved_tensors
    dtypes = [x.dtype for x in tensors]
    matrix, normaliser, key, value, strength = tensors
    d_matrix, d_normaliser, matrix, normaliser, value, strength, key = precise(
        d_matrix, d_normaliser, matrix, normaliser, value, strength, key
    )
    total = denominator(key, divisor(normaliser, empty) if ctx.gated else normaliser, ctx.eps)
    gamma = growth(key, total, empty, ctx.correction, ctx.eps)
    if ctx.gated:
        gamma = gamma * (strength > 0).unsqueeze(-1)
    gradients = write_gradients((d_matrix, d_normaliser), matrix, normaliser, value, strength, gamma, key, total)
    return *(gradient.to(dtype) for gradient, dtype in zip(gradients, dtypes, strict=True)), None, None, None, None


write_op.register_autograd(_differentiate_writing, setup_context=_save_writing)


@write_op.register_vmap
def _(info, in_dims, *arguments):
    *tensors, correction, eps, gated = arguments
    matrix, normaliser = write_op(*_folded(info, in_dims, tensors), correction, eps, gated)
    return (_unfolded(matrix, info), _unfolded(normaliser, info)), (0, 0)


def _folded(info, in_dims, tensors: list[Tensor]) -> list[Tensor]:
    """The mapped dimension (diagonal batching: the layers of a wave) made a part of the batch."""
    shared = [x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0) for x, d in zip(tensors, in_dims)]
    return [x.flatten(0, 1) for x in shared]


def _unfolded(x: Tensor, info) -> Tensor:
    return x.unflatten(0, (info.batch_size, -1))


def precise(*tensors: Tensor) -> tuple[Tensor, ...]:
    """All in the dtype of the last, the features; float32 for float16."""
    dtype = torch.float32 if tensors[-1].dtype == torch.float16 else tensors[-1].dtype
    return tuple(x.to(dtype) for x in tensors)


def read_gradients(
    grad: Tensor, matrix: Tensor, normaliser: Tensor, query: Tensor, denominator: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of A, z and the queries, of `y = A^T f / d`, `d = z . f + eps`, for `grad` (B, T, V) of y.

    With `s = grad / d`: dA = sum_t f_t s_t^T. Since y . grad = (A s) . f, dd = -(A s) . f / d; and from
    there df = A s + dd z and dz = sum_t dd_t f_t.
    """
    scaled = grad / denominator
    back = scaled @ matrix.transpose(1, 2)
    d_denominator = -(query * back).sum(-1, keepdim=True) / denominator
    d_normaliser = (query.transpose(1, 2) @ d_denominator).squeeze(-1)
    return query.transpose(1, 2) @ scaled, d_normaliser, back + d_denominator * normaliser.unsqueeze(1)


def write_gradients(
    grads: tuple[Tensor, Tensor],
    matrix: Tensor,
    normaliser: Tensor,
    value: Tensor,
    strength: Tensor,
    gamma: Tensor,
    key: Tensor,
    denominator: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of A, z, keys, values and strengths, for `grads` G (B, P, V) and h (B, P) of the new A and z.

    With `u_i = G^T f_i` and the error `e_i = v_i - vbar_i`: db = u . e, de = b u (so dv = de, dvbar = -de), and
    `f_i` gains `b_i G e_i + gamma_i h` beside what reaches it through vbar. gamma (B, M, 1) has no gradient.
    """
    grad_matrix, grad_normaliser = grads
    strength = strength.unsqueeze(-1)
    error = value - (key @ matrix) / denominator
    toward = key @ grad_matrix
    through_matrix, through_normaliser, through_key = read_gradients(
        -strength * toward, matrix, normaliser, key, denominator
    )
    d_key = (strength * error) @ grad_matrix.transpose(1, 2) + gamma * grad_normaliser.unsqueeze(1)
    d_matrix, d_normaliser = grad_matrix + through_matrix, grad_normaliser + through_normaliser
    return d_matrix, d_normaliser, d_key + through_key, strength * toward, (toward * error).sum(-1)
