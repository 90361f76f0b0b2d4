"""Gaussian kernel regression on PyTorch's fused attention, where the two are the same thing."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from tessera.base.devices import is_exporting, is_readable
from tessera.kernels.gaussian import Gaussian
from tessera.ops.kernel_regression.call import Call


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    if type(call.kernel) is not Gaussian:
        return f"PyTorch's fused attention computes the gaussian kernel only, not {call.kernel.name!r}"
    return None


def needs_mask(call: Call) -> bool:
    """Whether `run` hands PyTorch a mask of O(T N) bytes, instead of its causal or unmasked attention."""
    return not _sees_everything(call) and not _is_shifted_past(call)


def run(call: Call) -> Tensor:
    """Softmax attention with `slope * query` as queries and scale 1.

    The past from a delay on, with queries aligned with pairs, is ordinary causal attention of late queries over early
    pairs, whatever the delay, and also with one delay per sequence. Anything else goes through a boolean mask, which
    PyTorch materialises: O(T N) bytes.
    """
    if call.key.shape[2] == 0:
        return call.zeros()
    query = call.query * call.per_query(call.slope)
    if _sees_everything(call):
        return _attention(call, query, call.key, call.value)
    if _is_shifted_past(call):
        assert call.window is not None
        delay = call.window.delay
        if not isinstance(delay, int) and delay.shape[0] == 1 and is_readable(delay):
            delay = int(delay)  # nothing to move; on a GPU, looking at the number would cost a wait
        return _past(call, query, delay) if isinstance(delay, int) else _past_of_each(call, query, delay)
    visible = call.visible()
    assert visible is not None
    empty = ~visible.any(dim=-1, keepdim=True)
    mask = (visible | empty).expand(query.shape[0], visible.shape[1] if visible.dim() == 4 else 1, -1, -1)
    return torch.where(empty, 0.0, _attention(call, query, call.key, call.value, attn_mask=mask))


def _sees_everything(call: Call) -> bool:
    return call.window is None and call.pair_documents is None


def _is_shifted_past(call: Call) -> bool:
    """Whether query j sees the pairs 0 .. j - delay, and all of these are there."""
    if call.window is None or call.window.span is not None or call.pair_documents is not None or call.query_offset:
        return False
    if is_exporting() and call.window.delay != 1:
        return False  # a length that some delay exceeds has no pairs to cut out
    youngest = call.window.delay if isinstance(call.window.delay, int) else 1
    return call.key.shape[2] >= call.query.shape[2] - youngest


def _past(call: Call, query: Tensor, delay: int) -> Tensor:
    """Queries from `delay` on are causal over the pairs from the first on; those before see nothing."""
    pairs = slice(0, max(0, query.shape[2] - delay))
    key, value = call.key[:, :, pairs], call.value[:, :, pairs]
    if pairs.stop == 0:
        return (query @ key.mT) @ value
    return pad(_attention(call, query[:, :, delay:], key, value, is_causal=True), (0, 0, delay, 0))


def _past_of_each(call: Call, query: Tensor, delays: Tensor) -> Tensor:
    """One delay per sequence: each one's queries are moved so that all have the delay 1, and the answers back."""
    steps = torch.arange(query.shape[2], device=query.device)
    shift = delays.to(query.device)[:, None] - 1
    # Past the end any query will do: its answer is not read. The first sees nothing and answers for all that do so.
    late = _take(query, (steps + shift).clamp(max=steps.shape[0] - 1))
    return _take(_past(call, late, delay=1), (steps - shift).clamp(min=0))


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    """Steps `index` (B, T) of a tensor (B, H, T, width)."""
    return tensor.gather(2, index[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))


def _attention(call: Call, query: Tensor, key: Tensor, value: Tensor, **masks) -> Tensor:
    return scaled_dot_product_attention(query, key, value, dropout_p=call.dropout, scale=1.0, **masks)
