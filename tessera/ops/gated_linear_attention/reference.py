"""Step by step, as the equation reads."""

import torch
from torch import Tensor

from tessera.ops.gated_linear_attention.state import LinearAttentionState


def reference(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: LinearAttentionState, documents: Tensor
) -> tuple[Tensor, LinearAttentionState]:
    """Arguments and results as `gated_linear_attention`'s, all of them present."""
    matrix, document, answers = state.matrix, state.document, []
    for step in range(query.shape[2]):
        continues = documents[:, step : step + 1] == document
        matrix = matrix * continues[:, :, None, None]
        matrix = log_decay[:, :, step].exp()[..., None] * matrix + key[:, :, step, :, None] * value[:, :, step, None, :]
        answers.append(torch.einsum("bhk,bhkv->bhv", query[:, :, step], matrix))
        document = documents[:, step : step + 1]
    return torch.stack(answers, 2), LinearAttentionState(matrix, document)
