"""Values that look one step ahead.

Both published forms are `v_T = Norm(now_T + next_{T+1})` with `now` and `next` linear in x, so that a memory can hold
`now_T` and finish the value when x_{T+1} arrives.
"""

import torch
from torch import Tensor, nn

from tessera.base.arguments import explains_mistakes
from tessera.base.registry import Registry
from tessera.base.shapes import Float, Hidden

VALUE_EXTRACTORS: Registry[type[nn.Module]] = Registry("value extractor")


@VALUE_EXTRACTORS.register("mixed")
class MixedValueExtractor(nn.Module):
    """`now_T = c W_psi x_T`, `next_T = (1 - c) W_psi x_T`: one mixing weight c per head (all published runs)."""

    scalar_parameters = ("mix",)

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int, bias: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.projection = nn.Linear(hidden_size, num_heads * head_dim, bias=bias)
        self.mix = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """c uniform in (0, 1), as published."""
        with torch.no_grad():
            self.mix.uniform_(0.0, 1.0)

    @explains_mistakes
    def forward(self, x: Hidden) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T V"]]:
        """`now` and `next`, each (B, H, T, V)."""
        values = self.projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        mix = self.mix.to(values.dtype)[:, None, None]
        now = values * mix
        return now, values - now


@VALUE_EXTRACTORS.register("convolution")
class ConvolutionValueExtractor(nn.Module):
    """`now_T = W_0 x_T + b`, `next_T = W_1 x_T`: a full convolution of width 2 over the two steps."""

    def __init__(self, hidden_size: int, num_heads: int, head_dim: int, bias: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.projection = nn.Linear(hidden_size, num_heads * head_dim, bias=bias)
        self.next_projection = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        # Both make one layer whose inputs are two steps; for an initialisation by fan-in.
        self.projection.fan_in = self.next_projection.fan_in = 2 * hidden_size  # type: ignore[assignment]

    @explains_mistakes
    def forward(self, x: Hidden) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T V"]]:
        """`now` and `next`, each (B, H, T, V)."""
        heads = (self.num_heads, -1)
        now = self.projection(x).unflatten(-1, heads).transpose(1, 2)
        return now, self.next_projection(x).unflatten(-1, heads).transpose(1, 2)
