"""The strengths with which an association matrix is written: as published, and stretched so that they can be 0."""

import pytest
import torch

from tessera.memories.association import AssociationMemory, Openings, WriteStrength
from tessera.models.adjusting import adjust_model
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.memory_mosaic import MemoryMosaicConfig
from tests.refusals import refused

BASE = MemoryMosaicConfig(vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=4)
SIZES = {"segment_size": 4, "num_memory_tokens": 2, "memory_dim": 4}
SCORES = torch.tensor([[-6.0, -2.0, 0.0, 2.0, 6.0]]).unsqueeze(-1)


@pytest.mark.parametrize(("stretch", "threshold"), [(0.1, 0.0), (0.0, 0.6), (0.1, 0.6)])
def test_stretched_strengths_reach_both_ends_those_below_a_threshold_are_zero_and_all_keep_their_gradient(
    stretch, threshold
):
    scores, sigmoid = SCORES.clone().requires_grad_(), torch.sigmoid(SCORES)
    strengths = WriteStrength(stretch, threshold)(scores)
    expected = ((1 + 2 * stretch) * sigmoid - stretch).clamp(0, 1).squeeze(-1)
    torch.testing.assert_close(strengths, torch.where(expected < threshold, 0.0, expected))
    assert strengths[0, 0] == 0
    assert 0 < (strengths > 0).sum() < strengths.numel()
    strengths.sum().backward()
    torch.testing.assert_close(scores.grad, sigmoid * (1 - sigmoid))


def written(bias, stretch, threshold=0.0, **options):
    """(memory before, memory after) of a text whose tokens have the strength of `bias`."""
    torch.manual_seed(0)
    memory = AssociationMemory(8, 4, strength_stretch=stretch, strength_threshold=threshold, **options)
    torch.nn.init.normal_(memory.value.weight)
    before = memory.write(torch.randn(2, 3, 8), memory.empty_state(2))
    torch.nn.init.zeros_(memory.strength.weight)
    torch.nn.init.constant_(memory.strength.bias, bias)
    return before, memory.write(torch.randn(2, 3, 8), before)


OPEN = [(-6.0, 0.0, 0.0), (0.0, 0.1, 0.0), (1.0, 0.0, 0.6)]  # bias, stretch, threshold
SHUT = [(-6.0, 0.1, 0.0), (0.0, 0.0, 0.6)]


@pytest.mark.parametrize("gate", OPEN + SHUT)
def test_a_token_of_strength_zero_writes_nothing_and_any_other_does(gate):
    before, after = written(*gate, gate_normalizer=gate in SHUT)
    for one, other in ((before.matrix, after.matrix), (before.normaliser, after.normaliser)):
        assert torch.equal(one, other) if gate in SHUT else not torch.allclose(one, other)


def test_without_a_gate_the_normaliser_knows_every_key():
    """As published."""
    before, after = written(-6.0, 0.1)
    assert torch.equal(before.matrix, after.matrix)
    assert not torch.allclose(before.normaliser, after.normaliser), "its key is one of those seen"
    published, same = written(-120.0, 0.0, gate_normalizer=True), written(-120.0, 0.0)
    assert torch.equal(published[1].normaliser, same[1].normaliser), "a sigmoid that underflows is no gate"
    assert not torch.equal(published[1].normaliser, published[0].normaliser)


@pytest.mark.parametrize("order", ["parallel", "sequential"])
def test_gradients_stay_small_through_many_segments_of_an_empty_memory(order):
    """A division by eps in each of twelve segments would make them 1e60, which float32 does not have."""
    memory = AssociationMemory(8, 4, strength_stretch=0.1, update_order=order, gate_normalizer=True)
    torch.nn.init.normal_(memory.value.weight)
    torch.nn.init.normal_(memory.strength.weight, std=0.3)
    torch.nn.init.constant_(memory.strength.bias, -4.0)  # closed, as gates are that were open a while ago
    tokens, state = torch.randn(1, 3, 8), memory.empty_state(1)
    for _ in range(12):
        tokens = torch.tanh(tokens + memory(tokens, state))
        state = memory.write(tokens, state)
    tokens.sum().backward()
    gradients = [parameter.grad for parameter in memory.parameters() if parameter.grad is not None]
    assert gradients
    assert max(gradient.abs().max() for gradient in gradients) < 1e3
    assert memory.strength.bias.grad != 0, "a closed gate can learn to open"


def test_stored_configurations_without_a_gated_normaliser_keep_their_meaning(tmp_path):
    config = ARMTConfig(base_config={"model_type": "gpt2"}, strength_stretch=0.1, gate_normalizer=True)
    config.save_pretrained(tmp_path)
    assert ARMTConfig.from_pretrained(tmp_path).gate_normalizer
    stored = config.to_dict()
    del stored["gate_normalizer"]
    assert not ARMTConfig.from_dict(stored).gate_normalizer


