"""A text read in blocks, or behind a state, is the same text."""

from dataclasses import fields

import pytest
import torch

from tessera.inspection import Removal, find_sites, loss_of, recall_weights, text, trace
from tests.inspection import models
from tests.inspection.models import build, gpt2, v1, v2
from tests.refusals import refused

IDS = models.IDS[:, :20]
CONFIGS = {
    "v1": v1(num_persistent_banks=2, kernel="triweight"),
    "v1 without slots": v1(num_persistent_slots=0),
    "v2": v2(),
}


@pytest.fixture(params=CONFIGS)
def model(request):
    return build(CONFIGS[request.param], 0.3)


def test_blocks(model, monkeypatch):
    options = {"removals": "heads", "removed_pairs": [4]}
    at_once = trace(model, IDS[:, :13], **options)
    monkeypatch.setattr(text, "BLOCK", 5)
    in_blocks = trace(model, IDS[:, :13], **options)
    torch.testing.assert_close(in_blocks.losses, at_once.losses, equal_nan=True, rtol=1e-5, atol=1e-5)
    for one, other in zip(in_blocks.memories, at_once.memories, strict=True):
        for field in fields(one):
            values = [getattr(memory, field.name) for memory in (one, other)]
            if torch.is_tensor(values[0]) and field.name not in ("pairs", "own_tokens", "after_tokens"):
                torch.testing.assert_close(*values, equal_nan=True, rtol=1e-4, atol=1e-4)
        for query in range(13 if one.recalls else 0):
            assert set(one.recalled(query, 1)[0].tolist()) == set(other.recalled(query, 1)[0].tolist())


def test_pairs_of_a_state_have_negative_numbers(model):
    """The second half of a text, behind the state of the first."""
    state = model(IDS[:, :12], use_cache=True).past_key_values
    at_once = recall_weights(model, IDS, queries=range(12, 20))
    rest = recall_weights(model, IDS[:, 12:], queries=range(8), state=state)
    for one, other in zip(rest, at_once, strict=True):
        shift = 0 if one.site.kind == "persistent" else 12
        for number, pair in enumerate(other.pairs.tolist()):
            weights = other.weights[:, :, number]
            column = (one.pairs == pair - shift).nonzero()
            if len(column):
                torch.testing.assert_close(one.weights[:, :, column[0, 0]], weights, rtol=0, atol=1e-5)
            else:
                assert weights.abs().max() == 0
        assert one.num_pairs.tolist() == other.num_pairs.tolist()
    # Of the last layer: what later memories make of an earlier one is in the state already.
    site = next(site for site in find_sites(model) if site.layer == 1 and site.kind in ("contextual", "long_term"))
    changed = loss_of(model, IDS[:, 12:], Removal(site, pair=-9), state=state)
    if not getattr(model.config, "num_persistent_slots", 0):
        torch.testing.assert_close(changed[1:], loss_of(model, IDS, Removal(site, pair=3))[13:])
    assert not torch.allclose(changed[1:], loss_of(model, IDS[:, 12:], state=state)[1:])


def test_a_slot_of_a_bank_is_taken_out():
    """The other slots of that bank share its weight; the other bank stays."""
    model = build(CONFIGS["v1"])
    site = next(site for site in find_sites(model) if site.kind == "persistent")
    weights = next(recall for recall in recall_weights(model, IDS, queries=range(20)) if recall.site.name == site.name)
    banks = 2 * weights.weights.unflatten(-1, (2, 5))  # (H, Q, bank, slot)
    banks[:, :, 1, 2] = 0.0
    banks = banks / banks.sum(-1, keepdim=True)
    expected = torch.einsum("hqbs,bhsv->hqv", banks, site.module.slot_values) / 2
    answers = []
    with site.module.output.register_forward_pre_hook(lambda module, arguments: answers.append(arguments[0][0])):
        loss_of(model, IDS, Removal(site, pair=7))
    torch.testing.assert_close(answers[0], expected)
    refused("be stored by persistent of layer 0; got 10", loss_of, model, IDS, Removal(site, pair=10))


def test_what_cannot_be_read():
    model, mosaic = build(gpt2(1)), build(CONFIGS["v1"])
    state = mosaic(IDS, use_cache=True).past_key_values
    refused("state must be one of this model", trace, model, IDS, state=state)
    refused("inputs must be left out", recall_weights, mosaic, IDS, state=state, attention_mask=torch.ones_like(IDS))
