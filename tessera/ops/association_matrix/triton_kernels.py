"""Triton kernels of the association matrix: each reads A once per use and keeps everything between in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.ops.triton_product import dot_precision, product


@triton.jit
def load_block(start, rows, columns, num_rows, num_columns):
    """A (rows, columns) block of a dense matrix, zeros outside."""
    inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    return tl.load(start + rows.to(tl.int64)[:, None] * num_columns + columns[None, :], mask=inside, other=0.0)


@triton.jit
def read(
    matrix, normaliser, query, out, num_queries, num_features, width, eps,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """`A^T f / (z . f + eps)` for one block of queries and of columns; f (B, T, P), A (B, P, V), z (B, P).

    Products take A in the dtype of f: under autocast the memory is wider than what asks it.
    """
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    matrix += batch * num_features * width
    query += batch * num_queries * num_features
    recalled = tl.zeros((ROWS, COLUMNS), tl.float32)
    denominator = tl.zeros((ROWS,), tl.float32) + eps
    for first in range(0, num_features, FEATURES):
        features = first + tl.arange(0, FEATURES)
        f = load_block(query, rows, features, num_queries, num_features)
        z = tl.load(normaliser + batch * num_features + features, mask=features < num_features, other=0.0)
        denominator += tl.sum(f.to(tl.float32) * z.to(tl.float32)[None, :], 1)
        a = load_block(matrix, features, columns, num_features, width)
        recalled = product(f, a.to(f.dtype), recalled, PRECISION)
    recalled = recalled / denominator[:, None]
    inside = (rows < num_queries)[:, None] & (columns < width)[None, :]
    address = out + batch * num_queries * width + rows.to(tl.int64)[:, None] * width + columns[None, :]
    tl.store(address, recalled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def write(
    matrix, normaliser, key, value, strength, empty, new_matrix, new_normaliser,
    num_pairs, num_features, width, eps,
    CORRECTION: tl.constexpr, GATED: tl.constexpr, PAIRS: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr
):  # fmt: skip
    """`A + sum_i b_i k_i (v_i - vbar_i)^T` for one block of columns; `z + sum_i gamma_i k_i` by the first of them."""
    batch = tl.program_id(1).to(tl.int64)
    pairs = tl.arange(0, PAIRS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    matrix += batch * num_features * width
    key += batch * num_pairs * num_features
    recalled = tl.zeros((PAIRS, COLUMNS), tl.float32)
    denominator = tl.zeros((PAIRS,), tl.float32) + eps
    length = tl.zeros((PAIRS,), tl.float32) + eps
    for first in range(0, num_features, FEATURES):
        features = first + tl.arange(0, FEATURES)
        k = load_block(key, pairs, features, num_pairs, num_features)
        z = tl.load(normaliser + batch * num_features + features, mask=features < num_features, other=0.0)
        denominator += tl.sum(k.to(tl.float32) * z.to(tl.float32)[None, :], 1)
        length += tl.sum(k.to(tl.float32) * k.to(tl.float32), 1)
        a = load_block(matrix, features, columns, num_features, width)
        recalled = product(k, a.to(k.dtype), recalled, PRECISION)
    v = load_block(value + batch * num_pairs * width, pairs, columns, num_pairs, width).to(tl.float32)
    b = tl.load(strength + batch * num_pairs + pairs, mask=pairs < num_pairs, other=0.0).to(tl.float32)
    change = (b[:, None] * (v - recalled / denominator[:, None])).to(value.dtype.element_ty)
    gamma = tl.zeros((PAIRS,), tl.float32) + 1.0
    if CORRECTION:
        corrected = tl.minimum(tl.maximum(1.0 - denominator / length, 0.0), 1.0)
        gamma = tl.where(tl.load(empty + batch + tl.zeros((PAIRS,), tl.int32)) != 0, gamma, corrected)
    if GATED:
        gamma = tl.where(b > 0.0, gamma, 0.0)
    for first in range(0, num_features, FEATURES):
        features = first + tl.arange(0, FEATURES)
        k = load_block(key, pairs, features, num_pairs, num_features)
        a = load_block(matrix, features, columns, num_features, width).to(tl.float32)
        a = product(tl.trans(k), change, a, PRECISION)
        inside = (features < num_features)[:, None] & (columns < width)[None, :]
        address = new_matrix + batch * num_features * width + features[:, None] * width + columns[None, :]
        tl.store(address, a.to(new_matrix.dtype.element_ty), mask=inside)
        if tl.program_id(0) == 0:
            z = tl.load(normaliser + batch * num_features + features, mask=features < num_features, other=0.0)
            z = z.to(tl.float32) + tl.sum(k.to(tl.float32) * gamma[:, None], 0)
            z = z.to(new_normaliser.dtype.element_ty)
            tl.store(new_normaliser + batch * num_features + features, z, mask=features < num_features)


def launch_read(matrix: Tensor, normaliser: Tensor, query: Tensor, eps: float) -> Tensor:
    """The reading (B, queries, width) of `query` (B, queries, features)."""
    batch, queries, features = query.shape
    width = matrix.shape[2]
    out = query.new_empty(batch, queries, width)
    rows, columns = 64, min(128, max(16, triton.next_power_of_2(width)))
    grid = (triton.cdiv(queries, rows), triton.cdiv(width, columns), batch)
    read[grid](
        matrix.contiguous(), normaliser.contiguous(), query.contiguous(), out, queries, features, width,
        eps, ROWS=rows, FEATURES=32, COLUMNS=columns, PRECISION=dot_precision()
    )  # fmt: skip
    return out


def launch_write(
    matrix: Tensor, normaliser: Tensor, key: Tensor, value: Tensor, strength: Tensor, empty: Tensor, correction: bool,
    eps: float, gated: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The memory after all pairs: A (B, features, width) and z (B, features)."""
    batch, features, width = matrix.shape
    new_matrix, new_normaliser = matrix.new_empty(matrix.shape), normaliser.new_empty(normaliser.shape)
    pairs = key.shape[1]
    columns = min(64, max(16, triton.next_power_of_2(width)))
    write[(triton.cdiv(width, columns), batch)](
        matrix.contiguous(), normaliser.contiguous(), key.contiguous(), value.contiguous(), strength.contiguous(),
        empty.to(torch.int32).contiguous(), new_matrix, new_normaliser, pairs, features, width, eps,
        CORRECTION=correction, GATED=gated, PAIRS=max(16, triton.next_power_of_2(pairs)), FEATURES=32, COLUMNS=columns,
        PRECISION=dot_precision()
    )  # fmt: skip
    return new_matrix, new_normaliser
