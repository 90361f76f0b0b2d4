"""transformers' Mamba, whose mixer on a CPU is computed by `tessera.ops.selective_scan`."""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import softplus
from transformers import Cache, MambaForCausalLM
from transformers.models.mamba.modeling_mamba import MambaMixer

from tessera.ops.selective_scan import selective_scan


class ScanMixer(MambaMixer):
    """The same parameters and the same function; what it does not cover goes to transformers' own code.

    That is a GPU, for which there are kernels; a cache, as `generate` keeps one; and padding. Several tokens behind a
    cache are read one by one: transformers' scan of many begins without the state.
    """

    def forward(self, hidden_states, cache_params=None, attention_mask=None, **kwargs):
        """Gu and Dao (2023), section 3.4: gated, convolved, scanned."""
        steps = hidden_states.shape[1]
        if attention_mask is None and _is_filled(cache_params, self.layer_idx):
            read, answers = super().forward, []
            for t in range(steps):
                if torch.is_grad_enabled():
                    _renew(cache_params.layers[self.layer_idx])
                answers.append(read(hidden_states[:, t : t + 1], cache_params, **kwargs))
            return torch.cat(answers, 1)
        if hidden_states.is_cuda or cache_params is not None or attention_mask is not None:
            return super().forward(hidden_states, cache_params, attention_mask=attention_mask, **kwargs)
        x, gate = self.in_proj(hidden_states).chunk(2, dim=-1)
        convolved = self.conv1d(x.transpose(1, 2))[..., : x.shape[1]]  # padded on both sides: the end is cut off
        x = self.act(convolved).transpose(1, 2)
        sizes = [self.time_step_rank, self.ssm_state_size, self.ssm_state_size]
        low_rank_step, write, read = self.x_proj(x).split(sizes, dim=-1)
        step = softplus(self.dt_proj(low_rank_step))
        y = selective_scan(x, step, -self.A_log.exp(), write, read)
        return self.out_proj((y + self.D * x) * self.act(gate))


def _is_filled(cache: Cache | None, layer: int) -> bool:
    return cache is not None and cache.get_recurrent_state(layer, state_idx=0) is not None


def _renew(layer: Any) -> None:
    """Copies in place of the states, which transformers overwrites: the backward pass needs them as they were."""
    for states in (layer.conv_states, layer.recurrent_states):
        states[0] = states[0].clone()


def use_selective_scan(model: nn.Module) -> nn.Module:
    """Give the Mamba layers of `model`, if it has any, a `ScanMixer`; what is saved and loaded stays the same."""
    if isinstance(model, MambaForCausalLM):
        for layer in model.backbone.layers:
            layer.mixer.__class__ = ScanMixer
    return model
