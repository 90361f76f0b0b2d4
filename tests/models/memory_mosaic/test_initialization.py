"""The two ways in which the weights of a Memory Mosaic begin."""

import math

import pytest
import torch

from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tests.refusals import refused

WIDTH, LAYERS, RANGE = 256, 3, 0.05
SIZES = {"vocab_size": 500, "hidden_size": WIDTH, "num_layers": LAYERS, "num_heads": 4, "num_persistent_slots": 64}


def deviations(**changes):
    """Standard deviation of each matrix of a new model, by its name."""
    torch.manual_seed(3)
    config = MemoryMosaicConfig(**{**SIZES, "initializer_range": RANGE, **changes})
    parameters = MemoryMosaicForCausalLM(config).named_parameters()
    return {name: tensor.std().item() for name, tensor in parameters if tensor.dim() >= 2}


def expected(name, linear, combining, embedding, convolution):
    if "embed_tokens" in name:
        return embedding
    if ".output.projection." in name:
        return combining
    if "slot_" in name:
        return 1 / math.sqrt(WIDTH // 4)
    return convolution if ".value_extractor." in name else linear


@pytest.mark.parametrize(
    ("changes", "linear", "combining", "embedding", "convolution"),
    [
        ({}, RANGE, RANGE / math.sqrt(2 * LAYERS), RANGE, RANGE),
        ({"initialization": "fan_in"}, 1 / 16, 1 / 16 / math.sqrt(LAYERS), 1 / 16, 1 / 16),
        ({"initialization": "fan_in", "tie_word_embeddings": False}, 1 / 16, 1 / 16 / math.sqrt(LAYERS), 1.0, 1 / 16),
        (
            {"initialization": "fan_in", "value_extractor": "convolution"},
            1 / 16,
            1 / 16 / math.sqrt(LAYERS),
            1 / 16,
            1 / 16 / math.sqrt(2),  # fan-in: two steps
        ),
    ],
)
def test_standard_deviations(changes, linear, combining, embedding, convolution):
    measured = deviations(**changes)
    targets = {name: expected(name, linear, combining, embedding, convolution) for name in measured}
    assert measured == pytest.approx(targets, rel=0.02)  # the smallest matrix has 65,536 entries: 0.3 % is one sigma


def test_an_unknown_initialization_is_refused():
    refused(r"initialization must be one of normal, fan_in; got 'xavier'", MemoryMosaicConfig, initialization="xavier")
    refused(r"contextual_weight_dropout must lie in \[0, 1\); got 1", MemoryMosaicConfig, contextual_weight_dropout=1)
    refused(r"contextual_delay must be a positive integer; got 0", MemoryMosaicConfig, contextual_delay=0)
    refused(r"persistent_key_norm_eps must be at least 0; got -1", MemoryMosaicConfig, persistent_key_norm_eps=-1.0)


def test_dropout_of_contextual_weights_alone():
    model = MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, weight_dropout=0.3, contextual_weight_dropout=0.1))
    layer = model.model.layers[0]
    assert (layer.contextual.weight_dropout, layer.persistent.weight_dropout) == (0.1, 0.3)
    model = MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, weight_dropout=0.3))
    assert model.model.layers[0].contextual.weight_dropout == 0.3
