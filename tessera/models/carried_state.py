"""What a causal model carries from call to call, whatever the model calls it."""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor

from tessera.base.errors import TesseraError, expect
from tessera.base.precision import autocast
from tessera.base.state import State
from tessera.models.causality import evaluating
from tessera.models.forking import apart, fitting, state_tensors
from tessera.models.forward_arguments import expect_rows
from tessera.models.recurrence import SegmentedForCausalLM, read_stream
from tessera.models.recurrence.base_model import ATTENTION
from tessera.models.recurrence.stream import progress_bar
from tessera.models.stack_state import StackState
from tessera.models.strict_config import StrictConfig
from tessera.models.transformer import context_limit

BLOCK = 2048  # tokens that are read in one call


def state_name(model: Any) -> str:
    """The argument of `model` that takes its state: `memory_state`, `cache_params` or `past_key_values`."""
    if isinstance(model, SegmentedForCausalLM):
        return "memory_state"
    return "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else "past_key_values"


def read_on(model: Any, ids: Tensor, state: Any, **options: Any) -> tuple[Tensor, Any]:
    """Logits of `ids` (B, T) that follow `state`, and the state after them. A cache of transformers is used up.

    A segmented model (ARMT, RMT, PRMT) opens a segment behind its memory, or goes on in the one that a cache holds.
    Raises `TesseraError` where the model has no state that can be handed back (RWKV, RecurrentGemma).
    """
    name = state_name(model)
    if name == "memory_state":
        is_memory = state is None or hasattr(state, "segments_read")
        if is_memory and state is not None and not bool(state.segments_read.any()):
            state = None
        options = {"use_cache": True, ("memory_state" if is_memory else "past_key_values"): state, **options}
        output = model(input_ids=ids, **options)
        return output.logits, output.past_key_values
    held = {tensor.shape[0] for tensor in state_tensors(state) if tensor.dim() > 2}  # transformers has a raw error
    if len(held) == 1 and not isinstance(state, State):
        expect_rows(type(model).__name__, ids.shape[0], held.pop(), name)
    state = fitting(state, next(model.parameters()))
    output = model(input_ids=ids, use_cache=True, **{name: state}, **options)
    has_state = output.get(name) is not None
    expect(has_state, "read_on", "the model", f"take and return a state ({name})", type(model).__name__)
    return output.logits, output[name]


def logits_behind(model: Any, ids: Tensor, state: Any) -> Tensor:
    """Logits of `ids` (B, T) that follow `state`, which stays as it is."""
    logits, after = read_on(model, ids, apart(state))
    if isinstance(state, StackState):
        state.reclaim(after)
    return logits


def last_logits(model: Any) -> dict[str, int]:
    """The argument that asks `model` for the logits of the last token alone, where it takes one."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}


@torch.no_grad()
def read_document(
    model: Any, tokens: Tensor, state: Any, where: str, progress: bool = False, precision: str | None = None
) -> Any:
    """The state after all of `tokens` (T,) behind `state`, read in blocks from the first token on.

    A segmented model ends its last segment, however short. `progress`, `precision`: see `read_streams`.
    Raises `TesseraError`: more tokens than the model has learned positions for, or a recurrence that loses its state.
    """
    if isinstance(model, SegmentedForCausalLM):
        stream = (token for block in tokens.split(1 << 16) for token in block.tolist())
        return read_stream(model, stream, state, progress, len(tokens), precision)
    limit = context_limit(model.config)
    state = apart(state)
    before = state.get_seq_length() if limit is not None and state is not None else 0
    has_room = limit is None or before + len(tokens) <= limit
    expect(has_room, where, "the text", f"fit the {limit} positions of the model", f"{before + len(tokens)} tokens")
    advice = "Mamba does so behind tessera.models.mamba.use_selective_scan(model)."
    expect(reads_on(model), where, "the model", "read on behind its state", model.config.model_type, advice)
    device = model.device
    with progress_bar(progress, len(tokens)) as bar, autocast(precision, device.type):
        for block in tokens.split(BLOCK):
            _, state = read_on(model, block[None].long().to(device), state, **last_logits(model))
            bar.update(len(block))
    return state


@torch.no_grad()
def reads_on(model: Any) -> bool:
    """Whether several tokens behind a state are read as behind the text: some of transformers lose it or part of it.

    Tried on models of others that have a recurrence (Bamba, MiniMax, Mamba).
    """
    is_known = any(getattr(module, "reads_on", False) for module in model.modules())  # in bfloat16 too
    config = getattr(model, "config", None)  # a module that is no model of transformers has none
    others = set() if config is None else set(getattr(config.get_text_config(), "layer_types", None) or ()) - ATTENTION
    has_recurrence = getattr(model, "_is_stateful", False) or bool(others)
    if is_known or not has_recurrence or isinstance(config, StrictConfig):
        return True
    ids = torch.arange(24, device=model.device)[None] % model.config.get_text_config().vocab_size
    try:
        with evaluating(model):
            at_once, (_, state) = read_on(model, ids, None)[0][:, 12:], read_on(model, ids[:, :12], None)
            behind, _ = read_on(model, ids[:, 12:], state)
    except TesseraError:  # its state cannot be handed back
        return False
    tolerance = 1e-4 if at_once.dtype == torch.float32 else 0.05
    return bool((behind - at_once).abs().max() < tolerance * at_once.abs().max())


def grows(state: Any) -> bool:
    """Whether `state` is as large as what was read: keys and values."""
    return not isinstance(state, State) and any(getattr(layer, "keys", None) is not None for layer in state.layers)


def detached(state: Any) -> Any:
    """`state` cut off from the autograd graph, in the same numbers: where truncated backpropagation begins anew."""
    if state is None or hasattr(state, "detach"):
        return state if state is None else state.detach()
    memo = {id(tensor): tensor.detach().clone() for tensor in state_tensors(state)}
    return copy.deepcopy(state, memo)
