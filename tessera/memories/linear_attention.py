"""The memories of the recurrent baselines: linear transformer, RetNet and gated linear attention."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, layer_norm, logsigmoid, silu

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect, head_width
from tessera.base.shapes import Documents, Hidden, Int
from tessera.base.state import State
from tessera.memories.padded_rows import takes_padding_anywhere
from tessera.ops.float16_autocast import widened
from tessera.ops.gated_linear_attention import LinearAttentionState, gated_linear_attention

VARIANTS = ("linear_transformer", "retnet", "gla")
GATE_RANK, GATE_TEMPERATURE = 16, 16.0  # of gated linear attention's decays, as published
ROTARY_BASE = 10000.0


@dataclass(frozen=True)
class RecurrentState(State):
    """The matrix of key-value products, and how many steps were read (B,): RetNet rotates keys by their position."""

    memory: LinearAttentionState
    position: Int[Tensor, " B"]


class LinearAttentionMemory(nn.Module):
    """A matrix S of key-value products per head, read by a query: `y_t = S_t^T q_t` (see `gated_linear_attention`).

    variant:
        "linear_transformer": features `elu(x) + 1`, no decay, answers divided by `q_t . sum_s k_s` (Katharopoulos et
            al. 2020, equations 5 and 7).
        "retnet": decay `1 - 2^(-5-h)` of head h, rotary keys and queries, values of twice the width, answers
            normalised per head and gated by `silu(W_g x)` (Sun et al. 2023, equations 5 to 8).
        "gla": decay `sigmoid(W_2 W_1 x + b)^(1/16)` per step and key dimension, keys of half the width, answers
            normalised per head and gated (Yang et al. 2024, section 4.4).
    """

    padding_is_in_front = False

    def __init__(self, hidden_size: int, num_heads: int, variant: str):
        super().__init__()
        expect(variant in VARIANTS, type(self).__name__, "variant", "be one of " + ", ".join(VARIANTS), repr(variant))
        # RetNet turns pairs of dimensions; gated linear attention has keys of half the width.
        head_width(type(self).__name__, hidden_size, num_heads, parts=1 if variant == "linear_transformer" else 2)
        keys = hidden_size // 2 if variant == "gla" else hidden_size
        values = 2 * hidden_size if variant == "retnet" else hidden_size
        self.num_heads, self.variant = num_heads, variant
        self.query = nn.Linear(hidden_size, keys, bias=False)
        self.key = nn.Linear(hidden_size, keys, bias=False)
        self.value = nn.Linear(hidden_size, values, bias=False)
        self.output = nn.Linear(values, hidden_size, bias=False)
        self.gate = None if variant == "linear_transformer" else nn.Linear(hidden_size, values, bias=False)
        self.decay = None
        if variant == "gla":
            self.decay = nn.Sequential(nn.Linear(hidden_size, GATE_RANK, bias=False), nn.Linear(GATE_RANK, keys))

    @explains_mistakes
    @takes_padding_anywhere
    def forward(
        self, x: Hidden, state: RecurrentState | None = None, documents: Documents = None, keep_state: bool = False
    ) -> tuple[Hidden, RecurrentState | None]:
        """Answers (B, T, hidden) at each step of `x` (B, T, hidden), and the state after the last if it is kept."""
        expect(x.dim() == 3 and x.shape[1] > 0, type(self).__name__, "x", "be (B, T, hidden), T >= 1", tuple(x.shape))
        held = len(x) if state is None else len(state.position)
        expect(held == len(x), type(self).__name__, "state", f"have {len(x)} rows, as x", held)
        query, key, value = (widened(projected) for projected in (self.query(x), self.key(x), self.value(x)))
        if self.variant == "linear_transformer":
            # Before the heads: torch.compile takes the gradient's strides for those of the input, which must be equal.
            query, key = elu(query) + 1, elu(key) + 1
        query, key, value = (self._heads(projected) for projected in (query, key, value))
        start = torch.zeros(len(x), dtype=torch.long, device=x.device) if state is None else state.position
        if self.variant == "linear_transformer":
            value = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the last column sums the keys
        if self.variant == "retnet":
            query, key = _rotated(query, start), _rotated(key, start)
        scale = 1.0 if self.variant == "linear_transformer" else query.shape[-1] ** -0.5
        memory = None if state is None else state.memory
        decay = self._log_decay(x, query)
        answers, memory = gated_linear_attention(scale * query, key, value, decay, memory, documents)
        if self.variant == "linear_transformer":
            answers = answers[..., :-1] / answers[..., -1:].clamp(min=torch.finfo(answers.dtype).eps)
        else:
            answers = layer_norm(answers, answers.shape[-1:])
        recalled = answers.transpose(1, 2).flatten(2)
        recalled = recalled if self.gate is None else recalled * silu(self.gate(x))
        return self.output(recalled), RecurrentState(memory, start + x.shape[1]) if keep_state else None

    def _log_decay(self, x: Tensor, query: Tensor) -> Tensor | None:
        if self.decay is not None:
            return self._heads(logsigmoid(self.decay(x)) / GATE_TEMPERATURE)
        if self.variant == "retnet":
            rates = [math.log1p(-(2.0 ** (-5 - head))) for head in range(self.num_heads)]
            return torch.tensor(rates, dtype=query.dtype, device=query.device)[:, None, None]
        return None

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _rotated(x: Tensor, start: Tensor) -> Tensor:
    """x (B, H, T, K) turned by its position: pair j of dimensions by `position * 10000^(-2j/K)`."""
    width = x.shape[-1]
    frequencies = ROTARY_BASE ** -(torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    positions = start[:, None].double() + torch.arange(x.shape[2], device=x.device)
    angles = (positions[..., None] * frequencies)[:, None]
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., ::2], x[..., 1::2]
    return torch.stack([first * cosine - second * sine, first * sine + second * cosine], -1).flatten(-2)
