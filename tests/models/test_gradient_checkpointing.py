"""Layers that are computed again in the backward pass: what was read before has its gradients too."""

import pytest
import torch

from tessera.models.mamba import use_selective_scan
from tests.models.armt.bases import tiny
from tests.models.contract import CASES, tokens, v1

NAMES = ["v1 compact", "v2 gaussian", "linear attention gla", "armt around memory_mosaic"]


def computed_twice(model, reentrant):
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    return model


def through_a_state(model):
    """Gradients of the loss of a text's second part, also by way of the state behind its first."""
    ids = tokens(2, 20)
    torch.manual_seed(2)  # for the delays of v2
    state = model(ids[:, :9], use_cache=True).past_key_values
    model(ids[:, 9:], past_key_values=state, labels=ids[:, 9:]).loss.backward()
    return {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning")  # by its old name
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_go_through_a_state(name, reentrant):
    expected = through_a_state(CASES[name].build().train())
    actual = through_a_state(computed_twice(CASES[name].build().train(), reentrant))
    torch.testing.assert_close(actual, expected)


SCALE = 65536.0
# Not "v1 compact", whose slots are neighbours: rounding chooses others.
OTHERS = {"v1 triweight": lambda: v1(kernel="triweight"), "mamba": lambda: use_selective_scan(tiny("mamba"))}
SCALED = ["v1 published", "v2 gaussian", "v2 normalized relu", "linear attention gla", "rmt around gpt2"]
SCALED += ["linear attention retnet", "linear attention linear_transformer", "armt around gpt2", "transformer"]


def gradients(model, scale, dtype=None):
    model.zero_grad()
    torch.manual_seed(0)  # for what is drawn in training
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = model(tokens(), labels=tokens()).loss
    (scale * loss).backward()
    return {name: p.grad / scale for name, p in model.named_parameters() if p.grad is not None and p.dim() > 1}


@pytest.mark.parametrize("name", [*SCALED, *OTHERS])
def test_gradients_of_a_scaled_loss(name):
    torch.manual_seed(0)
    model = OTHERS[name]() if name in OTHERS else CASES[name].build()
    model.float().train()
    expected, actual = gradients(model, 1.0), gradients(model, SCALE, torch.float16)
    for key, gradient in actual.items():
        assert gradient.isfinite().all(), key
        # Eleven bits, in some ten sums.
        assert (gradient - expected[key]).norm() < 0.1 * expected[key].norm() + 1e-7, key
