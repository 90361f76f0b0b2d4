"""`inverse_bandwidth_scale`: beta of the memories that grow with the text, times a number that is not learned."""

import math

import pytest
import torch

from tessera.models.adjusting import adjust_model
from tests.models.contract import read_in_parts
from tests.models.three_models import STACKS, make, tokens
from tests.refusals import refused
from tests.tolerances import close

MEMORIES = {"v1": ("contextual", ("log_inverse_bandwidth",)), "v2": ("long_term", ("log_offset", "log_slope"))}
SCALE = 3.0


@torch.no_grad()
def logits(model, ids):
    return model(ids).logits


@pytest.mark.parametrize("name", STACKS)
def test_it_multiplies_beta_of_these_memories_alone_also_step_by_step(name):
    model, ids = make(name), tokens()
    before = logits(model, ids)
    adjust_model(model, {"inverse_bandwidth_scale": SCALE})
    scaled = logits(model, ids)
    close(read_in_parts(model, ids, 1)[0], scaled)
    adjust_model(model, {"inverse_bandwidth_scale": 1.0})
    assert torch.equal(logits(model, ids), before)
    attribute, logarithms = MEMORIES[name]
    with torch.no_grad():
        for layer in model.model.layers:
            for logarithm in logarithms:
                getattr(getattr(layer, attribute).bandwidth, logarithm).add_(math.log(SCALE))
    close(scaled, logits(model, ids))
    assert not torch.allclose(scaled, before, atol=1e-6)


@pytest.mark.parametrize("name", STACKS)
def test_it_is_saved_and_can_be_given_to_a_loaded_model(name, tmp_path):
    model, ids = make(name), tokens()
    model.save_pretrained(tmp_path / "plain")
    adjust_model(model, {"inverse_bandwidth_scale": SCALE})
    model.save_pretrained(tmp_path / "scaled")
    saved = type(model).from_pretrained(tmp_path / "scaled").eval()
    adjusted = type(model).from_pretrained(tmp_path / "plain", inverse_bandwidth_scale=SCALE).eval()
    for loaded in (saved, adjusted):
        assert loaded.config.inverse_bandwidth_scale == SCALE
        assert torch.equal(logits(loaded, ids), logits(model, ids))


def test_what_it_must_be_is_said():
    refused(
        "inverse_bandwidth_scale must be positive; got -1", adjust_model, make("v2"), {"inverse_bandwidth_scale": -1.0}
    )
