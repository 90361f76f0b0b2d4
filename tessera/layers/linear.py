"""What linear layers are made into: the way from heads to the residual stream, a dense network."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, silu
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tessera.base.arguments import explains_mistakes
from tessera.base.devices import is_exporting
from tessera.base.shapes import Float, Hidden

INITIAL_LOG_SCALE = -0.5


def is_plain_linear(module: nn.Module, may_have_bias: bool = False) -> bool:
    """Whether calling `module` is a product with its weight, plus its bias if it may have one, and nothing more.

    Adapters, quantised layers, parametrizations, hooks and replaced methods make it something more.
    """
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return (
        type(module) is nn.Linear
        and (may_have_bias or module.bias is None)
        and module.weight.is_floating_point()
        and not is_traceable_wrapper_subclass(module.weight)
        and "forward" not in vars(module)
        and not any(getattr(module, name) for name in hooks)
    )


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
        fold = not is_exporting() and is_plain_linear(self.projection, may_have_bias=True)
        # For many steps the scale costs a pass over the weights rather than one over all steps.
        fold = fold and recalled.shape[0] * recalled.shape[2] >= self.projection.in_features
        if not fold:
            recalled = recalled * scale.to(recalled.dtype)[:, None, None]
        heads = recalled.transpose(1, 2).flatten(2)
        if self.head_dropout:
            heads = dropout(heads, self.head_dropout, self.training)
        if not fold:
            return self.projection(heads)
        weight = self.projection.weight
        weight = weight * scale.to(weight.dtype).repeat_interleave(recalled.shape[-1])
        return linear(heads, weight, self.projection.bias)


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
