"""Triton kernel for the factors of the gated average: a scan of log-weights, so that nothing overflows or cancels."""

import triton
import triton.language as tl
from torch import Tensor

from tessera.ops.triton_product import INTERPRETED

CHUNK = 512


@triton.jit
def log_add(a, b):
    """log(exp(a) + exp(b)), -inf included."""
    largest = tl.maximum(a, b)
    anchor = tl.where(largest == float("-inf"), 0.0, largest)
    return largest + tl.log(tl.exp(a - anchor) + tl.exp(b - anchor))


@triton.jit
def combined(decay, weight, later_decay, later_weight):
    """Two runs of time steps as one: (sum of log-decays, log-weight at the end when it starts from nothing)."""
    return decay + later_decay, log_add(later_weight, later_decay + weight)


@triton.jit
def shares(
    gates, decays, initial, new, keep, last, steps, heads,
    gate_batch, gate_head, gate_step, decay_batch, decay_head, decay_step, CHUNK: tl.constexpr
):  # fmt: skip
    """`new_t = exp(g_t - s_t)` and `keep_t = exp(d_t + s_{t-1} - s_t)` (B, H, T), with
    `s_t = log(exp(g_t) + exp(d_t + s_{t-1}))`, and the last s.

    One program per head of a sequence, CHUNK steps at a time. The scan runs over the steps one before its own, headed
    by the carry, so that it yields s_{t-1}. The two are sigmoids of one margin: they add up to 1.
    """
    index = tl.program_id(0).to(tl.int64)
    batch, head = index // heads, index % heads
    gates += batch * gate_batch + head * gate_head
    decays += batch * decay_batch + head * decay_head
    inner = tl.arange(0, CHUNK)
    carry = tl.load(initial + index + tl.zeros((1,), tl.int32))
    for first in range(0, steps, CHUNK):
        step = first + inner
        before = tl.maximum(step - 1, 0)
        inside = step < steps
        earlier_gate = tl.load(gates + before * gate_step, mask=inside, other=0.0).to(tl.float32)
        earlier_decay = tl.load(decays + before * decay_step, mask=inside, other=0.0).to(tl.float32)
        earlier_gate = tl.where(inner == 0, carry, earlier_gate)
        earlier_decay = tl.where(inner == 0, 0.0, earlier_decay)
        _, weight = tl.associative_scan((earlier_decay, earlier_gate), 0, combined)
        gate = tl.load(gates + step * gate_step, mask=inside, other=0.0).to(tl.float32)
        kept = tl.load(decays + step * decay_step, mask=inside, other=0.0).to(tl.float32) + weight
        ratio = tl.exp(-tl.abs(gate - kept))
        large, small = 1.0 / (1.0 + ratio), ratio / (1.0 + ratio)
        tl.store(new + index * steps + step, tl.where(gate >= kept, large, small), mask=inside)
        tl.store(keep + index * steps + step, tl.where(gate >= kept, small, large), mask=inside)
        at_end = step == tl.minimum(first + CHUNK, steps) - 1
        carry = tl.sum(tl.where(at_end, log_add(gate, kept), 0.0), 0) + tl.zeros((1,), tl.float32)
    tl.store(last + index + tl.zeros((1,), tl.int32), carry)


def launch_shares(
    log_gate: Tensor, log_decay: Tensor, log_weight: Tensor, new: Tensor, keep: Tensor, last: Tensor
) -> None:
    """Fill `new`, `keep` (B, H, T) and `last` (B, H): a_t, 1 - a_t and s_T of gates, decays and s_0 = `log_weight`."""
    batch, heads, steps = log_gate.shape
    chunk = 8 if INTERPRETED else min(CHUNK, triton.next_power_of_2(steps))
    shares[(batch * heads,)](
        log_gate, log_decay, log_weight.float().contiguous(), new, keep, last, steps, heads,
        *log_gate.stride(), *log_decay.stride(), CHUNK=chunk
    )  # fmt: skip
