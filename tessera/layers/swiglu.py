"""Persistent memory of Memory Mosaics v2: a dense network of two layers."""

from torch import nn
from torch.nn.functional import silu

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Hidden


class SwiGLU(nn.Module):
    """`W_down (silu(W_gate x) * W_up x)`, no biases (Shazeer 2020; Memory Mosaics v2, section 3.3).

    Transformers' own Llama layer computes the same, but reads options from a Llama configuration that we do not have.
    """

    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.gate = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down = nn.Linear(intermediate_size, hidden_size, bias=False)

    @explains_mistakes
    def forward(self, x: Hidden) -> Hidden:
        """(B, T, hidden) -> (B, T, hidden)."""
        return self.down(silu(self.gate(x)) * self.up(x))
