"""Parameters, arithmetic and memory of a model, from its configuration alone.

A model may answer for itself by three methods; where it has none, rules for transformers with a KV cache answer:

- `parameters_by_part() -> dict[str, int]`, whose values add up to all parameters;
- `flops_per_token(context) -> int`, forward, a multiply-add counted as 2, for a token with `context` tokens before it;
- `state_bytes_per_token(dtype) -> float`, what decoding keeps per token of context, all layers together.
"""

import re
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedConfig

from tessera.base.arguments import explain_all
from tessera.base.errors import TesseraError
from tessera.models import sizes
from tessera.models.sizes import state_bytes_per_token

# First match wins; names of parameters in the transformers library.
_PARTS = (
    ("embeddings", re.compile(r"embed(?!_out)|wte|wpe")),
    ("lm_head", re.compile(r"^(lm_head|embed_out)\.")),
    ("norms", re.compile(r"norm|ln_|\.ln\d|layernorm")),
    ("attention", re.compile(r"attn|attention")),
    ("feed-forward", re.compile(r"mlp|feed_forward|ffn")),
)


@dataclass(frozen=True)
class ModelAccount:
    """What a model costs. `state_bytes_per_1000_tokens` is the memory that decoding keeps, in `dtype`.

    Both it and the FLOPs are None where the rules for transformers do not count them; `unknown` says why.
    """

    model_type: str
    context: int
    dtype: str
    parameters: int
    parameters_by_part: dict[str, int]
    flops_per_token: int | None
    state_bytes_per_1000_tokens: float | None
    unknown: str = ""


def account(config: PreTrainedConfig, context: int, dtype: torch.dtype = torch.bfloat16) -> ModelAccount:
    """Count on a model without weights (meta device); `dtype` is that of the state."""
    try:
        model = sizes.meta_model(config)
    except ValueError as error:
        raise TesseraError(f"info: model type {config.model_type} cannot be built ({error}).") from error
    parts = model.parameters_by_part() if hasattr(model, "parameters_by_part") else parameters_by_part(model)
    total = sizes.num_parameters(model)
    assert sum(parts.values()) == total, f"the parts of {config.model_type} do not add up: {parts}, {total}"
    flops, state, unknown = None, None, ""
    try:
        has_own = hasattr(model, "flops_per_token")
        flops = int(model.flops_per_token(context) if has_own else sizes.flops_per_token(config, context))
        state = 1000 * state_bytes_per_token(model, dtype)
    except TesseraError as error:
        unknown = str(error)
    return ModelAccount(
        model_type=config.model_type,
        context=context,
        dtype=str(dtype).removeprefix("torch."),
        parameters=total,
        parameters_by_part=parts,
        flops_per_token=flops,
        state_bytes_per_1000_tokens=state,
        unknown=unknown,
    )


def training_flops_per_sequence(config: PreTrainedConfig, length: int) -> int:
    """Of a forward and a backward pass over `length` tokens: three times those of the forward pass.

    What gradient checkpointing computes again is not counted. A model that answers `flops_per_token` itself is asked
    once, about the last token.
    """
    model = sizes.meta_model(config)
    if hasattr(model, "flops_per_token"):
        return 3 * length * int(model.flops_per_token(length))
    return 3 * sizes.flops_per_sequence(config, length)


def parameters_by_part(model: nn.Module) -> dict[str, int]:
    """Parameters by the part whose name they bear; tied weights count once, where they appear first."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = next((part for part, pattern in _PARTS if pattern.search(name)), "other")
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


explain_all(globals(), ("account", "parameters_by_part", "training_flops_per_sequence"))
