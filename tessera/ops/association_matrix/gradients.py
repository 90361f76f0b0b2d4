"""The derivatives of a reading and of a writing (all pairs at once), in a few products.

Products are in the dtype of the features; the memory's own gradients come in the memory's dtype.
"""

from torch import Tensor


def read_gradients(
    grad: Tensor, matrix: Tensor, normaliser: Tensor, query: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of A, z and the queries, of `y = A^T f / d`, `d = z . f + eps`, for `grad` (B, T, V) of y.

    With `s = grad / d`: dA = sum_t f_t s_t^T. Since y . grad = (A s) . f, dd = -(A s) . f / d; and from
    there df = A s + dd z and dz = sum_t dd_t f_t.
    """
    held, length = matrix.to(query.dtype), normaliser.to(query.dtype)
    denominator = query @ length.unsqueeze(-1) + epsilon
    scaled = grad / denominator
    back = scaled @ held.transpose(1, 2)
    d_denominator = -(query * back).sum(-1, keepdim=True) / denominator
    d_matrix = (query.transpose(1, 2) @ scaled).to(matrix.dtype)
    d_normaliser = (query.transpose(1, 2) @ d_denominator).squeeze(-1).to(normaliser.dtype)
    return d_matrix, d_normaliser, back + d_denominator * length.unsqueeze(1)


def write_gradients(
    grads: tuple[Tensor, Tensor],
    matrix: Tensor,
    normaliser: Tensor,
    key: Tensor,
    value: Tensor,
    strength: Tensor,
    gamma: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of A, z, keys, values and strengths, for `grads` G (B, P, V) and h (B, P) of the new A and z.

    With `u_i = G^T f_i` and the error `e_i = v_i - vbar_i`: db = u . e, de = b u (so dv = de, dvbar = -de), and
    `f_i` gains `b_i G e_i + gamma_i h` beside what reaches it through vbar. gamma (B, M, 1) has no gradient.
    """
    grad_matrix, grad_normaliser = (grad.to(key.dtype) for grad in grads)
    held, length = matrix.to(key.dtype), normaliser.to(key.dtype)
    error = value - (key @ held) / (key @ length.unsqueeze(-1) + epsilon)
    toward = key @ grad_matrix
    d_error = strength.unsqueeze(-1) * toward
    through_matrix, through_normaliser, through_key = read_gradients(-d_error, matrix, normaliser, key, epsilon)
    d_key = (strength.unsqueeze(-1) * error) @ grad_matrix.transpose(1, 2) + gamma * grad_normaliser.unsqueeze(1)
    return (
        grads[0] + through_matrix,
        grads[1] + through_normaliser,
        d_key + through_key,
        d_error,
        (toward * error).sum(-1),
    )
