"""Float16's autocast with the loss scale that a gradient scaler begins with: gradients are finite, and right."""

import pytest
import torch

from tests.models.contract import CASES, tokens

SCALE = 65536.0
NAMES = ["v1 published", "v1 compact", "v2 gaussian", "v2 normalized relu", "linear attention gla", "rmt around gpt2"]
NAMES += ["linear attention retnet", "linear attention linear_transformer", "armt around gpt2", "transformer"]


def gradients(model, scale, dtype=None):
    model.zero_grad()
    torch.manual_seed(0)  # for what is drawn in training
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = model(tokens(), labels=tokens()).loss
    (scale * loss).backward()
    return {name: p.grad / scale for name, p in model.named_parameters() if p.grad is not None and p.dim() > 1}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_a_scaled_loss(name):
    model = CASES[name].build().float().train()
    expected, actual = gradients(model, 1.0), gradients(model, SCALE, torch.float16)
    for key, gradient in actual.items():
        assert gradient.isfinite().all(), key
        # Eleven bits, in some ten sums.
        assert (gradient - expected[key]).norm() < 0.1 * expected[key].norm() + 1e-7, key
