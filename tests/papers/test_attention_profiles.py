"""What a profile is, its recent peak, and what is shown of both."""

import math

import pytest
import torch
from torch.utils.data import Dataset

import tessera
from tessera.models.transformer import transformer_config
from tessera.papers.attention_profiles.report import describe, mean_profile, rank_correlation, recent_peak_width
from tests.inspection.models import build


class Texts(Dataset):
    """Three texts of twelve tokens."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return {"input_ids": (torch.arange(12) * (index + 2)) % 30}


@pytest.mark.parametrize("positions", ["absolute", "rope", "alibi"])
def test_a_profile_is_the_mean_of_the_last_tokens_attention(positions):
    model = build(transformer_config(positions=positions, vocab_size=30, hidden_size=16, num_layers=1, num_heads=2))
    profile = mean_profile(model, Texts())
    if positions != "alibi":
        model.set_attn_implementation("eager")
    ids = torch.stack([text["input_ids"] for text in (Texts()[i] for i in range(3))])
    expected = model(ids, output_attentions=True).attentions[0][:, :, -1].mean(0)
    torch.testing.assert_close(profile.float(), expected, rtol=0, atol=1e-6)


def test_a_mosaics_profile_is_that_of_its_contextual_memory():
    config = tessera.MemoryMosaicConfig(
        vocab_size=30, hidden_size=16, num_layers=1, num_heads=2, num_persistent_slots=5
    )
    profile = mean_profile(build(config), Texts())
    assert profile.shape == (2, 12)
    assert profile[:, -1].eq(0).all(), "the last pair has no value yet"
    torch.testing.assert_close(profile.sum(-1), torch.ones(2).double())


def test_the_width_of_an_exponential_peak_is_its_half_life():
    for half_life in (1.5, 4.0, 9.0):
        distance = torch.arange(1, 128)
        weights = 1e-3 + 0.1 * 0.5 ** ((distance - 1) / half_life)
        profile = torch.cat([weights.flip(0), torch.zeros(1)])
        assert recent_peak_width(profile) == pytest.approx(1 + half_life, abs=0.06)


def test_a_peak_needs_not_be_at_the_newest_token_nor_be_there():
    weights = torch.full((40,), 0.01)
    assert math.isnan(recent_peak_width(weights))
    weights[30:33] = 0.1  # distances 7 to 9
    assert recent_peak_width(weights) == pytest.approx(9.5)
    old = torch.full((40,), 0.01)
    old[2] = 0.5  # an attention sink is no recent peak
    assert math.isnan(recent_peak_width(old))


def test_a_profile_in_numbers():
    profile = torch.full((48,), 1.0)
    profile[0], profile[46:] = 10.0, 5.0
    numbers = describe(profile / profile.sum(), context=16)
    total = 10 + 45 + 10
    assert numbers["first"] == pytest.approx(10 / (total / 48))
    assert numbers["newest"] == pytest.approx(10 / total)
    assert numbers["beyond"] == pytest.approx((10 + 31) / total)
    assert numbers["even"] == pytest.approx(2 / 3)
    assert numbers["unevenness"] == pytest.approx(0, abs=1e-6)
    assert math.isnan(describe(profile[:16], context=16)["beyond"])


def test_rank_correlation():
    assert rank_correlation([1, 2, 3, 10], [0.1, 5, 6, 7]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert math.isnan(rank_correlation([1], [1]))
