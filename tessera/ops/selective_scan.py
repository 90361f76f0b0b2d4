"""The recurrence of Mamba on a CPU: a state of N numbers for each channel, whose decay depends on the input.

transformers' own version makes every state of a text at once, (B, T, D, N) of them several times over, and then goes
through them step by step in autograd. Here a few steps at a time are in memory, and the backward pass makes the states
of a block again from the one before it.
"""

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.devices import is_transformed
from tessera.base.errors import expect
from tessera.base.first_derivative import only_first_derivative
from tessera.base.shapes import Float

BLOCK = 1 << 20  # states that are in memory at once: a few tensors of this size fit into a core's cache


@explains_mistakes
def selective_scan(
    x: Float[Tensor, "B T D"],
    step: Float[Tensor, "B T D"],
    rate: Float[Tensor, "D N"],
    write: Float[Tensor, "B T N"],
    read: Float[Tensor, "B T N"],
) -> Float[Tensor, "B T D"]:
    """`h_t = exp(step_t rate) h_{t-1} + step_t x_t write_t`, `y_t = read_t . h_t`, with h_0 = 0.

    Equation 2 of Gu and Dao (2023), for each channel of D. `step` is their Delta (positive), `rate` their A (negative),
    `write` and `read` their B and C. States have the dtype of `rate`, y that of `x`.
    """
    state_shape, states = (*x.shape[:2], rate.shape[-1]), [tuple(tensor.shape) for tensor in (write, read)]
    if x.dim() != 3 or step.shape != x.shape or rate.shape[:-1] != x.shape[2:] or states != [state_shape, state_shape]:
        shapes = [tuple(tensor.shape) for tensor in (x, step, rate, write, read)]
        needed = "be (B, T, D) twice, (D, N), (B, T, N) twice"
        expect(False, "selective_scan", "x, step, rate, write and read", needed, shapes)
    expect(x.shape[1] > 0, "selective_scan", "x", "be (B, T, D) with T >= 1", tuple(x.shape))
    expect(
        not is_transformed(),
        "selective_scan",
        "a call",
        "stand outside of torch.func, which cannot map it",
        "one in it",
    )
    inputs = (tensor.to(rate.dtype) for tensor in (x, step, rate, write, read))
    with torch.autocast(x.device.type, enabled=False):  # its backward pass runs outside of it
        return _SelectiveScan.apply(*inputs).to(x.dtype)


class _SelectiveScan(torch.autograd.Function):
    """Everything is laid out time first, so that the states of one step are one block of memory."""

    @staticmethod
    def forward(ctx, x, step, rate, write, read):
        """Saved for backward: the inputs and the state in front of each block of steps."""
        inputs = x, step, write, read
        x, step, write, read = (tensor.transpose(0, 1).contiguous() for tensor in inputs)
        length, batch = x.shape[:2]
        size = max(1, BLOCK // max(1, batch * rate.numel()))
        ctx.size, state = size, x.new_zeros(batch, *rate.shape)
        before, outputs = [], []
        for first in range(0, length, size):
            block = slice(first, first + size)
            before.append(state)
            _, states = _states(x[block], step[block], rate, write[block], state)
            outputs.append((states @ read[block, :, :, None]).squeeze(-1))
            state = states[-1].clone()
        ctx.save_for_backward(*inputs, x, step, rate, write, read, *before)
        return torch.cat(outputs).transpose(0, 1)

    @staticmethod
    @only_first_derivative("selective_scan")
    def backward(ctx, grad):
        """Of each state, from the last to the first: `g_t = read_t grad_t + decay_{t+1} g_{t+1}`."""
        x, step, rate, write, read, *before = ctx.saved_tensors[4:]
        grad = grad.transpose(0, 1).contiguous()
        later = torch.zeros_like(before[0])  # decay_{t+1} g_{t+1} of the step behind the block
        grad_rate = torch.zeros_like(rate)
        parts = []
        for number in reversed(range(len(before))):
            block = slice(number * ctx.size, (number + 1) * ctx.size)
            decay, states = _states(x[block], step[block], rate, write[block], before[number])
            grads = grad[block, :, :, None] * read[block, :, None]
            grads[-1] += later
            for t in reversed(range(len(grads) - 1)):
                grads[t].addcmul_(decay[t + 1], grads[t + 1])
            grad_read = (grad[block, :, None] @ states).squeeze(2)
            grad_write = ((step[block] * x[block])[:, :, None] @ grads).squeeze(2)
            grad_written = (grads @ write[block, :, :, None]).squeeze(-1)  # of step_t x_t
            grads *= decay
            later = grads[0].clone()
            grads[1:] *= states[:-1]
            grads[0] *= before[number]  # now the gradient of the exponent step_t rate
            grad_step = torch.einsum("tbdn,dn->tbd", grads, rate) + grad_written * x[block]
            grad_rate += grads.mul_(step[block, ..., None]).sum((0, 1))
            parts.append((grad_written * step[block], grad_step, grad_write, grad_read))
        grad_x, grad_step, grad_write, grad_read = (torch.cat(blocks[::-1]).transpose(0, 1) for blocks in zip(*parts))
        return grad_x, grad_step, grad_rate, grad_write, grad_read


def _states(x: Tensor, step: Tensor, rate: Tensor, write: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Decays and states (t, B, D, N) of t steps behind the state `before` (B, D, N)."""
    decay = (step[..., None] * rate).exp_()
    states = (step * x)[..., None] * write[:, :, None]
    for t in range(len(states)):
        before = states[t].addcmul_(decay[t], before)
    return decay, states