def test_writes_are_charged_for_their_mean_opening():
    memory, openings = AssociationMemory(8, 4, strength_stretch=0.1), Openings()
    assert openings.charge(3.0) is None
    state, texts = memory.empty_state(2), torch.randn(2, 2, 3, 8)
    for tokens in texts:
        state = memory.write(tokens, state, openings)
    memory.write(texts[0], state)
    expected = 3.0 * torch.stack([memory.gate.opening(memory.strength(tokens)) for tokens in texts]).mean()
    torch.testing.assert_close(openings.charge(3.0), expected)


def test_while_gradients_are_recorded_only_writes_with_one_are_charged():
    memory, openings = AssociationMemory(8, 4, strength_stretch=0.1), Openings()
    tokens = torch.randn(2, 3, 8)
    with torch.no_grad():
        memory.write(tokens, memory.empty_state(2), openings)
        evaluated = Openings()
        memory.write(tokens, memory.empty_state(2), evaluated)
    assert openings.charge(1.0) is None
    assert evaluated.count == 6
    memory.write(tokens, memory.empty_state(2), openings)
    torch.testing.assert_close(openings.charge(1.0), memory.gate.opening(memory.strength(tokens)).mean())


def test_the_loss_of_a_model_in_training_holds_what_its_writes_cost():
    sizes = {**SIZES, "strength_stretch": 0.1}
    model, ids = ARMTForCausalLM(ARMTConfig(base_config=BASE, **sizes)), torch.arange(20).view(2, 10)
    plain = model(ids, labels=ids)
    assert plain.penalty is None
    adjust_model(model, {"gate_penalty": 2.0})
    charged = model(ids, labels=ids)
    assert charged.penalty.item() == pytest.approx(2 * 0.83, abs=0.1)  # a fresh gate: sigmoid(2/3 log(1.1 / 0.1))
    torch.testing.assert_close(charged.loss, plain.loss + charged.penalty)
    charged.penalty.backward()
    assert all(memory.strength.bias.grad > 0.01 for memory in model.memories)
    model.eval()
    evaluated = model(ids, labels=ids)
    torch.testing.assert_close(evaluated.loss, plain.loss)
    torch.testing.assert_close(evaluated.penalty, charged.penalty)
    refused("gate_penalty must be .*at least 0; got -1.0", ARMTConfig, base_config=BASE, **sizes, gate_penalty=-1.0)
    refused("gate_penalty must be .*0 without a strength_stretch", ARMTConfig, base_config=BASE, gate_penalty=2.0)


@pytest.mark.parametrize("score", [-4.0, -1.6, 0.0, 2.0])
def test_how_probable_it_is_that_a_gate_opens(score):
    """Drawn with the noise of the hard concrete gate (Louizos et al. 2018), stretched to (-0.1, 1.1)."""
    uniform = torch.rand(400_000, dtype=torch.float64).clamp(1e-12, 1 - 1e-12)
    drawn = torch.sigmoid((uniform.logit() + score) / (2 / 3)) * 1.2 - 0.1
    expected = (drawn > 0).double().mean()
    actual = WriteStrength(0.1).opening(torch.full((1, 1, 1), score, dtype=torch.float64))
    assert actual.item() == pytest.approx(expected.item(), abs=0.003)  # four standard errors of the draws


def test_the_gate_of_a_configuration_is_that_of_every_memory_and_is_saved(tmp_path):
    model = ARMTForCausalLM(ARMTConfig(base_config=BASE, strength_stretch=0.1, strength_threshold=0.3, **SIZES))
    assert [(memory.gate.stretch, memory.gate.threshold) for memory in model.memories] == [(0.1, 0.3)] * 2
    adjust_model(model, {"strength_threshold": 0.6})
    assert [memory.gate.threshold for memory in model.memories] == [0.6, 0.6]
    model.save_pretrained(tmp_path)
    loaded = ARMTForCausalLM.from_pretrained(tmp_path)
    assert [memory.gate.threshold for memory in loaded.memories] == [0.6, 0.6]
    impossible = "strength_stretch must be a number of at least 0; got -0.1"
    refused(impossible, ARMTConfig, base_config=BASE, **SIZES, strength_stretch=-0.1)
    impossible = r"strength_threshold must be a number of at least 0 and below 1; got "
    refused(rf"{impossible}1\.0", ARMTConfig, base_config=BASE, **SIZES, strength_threshold=1.0)
    refused(rf"{impossible}-0\.1", adjust_model, model, {"strength_threshold": -0.1})
    built = "memory_dim must be a setting that a built armt can change; got 8"
    refused(built, adjust_model, model, {"memory_dim": 8, "strength_threshold": 0.1})
    assert (model.config.memory_dim, model.config.strength_threshold) == (4, 0.6)


def test_a_gate_that_cannot_close_has_no_probability_to_open():
    message = "stretch must be positive for a probability to open; got 0"
    refused(message, WriteStrength(0.0).opening, torch.zeros(1, 1, 1))
