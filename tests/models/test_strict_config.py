"""Configurations check the type of every field of their own."""

import pytest

from tessera import MemoryMosaicConfig, MemoryMosaicV2Config, TesseraError
from tessera.armt import ARMTConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bias": "false"}, "bias must be true or false; got 'false'."),
        ({"layer_norm_eps": float("nan")}, "layer_norm_eps must be a number; got nan."),
        ({"layer_norm_eps": "1e-5"}, "layer_norm_eps must be a number; got '1e-5'."),
        ({"initializer_range": -0.1}, "initializer_range must not be negative; got -0.1."),
        ({"logit_scale": float("inf")}, "logit_scale must be a number; got inf."),
        ({"key_norm_eps": "x"}, "key_norm_eps must be a number; got 'x'."),
        ({"use_cache": 1}, "use_cache must be true or false; got 1."),
    ],
)
def test_a_field_of_the_wrong_type_is_named(values, message):
    with pytest.raises(TesseraError) as caught:
        MemoryMosaicConfig(**values)
    assert str(caught.value) == f"MemoryMosaicConfig: {message}"


def test_every_problem_is_named_once():
    with pytest.raises(TesseraError) as caught:
        MemoryMosaicConfig(bias=None, num_heads="x", layer_norm_eps=[1])
    assert sorted(line.split()[1] for line in str(caught.value).splitlines()) == ["bias", "layer_norm_eps", "num_heads"]


@pytest.mark.parametrize("make", [MemoryMosaicConfig, MemoryMosaicV2Config, ARMTConfig])
def test_configurations_survive_their_own_files(make, tmp_path):
    try:
        config = make()
    except TesseraError:  # a wrapped model's configuration needs a base
        from transformers import GPT2Config

        config = make(base_config=GPT2Config())
    config.save_pretrained(tmp_path)
    assert make.from_pretrained(tmp_path).to_dict() == config.to_dict()
