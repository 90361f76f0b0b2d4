"""Whether a gradient is the derivative."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

STEP = 1e-7  # of central differences: small, since weights of compact kernels and neighbours have corners
RELATIVE = 1e-5


def check_gradient(loss: Callable[[], Tensor], leaves: Mapping[str, Tensor]) -> None:
    """AssertionError unless autograd's derivative of `loss()` along a random direction is that of central differences.

    `leaves`: float64 or complex128 tensors that require a gradient, by name. All are moved at once, so that two calls
    of `loss` are enough; those with small gradients further, so that each has a part in the sum. A mistake in less than
    a thousandth of it may pass. `loss` must be the same function in each call. It must depend on each leaf, and on
    nothing else that requires a gradient: no optimizer would be given that, and no file would hold it.
    """
    value = loss()
    others = [tuple(leaf.shape) for leaf in _leaves_of(value) if id(leaf) not in map(id, leaves.values())]
    assert not others, f"tensors of shapes {others} are learned and no parameters: make each an nn.Parameter"
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    unused = ", ".join(name for name, gradient in zip(leaves, gradients) if gradient is None)
    assert not unused, f"{unused}: no gradient, so that it is never trained"
    sizes = [float(gradient.abs().square().sum().sqrt()) for gradient in gradients]
    generator = torch.Generator().manual_seed(5)
    moves = []
    for (name, leaf), gradient, size in zip(leaves.items(), gradients, sizes):
        farther = max(sizes) / max(size, max(sizes) / 30, 1e-300)
        step = STEP * farther * torch.randn(leaf.shape, dtype=leaf.dtype, generator=generator).to(leaf.device)
        claimed = float((gradient.conj() * step).real.sum())
        moves.append(_Move(name, leaf, step, claimed))
    rounding = 1e-8 * STEP * (1 + abs(float(value.detach())))
    if _is_right(loss, moves, rounding):
        return
    wrong = [move.name for move in moves if not _is_right(loss, [move], rounding)]
    raise AssertionError(f"the gradient of {', '.join(wrong) or 'all tensors together'} is not the derivative")


def _leaves_of(value: Tensor) -> Iterator[Tensor]:
    """What a gradient of `value` is gathered in."""
    seen: set[Any] = {None}
    waiting: list[Any] = [value.grad_fn]
    while waiting:
        if (node := waiting.pop()) not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
            yield from [node.variable] if hasattr(node, "variable") else []


@dataclass(frozen=True)
class _Move:
    """A tensor, how far it is moved, and by how much `loss` rises then if its gradient is right."""

    name: str
    leaf: Tensor
    step: Tensor
    claimed: float


@torch.no_grad()
def _is_right(loss: Callable[[], Tensor], moves: list[_Move], rounding: float) -> bool:
    kept, ends = [move.leaf.detach().clone() for move in moves], []
    for sign in (1, -1):
        for move, before in zip(moves, kept):
            move.leaf.copy_(before + sign * move.step)
        ends.append(float(loss()))
    for move, before in zip(moves, kept):
        move.leaf.copy_(before)
    claimed, measured = sum(move.claimed for move in moves), (ends[0] - ends[1]) / 2
    return abs(claimed - measured) <= RELATIVE * max(abs(claimed), abs(measured)) + rounding
