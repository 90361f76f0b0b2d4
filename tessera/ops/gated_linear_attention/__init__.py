"""Linear attention with decay: a matrix of key-value products that forgets."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect
from tessera.base.shapes import Documents, Float, Int
from tessera.base.state import State
from tessera.ops import float16_autocast

__all__ = ["LinearAttentionState", "gated_linear_attention"]

CHUNK = 16  # within a chunk every pair of steps has K decays of its own: small, and no exponent is ever positive


@dataclass(frozen=True)
class LinearAttentionState(State):
    """`matrix` S (B, H, K, V) after the last step, and that step's `document` (B, 1)."""

    matrix: Float[Tensor, "B H K V"]
    document: Int[Tensor, "B 1"]


@explains_mistakes
def gated_linear_attention(
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "B H T K"],
    value: Float[Tensor, "B H T V"],
    log_decay: Float[Tensor, "..."] | None = None,
    state: LinearAttentionState | None = None,
    documents: Documents = None,
) -> tuple[Float[Tensor, "B H T V"], LinearAttentionState]:
    """`S_t = diag(exp g_t) S_{t-1} + k_t v_t^T`, `y_t = S_t^T q_t` (Yang et al. 2024, equation 3), and the last S.

    Without `log_decay` (g = 0) it is linear attention (Katharopoulos et al. 2020), with one constant per head the
    retention of RetNet (Sun et al. 2023), with one number per step and key dimension gated linear attention.

    Args:
        query, key: (B, H, T, K). value: (B, H, T, V). log_decay: at most 0, broadcast to (B, H, T, K).
        state: after the steps before. documents: integers (B, T), the steps of each contiguous: S starts empty in
            each; negative ones are padding, which writes nothing. None goes on, at the start with document 0.
    S is float32 for narrower inputs.
    Cost: O(T C K V / C + T C (K + V)) time with chunks of C = 16 steps, O(T (K + V)) memory.

    Raises:
        TesseraError: shapes that do not fit.
    """
    where = "gated_linear_attention"
    query, key, value = map(float16_autocast.widened, (query, key, value))
    log_decay = None if log_decay is None else float16_autocast.widened(log_decay)
    expect(query.dim() == 4, where, "query", "be (B, H, T, K) with T >= 1", tuple(query.shape))
    batch, heads, steps, width = query.shape
    expect(steps > 0, where, "query", "be (B, H, T, K) with T >= 1", tuple(query.shape))
    expect(key.shape == query.shape, where, "key", f"be {tuple(query.shape)} as the query", tuple(key.shape))
    expect(value.shape[:3] == query.shape[:3], where, "value", f"begin with {tuple(query.shape[:3])}", value.shape[:3])
    if documents is not None:
        expect(documents.shape == (batch, steps), where, "documents", f"be {(batch, steps)}", tuple(documents.shape))
        key = key * (documents >= 0)[:, None, :, None]
    # In bfloat16 a sum over some hundred steps grows no further, and a slow decay rounds to none.
    precise, needed = torch.promote_types(value.dtype, torch.float32), (batch, heads, width, value.shape[3])
    if state is None:
        start = query.new_zeros((batch, 1), dtype=torch.long) if documents is None else documents[:, :1]
        state = LinearAttentionState(value.new_zeros(needed), start)
    got = tuple(state.matrix.shape)
    expect(got == needed, where, "state", f"have a matrix {needed}", got)
    if documents is None:
        documents = state.document.clamp(min=0).expand(batch, steps)
    decay = torch.zeros_like(key) if log_decay is None else log_decay.expand_as(key)
    dtype, state = value.dtype, state.to(precise)
    query, key, value, decay = (tensor.to(precise) for tensor in (query, key, value, decay))
    with float16_autocast.without(query):
        answers, state = _in_chunks(query, key, value, decay, state, documents)
    return answers.to(dtype), state


def _in_chunks(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: LinearAttentionState, documents: Tensor
) -> tuple[Tensor, LinearAttentionState]:
    """Products inside each chunk, and one matrix passed from chunk to chunk; all arguments are present."""
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
