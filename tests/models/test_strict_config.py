"""Configurations check the type of every field of their own."""

import json

import pytest
from transformers import AutoConfig, GPT2Config

from tessera import MemoryMosaicConfig, MemoryMosaicV2Config, TesseraError
from tessera.armt import ARMTConfig, PRMTConfig, RMTConfig
from tessera.models.linear_attention import LinearAttentionConfig
from tessera.models.lstm import LSTMConfig
from tests.refusals import refused


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


KNN = {"name": "knn", "base": "uniform", "k": 3}
MAKE = [lambda: MemoryMosaicConfig(kernel=KNN), MemoryMosaicV2Config, LinearAttentionConfig, LSTMConfig]
MAKE += [lambda kind=kind: kind(base_config=GPT2Config()) for kind in (ARMTConfig, RMTConfig, PRMTConfig)]
MAKE += [lambda: ARMTConfig(base_config=MemoryMosaicConfig())]


@pytest.mark.parametrize("make", MAKE)
def test_a_configuration_and_a_note_of_the_users_own_are_kept(make, tmp_path):
    config = make()
    config.my_note, config.my_table = "x", {"a": [1, None]}
    if hasattr(config, "base_config"):
        config.base_config.my_note = "inside"
    config.save_pretrained(tmp_path)
    loads = [type(config).from_pretrained] + ([AutoConfig.from_pretrained] if type(config) is not LSTMConfig else [])
    for load in loads:
        loaded = load(tmp_path)
        assert loaded.to_dict() | {"_name_or_path": ""} == config.to_dict()
        assert (loaded.my_note, loaded.my_table) == ("x", {"a": [1, None]})
        assert not hasattr(config, "base_config") or loaded.base_config.my_note == "inside"
    with pytest.raises(TesseraError, match="unknown argument 'my_note'"):
        type(config)(my_note="x")  # in a program it may be a slip of the pen


@pytest.mark.parametrize("name", ["to_dict", "problems", "positive"])
def test_a_stored_name_that_hides_a_method_is_refused(name, tmp_path):
    MemoryMosaicConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: 1}))
    refused(f"unknown argument '{name}'", MemoryMosaicConfig.from_pretrained, tmp_path)
