"""Keys that summarise the recent past by an average whose weights depend on what is read."""

from torch import Tensor, nn

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Float, Int
from tessera.ops.gated_average import GatedAverageState, gated_average
from tessera.ops.unit_norm import unit_norm


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
        self,
        x: Float[Tensor, "B T hidden"],
        carry: GatedAverageState | None = None,
        documents: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B H T K"], GatedAverageState]:
        """Unit keys (B, H, T, K) of `x` (B, T, hidden), and the new carry."""
        candidates = self.projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        log_gate = self.gate(x).transpose(1, 2)
        log_decay = -self.decay(x).abs().transpose(1, 2)
        averaged, carry = gated_average(candidates, log_gate, log_decay, carry, documents)
        return unit_norm(averaged), carry
