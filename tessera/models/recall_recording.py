"""The weights of all queries over the stored pairs, of every memory that runs: what `output_attentions` returns."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from tessera.kernels import Kernel
from tessera.ops.kernel_regression import Call, intercepted, reference


def recalling_memories(stack: nn.Module) -> list[nn.Module]:
    """The modules of `stack` that have weights over stored pairs."""
    return [module for module in stack.modules() if isinstance(getattr(module, "kernel", None), Kernel)]


@contextmanager
def recorded_weights(stack: nn.Module) -> Iterator[list[list[Tensor]]]:
    """While it lasts, each memory of `stack` that runs appends its weights: a list of (B, H, T, N), one per bank.

    Without dropout of the weights; the answers are functions of them, so that gradients reach them. O(B H T N) memory
    each.
    """
    recorded: list[list[Tensor]] = []

    def begin(module: nn.Module, arguments: tuple) -> None:
        recorded.append([])

    def record(call: Call, run: Callable[[Call], Tensor]) -> Tensor:
        weights = reference.weights(replace(call, dropout=0.0))
        recorded[-1].append(weights)
        if not torch.is_grad_enabled():
            return run(call)
        if call.dropout:
            return torch.dropout(weights, call.dropout, train=True) @ call.value
        with torch.no_grad():  # the numbers of a call that records nothing, bit for bit
            answers = run(call)
        through = weights @ call.value
        return answers + (through - through.detach())

    with ExitStack() as hooks, intercepted(record):
        for memory in recalling_memories(stack):
            hooks.enter_context(memory.register_forward_pre_hook(begin))
        yield recorded


def averaged_banks(banks: list[Tensor]) -> Tensor:
    """(B, H, T, N) of one memory: the slots of its banks one after the other, whose answers are averaged."""
    return banks[0] if len(banks) == 1 else torch.cat(banks, -1) / len(banks)
