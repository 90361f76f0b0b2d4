"""Whether a linear layer's weight may be used without calling the layer."""

from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


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
