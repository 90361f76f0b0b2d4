"""Published sizes, counted without allocating them."""

import pytest
import torch

from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.models import MODELS
from tessera.models.presets import matching_llama_config, published_counts
from tessera.models.sizes import count_parameters, flops_per_token, pairs_per_query


def billions(count):
    return round(count / 1e9, 1)


def test_the_large_sizes_are_the_papers():
    """Memory Mosaics v2, tables 2 and 6: parameters and FLOPs per token at context 256."""
    counts = published_counts(MODELS["mosaic-v2-large"].config())
    table = {"model": (9.9, 18.9), "without_long_term_memory": (8.3, 15.6), "transformer": (8.8, 16.7)}
    for name, row in table.items():
        assert (billions(counts[name]["parameters"]), billions(counts[name]["flops_per_token"])) == row
    transformer = published_counts(MODELS["llama-large"].config())
    assert transformer == {"context": 256, "model": counts["transformer"]}


@pytest.mark.parametrize("long_term_memory", [True, False])
def test_the_matching_llama_has_as_many_parameters(long_term_memory):
    sizes = {"vocab_size": 1000, "hidden_size": 96, "num_layers": 3, "num_heads": 4, "intermediate_size": 200}
    config = MemoryMosaicV2Config(**sizes, long_term_memory=long_term_memory)
    llama = matching_llama_config(config, equal_parameters=True)
    unit = 3 * 96 * 3  # one unit of the feed-forward width, in all layers
    assert abs(count_parameters(llama) - count_parameters(config)) <= unit / 2
    assert matching_llama_config(config).intermediate_size == 200


def test_only_the_short_term_memory_stops_growing():
    config = MODELS["mosaic-v2-large"].config()
    assert pairs_per_query(config, 100) == [100, 100]
    assert pairs_per_query(config, 4096) == [256, 4096]
    more = flops_per_token(config, 4096) - flops_per_token(config, 256)
    assert more == 4 * 32 * 4096 * (4096 - 256)


def test_a_mosaic_accounts_for_itself():
    config = MemoryMosaicV2Config(vocab_size=50, hidden_size=16, num_layers=3, num_heads=2, intermediate_size=20)
    model = MemoryMosaicV2ForCausalLM(config)
    parts = model.parameters_by_part()
    assert sum(parts.values()) == count_parameters(config)
    assert parts["short-term"] == parts["long-term"] == 3 * (3 * 16 * 16 + 2 * 16 * 2 + 4 * 2)
    assert parts["persistent"] == 3 * 3 * 16 * 20
    with torch.no_grad():
        states = [model.eval()(torch.zeros(1, t, dtype=torch.long), use_cache=True).past_key_values for t in (600, 700)]
    long_term = [sum(layer[1].pairs.num_bytes() for layer in state.layers) for state in states]
    assert model.state_bytes_per_token(torch.float32) == (long_term[1] - long_term[0]) / 100
