"""Linear attention with decay: a matrix of key-value products that forgets."""

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect
from tessera.base.shapes import Documents, Float
from tessera.ops import float16_autocast
from tessera.ops.gated_linear_attention.chunked import chunked
from tessera.ops.gated_linear_attention.state import LinearAttentionState

__all__ = ["LinearAttentionState", "gated_linear_attention"]


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
    precise = torch.promote_types(value.dtype, torch.float32)
    if state is None:
        start = (
            torch.zeros((batch, 1), dtype=torch.long, device=query.device) if documents is None else documents[:, :1]
        )
        state = LinearAttentionState(value.new_zeros(batch, heads, width, value.shape[3]), start)
    needed, got = (batch, heads, width, value.shape[3]), tuple(state.matrix.shape)
    expect(got == needed, where, "state", f"have a matrix {needed}", got)
    if documents is None:
        documents = state.document.expand(batch, steps)
    decay = torch.zeros_like(key) if log_decay is None else log_decay.expand_as(key)
    dtype, state = value.dtype, state.to(precise)
    query, key, value, decay = (tensor.to(precise) for tensor in (query, key, value, decay))
    with float16_autocast.without(query):
        answers, state = chunked(query, key, value, decay, state, documents)
    return answers.to(dtype), state
