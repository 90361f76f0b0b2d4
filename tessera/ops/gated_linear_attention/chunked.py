"""In chunks: products inside each chunk, and one matrix passed from chunk to chunk."""

import math

import torch
from torch import Tensor

from tessera.ops.gated_linear_attention.state import LinearAttentionState

CHUNK = 16  # within a chunk every pair of steps has K decays of its own: small, and no exponent is ever positive


def chunked(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: LinearAttentionState, documents: Tensor
) -> tuple[Tensor, LinearAttentionState]:
    """Arguments and results as `gated_linear_attention`'s, all of them present."""
    matrix, document, answers = state.matrix, state.document, []
    for begin in range(0, query.shape[2], CHUNK):
        steps = slice(begin, begin + CHUNK)
        q, k, v, g = (tensor[:, :, steps] for tensor in (query, key, value, log_decay))
        answer, matrix = _chunk(q, k, v, g, matrix, document, documents[:, steps])
        document = documents[:, steps][:, -1:]
        answers.append(answer)
    return torch.cat(answers, 2), LinearAttentionState(matrix, document)


def _chunk(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, matrix: Tensor, document: Tensor, documents: Tensor
) -> tuple[Tensor, Tensor]:
    """The answers (B, H, C, V) of one chunk, and the matrix after it."""
    # What e^g rounds to 0 is cut off: sums of more would lose the decays behind it, and those of -inf be NaN.
    least = math.log(torch.finfo(log_decay.dtype).tiny)
    total = log_decay.clamp(min=least).cumsum(2)  # G_t = g_1 + ... + g_t inside the chunk
    # What was stored in this chunk: sum over s <= t of (q_t exp(G_t - G_s)) . k_s, of the same document.
    size = query.shape[2]
    past = torch.ones(size, size, dtype=torch.bool, device=query.device).tril()
    visible = past & (documents[:, None, :, None] == documents[:, None, None, :])
    exponents = (total[:, :, :, None] - total[:, :, None]).masked_fill(~visible[..., None], -torch.inf)
    scores = torch.einsum("bhtk,bhsk,bhtsk->bhts", query, key, exponents.exp())
    # What was stored before, for the steps that continue its document.
    continues = (documents == document)[:, None, :, None]
    inherited = (query * total.exp() * continues) @ matrix
    answers = scores @ value + inherited
    kept = (total[:, :, -1:] - total).exp() * (documents == documents[:, -1:])[:, None, :, None]
    carried = total[:, :, -1].exp()[..., None] * continues[:, :, -1:] * matrix
    return answers, carried + (key * kept).transpose(2, 3) @ value
