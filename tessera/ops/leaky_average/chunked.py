"""The leaky average as products with one small matrix per head: parallel over time, O(T) memory (see README.md)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

CHUNK = 64


def refuse(x: Tensor) -> str | None:
    """The chunked scan takes every call."""
    return None


def run(x: Tensor, decay: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> Tensor:
    """`y_t = x_t + decay y_{t-1}`, restarted where `starts` (B, T) holds."""
    if x.shape[2] == 1:
        return _step(x, decay, initial_state, starts)
    return _LeakyAverage.apply(x, decay, initial_state, starts)


def _step(x: Tensor, decay: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> Tensor:
    if initial_state is None:
        return x
    if starts is not None:
        initial_state = torch.where(starts[:, :, None], 0.0, initial_state)
    return torch.addcmul(x, decay[:, None, None].to(x.dtype), initial_state.unsqueeze(2))


class _LeakyAverage(torch.autograd.Function):
    """Backward is the same scan from the end, `g~_t = g_t + decay g~_{t+1}`; d decay = sum g~_t y_{t-1}."""

    @staticmethod
    def forward(ctx, x, decay, initial_state, starts):
        linked = None if starts is None else ~starts
        y = _scan(x, decay, initial_state, linked, reverse=False)
        ctx.save_for_backward(decay, initial_state, linked, y)
        return y

    @staticmethod
    def backward(ctx, grad):
        decay, initial_state, linked, y = ctx.saved_tensors
        total = _scan(grad, decay, None, linked, reverse=True)
        previous, later = y[:, :, :-1], total[:, :, 1:]
        if linked is not None:
            later = later * linked[:, None, 1:, None]
        grad_decay = torch.einsum("bhtk,bhtk->h", later, previous).to(decay.dtype)
        grad_initial = None
        if initial_state is not None:
            first = total[:, :, 0] if linked is None else total[:, :, 0] * linked[:, 0, None, None]
            grad_decay = grad_decay + torch.einsum("bhk,bhk->h", first, initial_state).to(decay.dtype)
            grad_initial = first * decay[:, None].to(first.dtype)
        return total, grad_decay, grad_initial, None


def _scan(x: Tensor, decay: Tensor, carry: Tensor | None, linked: Tensor | None, reverse: bool) -> Tensor:
    """One scan; `linked` (B, T): step t continues from step t-1. `carry` (B, H, K) enters before the first step."""
    batch, heads, steps, width = x.shape
    chunk = min(CHUNK, steps)
    x = pad(x, (0, 0, 0, -steps % chunk))
    chunks = x.shape[2] // chunk
    x = x.reshape(batch, heads, chunks, chunk, width)
    powers, same_run, first, whole = _coefficients(decay, linked, chunks, chunk, steps, x.dtype, reverse)
    matrix = powers[:, None] if same_run is None else powers[:, None] * same_run[:, None]
    if chunks > 1 or carry is not None:
        # What each chunk alone leaves at its exit, then the same recurrence over chunks, then one row folded in.
        entry, exit_ = (-1, 0) if reverse else (0, -1)
        x = x.clone(memory_format=torch.contiguous_format)
        left = (matrix[..., exit_, :].unsqueeze(-2) @ x).squeeze(-2)
        states = _scan_chunks(left, decay**chunk, carry, whole, reverse)
        if first is not None:
            states = states * first[:, None, :, None]
        x[..., entry, :] += decay[:, None, None].to(x.dtype) * states
    return (matrix @ x).flatten(2, 3)[:, :, :steps]


def _scan_chunks(left: Tensor, decay: Tensor, carry: Tensor | None, whole: Tensor | None, reverse: bool) -> Tensor:
    """The state that enters each chunk: (B, H, chunks, K)."""
    states = left if left.shape[2] == 1 else _scan(left, decay, carry, whole, reverse)
    edge = torch.zeros_like(left[:, :, :1]) if carry is None else carry.to(left.dtype).unsqueeze(2)
    if reverse:
        return torch.cat([states[:, :, 1:], edge], dim=2)
    return torch.cat([edge, states[:, :, :-1]], dim=2)


def _coefficients(
    decay: Tensor, linked: Tensor | None, chunks: int, chunk: int, steps: int, dtype: torch.dtype, reverse: bool
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """`decay^|i-j|` on and below (reverse: above) the diagonal, (H, C, C); and what documents cut, per chunk."""
    step = torch.arange(chunk, device=decay.device)
    age = (step[:, None] - step[None, :]) * (-1 if reverse else 1)
    # Powers of a float32 lambda near 1 would lose digits: C of them in float64 cost nothing.
    by_age = pad(decay.double()[:, None] ** step, (0, 1))
    powers = by_age.to(dtype)[:, torch.where(age >= 0, age, chunk)]
    if linked is None:
        return powers, None, None, None
    linked = pad(linked, (0, chunks * chunk - steps), value=True).view(-1, chunks, chunk)
    run = (~linked).cumsum(dim=-1)
    same_run = (run[..., :, None] == run[..., None, :]).to(dtype)
    enters, unbroken = linked[..., 0], linked[..., 1:].all(dim=-1)
    if reverse:
        enters = pad(enters[:, 1:], (0, 1), value=True)
        whole = pad((enters & unbroken)[:, :-1], (1, 0), value=True)
        return powers, same_run, enters, whole
    return powers, same_run, enters, enters & unbroken
