"""Attention weights of chosen queries of transformers, without the T x T matrix."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from tessera.base.errors import TesseraError
from tessera.base.precision import without_autocast
from tessera.kernels import Kernel
from tessera.models.attention import ATTENTION_KERNELS, attention_mask, kernel_in
from tessera.ops.kernel_regression.interception import of_this_thread

NAME = "tessera_intercepted"
# query (B, H, T, D), key and value (B, H, N, D), mask (broadcast to (B, H, T, N)) or None for causal, scale, answers
# (B, T, H, D), the kernel (None: softmax) -> answers
AttentionInterceptor = Callable[
    [nn.Module, Tensor, Tensor, Tensor, Tensor | None, float, Tensor, Kernel | None], Tensor
]
_ACTIVE = threading.local()
# How many threads look into a model now, and the attention that it has otherwise.
_WATCHED: WeakKeyDictionary[PreTrainedModel, tuple[int, str]] = WeakKeyDictionary()
_LOCK = threading.Lock()


@contextmanager
def intercepted_attention(model: PreTrainedModel, interceptor: AttentionInterceptor) -> Iterator[None]:
    """While it lasts, every attention of `model` hands its call and its answers to `interceptor`.

    Raises `TesseraError`: the model's attention cannot be exchanged (BLOOM, for one, computes its own).
    """
    if not is_exchangeable(model):
        raise TesseraError(
            "inspection: model must compute its attention by transformers' AttentionInterface, by one of our kernels "
            f"or by softmax without caps and sinks; {type(model).__name__} does not. Its weights can be seen, but no "
            "head or pair left out."
        )
    with _LOCK:  # the first thread exchanges the attention, the last puts it back
        count, before = _WATCHED.get(model, (0, model.config._attn_implementation))
        if count == 0:
            kernel = before if before in ATTENTION_KERNELS else None
            name = NAME if kernel is None else f"{NAME}_{kernel}"
            # Without a mask sliding windows would see all.
            AttentionMaskInterface.register(name, sdpa_mask if kernel is None else attention_mask)
            AttentionInterface.register(name, partial(_attend, kernel))
            model.set_attn_implementation(name)
        _WATCHED[model] = count + 1, before
    _ACTIVE.interceptor = interceptor
    try:
        yield
    finally:
        _ACTIVE.interceptor = None
        with _LOCK:
            count, before = _WATCHED.pop(model)
            if count > 1:
                _WATCHED[model] = count - 1, before
            else:
                model.set_attn_implementation(before)


def is_exchangeable(model: PreTrainedModel) -> bool:
    """Does the model compute its attention by transformers' `AttentionInterface`, and so that `_attend` does the same?

    By any of our kernels, which refuse what they do not compute; by softmax not with soft-capped scores (Gemma 2),
    sinks, for which there is no SDPA (GPT-OSS), keys that are chosen for each query (DeepSeek V3.2) or a position bias
    (Inkling).
    """
    config = model.config.get_text_config()
    is_kernel = config._attn_implementation in ATTENTION_KERNELS
    special = ("attn_logit_softcapping", "index_topk", "index_topk_blocks", "rel_extent")
    is_plain = all(getattr(config, name, None) is None for name in special)
    return model._can_set_attn_implementation() and (is_kernel or (model._supports_sdpa and is_plain))


@contextmanager
def returned_weights(modules: Sequence[nn.Module], receive: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    """While it lasts, `receive` is given the weights (B, H, T, N) that each of `modules` returns beside its answers.

    Raises `TesseraError`: a module that returns none.
    """

    @of_this_thread
    def hook(module: nn.Module, arguments: tuple, output: object) -> None:
        weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        if not (isinstance(weights, Tensor) and weights.dim() == 4):
            raise TesseraError(
                f"inspection: attention must return its weights or be computed by transformers' AttentionInterface; "
                f"{type(module).__name__} does neither."
            )
        receive(module, weights)

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(hook))
        yield


def _attend(
    name: str | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: object,
) -> tuple[Tensor, None]:
    """The attention `name` of our kernels, None for PyTorch's, whose call and answers an interceptor is handed."""
    attend = sdpa_attention_forward if name is None else AttentionInterface()[name]
    answers, _ = attend(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options)
    interceptor = getattr(_ACTIVE, "interceptor", None)
    if interceptor is None:
        return answers, None
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    kernel = None
    if name is not None:
        kernel, query, key = kernel_in(module, query.shape[1], name), query.to(value.dtype), key.to(value.dtype)
    return interceptor(module, query, key, value, attention_mask, scale, answers, kernel), None


def attention_weights(
    query: Tensor, key: Tensor, mask: Tensor | None, scale: float, positions: Tensor, kernel: Kernel | None = None
) -> tuple[Tensor, Tensor]:
    """Weights (B, H, Q, N) of the queries at `positions` (integers (Q,), among the T of this call), by softmax or by
    `kernel`, and whether a pair is seen (booleans that broadcast to them): weights that are too small for the dtype
    are 0, too."""
    bias = _bias(query, key, mask, positions)
    seen = bias > torch.finfo(bias.dtype).min / 2
    return _weights(query[:, :, positions], key, bias, seen, scale, kernel), seen


def attend_without(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    pair: int,
    kernel: Kernel | None = None,
) -> Tensor:
    """Answers (B, T, H, D) of attention that does not see key number `pair`; a query that sees no other gets 0."""
    bias = _bias(query, key, mask, torch.arange(query.shape[2], device=key.device))
    bias[..., pair] = -torch.inf
    if kernel is not None:
        seen = bias > torch.finfo(bias.dtype).min / 2
        return (_weights(query, key, bias, seen, scale, kernel).to(value.dtype) @ value).transpose(1, 2)
    alone = (bias <= torch.finfo(query.dtype).min).all(-1, keepdim=True)
    bias = bias.masked_fill(alone, 0.0)
    answers = torch.nn.functional.scaled_dot_product_attention(query, key, value, bias, scale=scale)
    return answers.masked_fill(alone, 0.0).transpose(1, 2)


def _weights(query: Tensor, key: Tensor, bias: Tensor, seen: Tensor, scale: float, kernel: Kernel | None) -> Tensor:
    with without_autocast(query):  # in bfloat16 a large score is off by more than its weight
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = scale * (query.to(wide) @ key.to(wide).mT)
    return (scores + bias).softmax(-1) if kernel is None else kernel.weights(scores + bias.masked_fill(~seen, 0), seen)


def _bias(query: Tensor, key: Tensor, mask: Tensor | None, positions: Tensor) -> Tensor:
    """What is added to scores (B, H, Q, N) of the queries at `positions`: -inf where they see nothing, or the mask."""
    pairs, steps = key.shape[2], query.shape[2]
    if mask is None:
        # As PyTorch's own: one query sees all pairs; of several, query i sees pairs 0 to i, and what lies behind is the
        # empty rest of a static cache.
        newest = torch.full_like(positions, pairs - 1) if steps == 1 else positions
        visible = (torch.arange(pairs, device=key.device) <= newest[:, None])[None, None]
    else:
        visible = mask.expand(-1, -1, steps, -1)[:, :, positions, :pairs]
    if visible.dtype != torch.bool:
        return visible
    return torch.zeros_like(visible, dtype=query.dtype).masked_fill(~visible, -torch.inf)
