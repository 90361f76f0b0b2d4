"""Keys that summarise the recent past: by a leaky average, and by one whose weights depend on what is read."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Documents, Float, Hidden
from tessera.ops.gated_average import GatedAverageState, gated_average
from tessera.ops.leaky_average import leaky_average
from tessera.ops.unit_norm import unit_norm


class LeakyKeyExtractor(nn.Module):
    """`kbar_T = W_phi x_T + lambda kbar_{T-1}`, `k_T = kbar_T / |kbar_T|` (Memory Mosaics, equation 6).

    One lambda = exp(-|a|) in (0, 1] per head. The state is kbar_T (B, H, K): O(1) per token.

    With `norm_eps` the norm is `k / (|k| + eps)`, and it matters whether kbar is this sum or, with `mean`, the sum
    divided by that of its weights `1 + lambda + lambda^2 + ...`; that of the weights is then the last column of the
    state (B, H, K + 1).
    """

    scalar_parameters = ("decay_rate",)

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        head_dim: int,
        bias: bool = False,
        norm_eps: float = 0.0,
        mean: bool = False,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.norm_eps = norm_eps
        self.mean = mean
        self.projection = nn.Linear(hidden_size, num_heads * head_dim, bias=bias)
        self.decay_rate = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rates a spread evenly from 0.5 (slow) to 5 (almost no memory) over the heads, as published."""
        with torch.no_grad():
            self.decay_rate.copy_(torch.linspace(0.5, 5.0, self.num_heads))

    def decay(self) -> Float[Tensor, " H"]:
        """lambda (H,), in float64: it is raised to high powers."""
        return torch.exp(-self.decay_rate.double().abs())

    @explains_mistakes
    def forward(
        self, x: Hidden, carry: Float[Tensor, "B H carried"] | None = None, documents: Documents = None
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H carried"]]:
        """Unit keys (B, H, T, K) of `x` (B, T, hidden), and the new carry kbar_T (B, H, K)."""
        candidates = self.projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        if self.mean:
            candidates = pad(candidates, (0, 1), value=1.0)
        averaged, carry = leaky_average(candidates, self.decay(), carry, documents)
        if self.mean:
            averaged = averaged[..., :-1] / averaged[..., -1:]
        return unit_norm(averaged, self.norm_eps), carry


class GatedKeyExtractor(nn.Module):
    """`kbar_T = g_T W_phi x_T + lambda_T kbar_{T-1}`, `k_T = kbar_T / |kbar_T|` (Memory Mosaics v2, equation 8).

    `g_T = exp(W_g x_T)` and `lambda_T = exp(-|W_lambda x_T|)`, one scalar each per head and step. The state is the
    average so far: O(1) per token. Any finite W_g x gives finite keys and gradients (see `gated_average`).
    """

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int):
        super().__init__()
        self.num_heads = num_heads
        self.projection = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.gate = nn.Linear(hidden_size, num_heads, bias=False)
        self.decay = nn.Linear(hidden_size, num_heads, bias=False)

    @explains_mistakes
    def forward(
        self, x: Hidden, carry: GatedAverageState | None = None, documents: Documents = None
    ) -> tuple[Float[Tensor, "B H T K"], GatedAverageState]:
        """Unit keys (B, H, T, K) of `x` (B, T, hidden), and the new carry."""
        candidates = self.projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        log_gate = self.gate(x).transpose(1, 2)
        log_decay = -self.decay(x).abs().transpose(1, 2)
        averaged, carry = gated_average(candidates, log_gate, log_decay, carry, documents)
        return unit_norm(averaged), carry
