"""The derivatives of a reading and of a writing (all pairs at once), in a few products.

Products are in the dtype of the features, float32 for float16, in which 1 / eps overflows; gradients come in the dtype
of what they belong to. `denominator` (B, T, 1) is `z . f + eps`.
"""

import torch
from torch import Tensor


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
