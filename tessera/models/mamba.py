"""transformers' Mamba, whose mixer on a CPU is computed by `tessera.ops.selective_scan`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from transformers import MambaForCausalLM
from transformers.models.mamba.modeling_mamba import MambaMixer

from tessera.base.devices import is_transformed
from tessera.base.errors import expect
from tessera.memories.padded_rows import is_between_tokens
from tessera.models.forward_arguments import expect_rows
from tessera.ops.selective_scan import selective_scan

ADVICE = "Read such rows one at a time."


class ScanMixer(MambaMixer):
    """The same parameters and the same function; what it does not cover goes to transformers' own code.

    That is a GPU, for which there are kernels; `torch.func`, which cannot map ours; the beginning of a cache, and one
    token behind it, as `generate` asks; and padding of several rows. Several tokens behind a cache, and all behind one
    that gradients flow through, are read here: transformers' scan of many begins without the state, and its step
    overwrites what the backward pass needs. Behind a cache transformers takes a mask for that of the new tokens alone,
    and of a single row it ignores the mask: here that row is read without its padding, and what would be read as text
    is refused.
    """

    reads_on = True  # behind a cache, as `carried_state.reads_on` asks

    def forward(self, hidden_states, cache_params=None, attention_mask=None, **kwargs):
        """Gu and Dao (2023), section 3.4: gated, convolved, scanned."""
        is_filled = cache_params is not None and cache_params.has_previous_state(self.layer_idx)
        if is_filled:
            held = cache_params.layers[self.layer_idx].conv_states[0].shape[0]
            expect_rows("Mamba", hidden_states.shape[0], held, "cache_params")
        if attention_mask is not None:
            real = attention_mask[:, -hidden_states.shape[1] :].bool()
            if len(real) == 1 and not bool(real.all()):
                return self._without_padding(hidden_states, real, cache_params, **kwargs)
            if self.layer_idx == 0:
                _expect_padding_apart(real, cache_params, is_filled)
            attention_mask = None if is_filled else attention_mask
        ended_in_padding = is_filled and getattr(cache_params, "ended_in_padding", False)
        requirement = "end without padding for others to follow"
        expect(not ended_in_padding, "Mamba", "past tokens", requirement, "padding", ADVICE)
        goes_on = is_filled and attention_mask is None and (hidden_states.shape[1] > 1 or torch.is_grad_enabled())
        elsewhere = hidden_states.is_cuda or is_transformed()
        if not goes_on and (elsewhere or cache_params is not None or attention_mask is not None):
            return super().forward(hidden_states, cache_params, attention_mask=attention_mask, **kwargs)
        x, gate = self.in_proj(hidden_states).chunk(2, dim=-1)
        if goes_on:
            layer, steps = cache_params.layers[self.layer_idx], x.shape[1]
            read = torch.cat([layer.conv_states[0].to(x), x.transpose(1, 2)], -1)
            layer.conv_states[0] = read[..., -self.conv_kernel_size :]
            kept = self.conv_kernel_size
            convolved = self.conv1d(read)[..., kept : kept + steps]
        else:
            convolved = self.conv1d(x.transpose(1, 2))[..., : x.shape[1]]  # padded on both sides: the end is cut off
        x = self.act(convolved).transpose(1, 2)
        sizes = [self.time_step_rank, self.ssm_state_size, self.ssm_state_size]
        low_rank_step, write, read = self.x_proj(x).split(sizes, dim=-1)
        wide = torch.promote_types(self.A_log.dtype, torch.float32)  # that of the states: a slow decay rounds to none
        inputs = x, softplus(self.dt_proj(low_rank_step)), -self.A_log.to(wide).exp(), write, read
        if goes_on:
            y, layer.recurrent_states[0] = _scan_behind(layer.recurrent_states[0].to(x.device), *inputs)
        else:
            y = _scan(*inputs)
        return self.out_proj((y + self.D * x) * self.act(gate))

    def _without_padding(self, hidden_states, real, cache_params, **kwargs):
        """One row, at whose padding the outputs are 0."""
        outputs = torch.zeros_like(hidden_states)
        if bool(real.any()):
            outputs[real] = self(hidden_states[real][None], cache_params, **kwargs)[0].to(outputs.dtype)
        return outputs


def _expect_padding_apart(real: Tensor, cache: Any, is_filled: bool) -> None:
    """Refuse padding that a recurrence would take for text: between tokens, and between those and what follows.

    real: booleans (B, T) of the steps that are read now.
    """
    if is_filled:
        expect(bool(real.all()), "Mamba", "attention_mask", "be one for tokens behind a cache", "zeros", ADVICE)
        return
    is_between = is_between_tokens(torch.where(real, 0, -1))
    expect(not is_between, "Mamba", "padding", "lie before or behind the tokens", "some between them", ADVICE)
    if cache is not None:
        cache.ended_in_padding = not bool(real[:, -1].all())


_scan = torch.compiler.disable(selective_scan)  # a compiled program would hold every step of a text by itself


def _scan_behind(
    state: Tensor, x: Tensor, step: Tensor, rate: Tensor, write: Tensor, read: Tensor
) -> tuple[Tensor, Tensor]:
    """`selective_scan` with h_0 = `state` (B, D, N): its answers and the last state, a step at a time."""
    answers, kind = [], x.dtype
    x, step, write, read = x.to(rate), step.to(rate), write.to(rate), read.to(rate)
    for t in range(x.shape[1]):
        written = (step[:, t] * x[:, t])[..., None] * write[:, t, None]
        state = (step[:, t, :, None] * rate).exp() * state + written
        answers.append((state * read[:, t, None]).sum(-1))
    return torch.stack(answers, 1).to(kind), state


def use_selective_scan(model: nn.Module) -> nn.Module:
    """Give the Mamba layers of `model`, if it has any, a `ScanMixer`; what is saved and loaded stays the same."""
    if isinstance(model, MambaForCausalLM):
        for layer in model.backbone.layers:
            layer.mixer.__class__ = ScanMixer
    return model
