"""PyTorch's fused attention as one step for devices without data, on which it would be taken apart."""

import torch
from torch import Tensor

from tessera.ops.triton_device import interleaved


@torch.library.custom_op("pretend::attention", mutates_args=())
def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """(B, H, T, V), unwritten."""
    return interleaved(query, value.shape[-1])


@attention.register_fake
def _(query, key, value, mask, causal):
    return interleaved(query, value.shape[-1])


@torch.library.custom_op("pretend::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, mask: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, unwritten."""
    return tuple(interleaved(x, x.shape[-1]) for x in (query, key, value))


@attention_backward.register_fake
def _(grad, query, key, value, output, mask, causal):
    return tuple(interleaved(x, x.shape[-1]) for x in (query, key, value))


def _save(ctx, inputs, output) -> None:
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors, output)


def _gradients(ctx, grad):
    *tensors, mask, output = ctx.saved_tensors
    return *attention_backward(grad, *tensors, output, mask, ctx.causal), None, None


attention.register_autograd(_gradients, setup_context=_save)


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Takes the arguments of PyTorch's, in the autocast's dtype where there is one."""
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    return attention(query, key, value, attn_mask, is_causal)
