"""How the Triton kernels of the association matrix are launched: grids, tiles, contiguous tensors."""

import torch
import triton
from torch import Tensor

from tessera.ops.association_matrix import triton_kernels
from tessera.ops.triton_product import dot_precision


def read(matrix: Tensor, normaliser: Tensor, query: Tensor, out: Tensor, eps: float) -> Tensor:
    """Fill `out` (B, queries, width) with the reading of `query` (B, queries, features)."""
    batch, queries, features = query.shape
    width = matrix.shape[2]
    rows, columns = 64, min(128, max(16, triton.next_power_of_2(width)))
    grid = (triton.cdiv(queries, rows), triton.cdiv(width, columns), batch)
    triton_kernels.read[grid](
        matrix.contiguous(), normaliser.contiguous(), query.contiguous(), out, queries, features, width,
        eps, ROWS=rows, FEATURES=32, COLUMNS=columns, PRECISION=dot_precision()
    )  # fmt: skip
    return out


def write(
    matrix: Tensor, normaliser: Tensor, key: Tensor, value: Tensor, strength: Tensor, empty: Tensor,
    new_matrix: Tensor, new_normaliser: Tensor, correction: bool, eps: float, gated: bool
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Fill `new_matrix` (B, features, width) and `new_normaliser` (B, features) with the memory after all pairs."""
    batch, features, width = matrix.shape
    pairs = key.shape[1]
    columns = min(64, max(16, triton.next_power_of_2(width)))
    triton_kernels.write[(triton.cdiv(width, columns), batch)](
        matrix.contiguous(), normaliser.contiguous(), key.contiguous(), value.contiguous(), strength.contiguous(),
        empty.to(torch.int32).contiguous(), new_matrix, new_normaliser, pairs, features, width, eps,
        CORRECTION=correction, GATED=gated, PAIRS=max(16, triton.next_power_of_2(pairs)), FEATURES=32, COLUMNS=columns,
        PRECISION=dot_precision()
    )  # fmt: skip
    return new_matrix, new_normaliser
