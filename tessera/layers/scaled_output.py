"""From the heads' answers back to the residual stream."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from tessera.base.arguments import explains_mistakes
from tessera.base.devices import is_exporting
from tessera.base.shapes import Float, Hidden
from tessera.layers.plain_linear import is_plain_linear

INITIAL_LOG_SCALE = -0.5


class ScaledOutput(nn.Module):
    """`W_z (scale_h y_h)_h`: one positive scale per head (kept as its log, initially -0.5), then W_z."""

    scalar_parameters = ("log_scale",)

    def __init__(self, hidden_size: int, num_heads: int, bias: bool = False, head_dropout: float = 0.0):
        super().__init__()
        self.head_dropout = head_dropout
        self.log_scale = nn.Parameter(torch.empty(num_heads))
        self.projection = nn.Linear(hidden_size, hidden_size, bias=bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All scales `exp(-0.5)`."""
        with torch.no_grad():
            self.log_scale.fill_(INITIAL_LOG_SCALE)

    @explains_mistakes
    def forward(self, recalled: Float[Tensor, "B H T V"]) -> Hidden:
        """(B, H, T, V) -> (B, T, hidden)."""
        scale = self.log_scale.exp()
        fold = self._can_fold(recalled.shape[0] * recalled.shape[2])
        if not fold:
            recalled = recalled * scale.to(recalled.dtype)[:, None, None]
        heads = recalled.transpose(1, 2).flatten(2)
        if self.head_dropout:
            heads = dropout(heads, self.head_dropout, self.training)
        if not fold:
            return self.projection(heads)
        # For many steps the scale costs a pass over the weights rather than one over all steps.
        weight = self.projection.weight
        weight = weight * scale.to(weight.dtype).repeat_interleave(recalled.shape[-1])
        return linear(heads, weight, self.projection.bias)

    def _can_fold(self, steps: int) -> bool:
        """Whether the scales may be multiplied into the weight; an exported program takes any number of steps."""
        if is_exporting() or not is_plain_linear(self.projection, may_have_bias=True):
            return False
        return steps >= self.projection.in_features
