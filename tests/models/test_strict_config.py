"""Configurations check the type of every field of their own."""

import json

import pytest
from transformers import AutoConfig, GPT2Config

from tessera import MemoryMosaicConfig, MemoryMosaicV2Config, TesseraError
from tessera.armt import ARMTConfig, PRMTConfig, RMTConfig
from tessera.models.linear_attention import LinearAttentionConfig
from tessera.models.lstm import LSTMConfig
from tests.refusals import refused

V1, V2, LINEAR = MemoryMosaicConfig, MemoryMosaicV2Config, LinearAttentionConfig


@pytest.mark.parametrize(
    ("config", "values", "problems"),
    [
        (V1, {"bias": "false"}, ["bias must be true or false; got 'false'."]),
        (V1, {"layer_norm_eps": float("nan")}, ["layer_norm_eps must be a number; got nan."]),
        (V1, {"layer_norm_eps": "1e-5"}, ["layer_norm_eps must be a number; got '1e-5'."]),
        (V1, {"initializer_range": -0.1}, ["initializer_range must not be negative; got -0.1."]),
        (V1, {"logit_scale": float("inf")}, ["logit_scale must be a number; got inf."]),
        (V1, {"key_norm_eps": "x"}, ["key_norm_eps must be a number; got 'x'."]),
        (V1, {"use_cache": 1}, ["use_cache must be true or false; got 1."]),
        (
            V1,
            {"bias": None, "num_heads": "x", "layer_norm_eps": [1]},
            ["bias must", "layer_norm_eps must", "num_heads must"],
        ),
        (V1, {"num_head": 3}, ["unknown argument 'num_head'. Did you mean 'num_heads'"]),
        (V1, {"initialization": "xavier"}, ["initialization must be one of normal, fan_in; got 'xavier'"]),
        (V1, {"contextual_weight_dropout": 1}, ["contextual_weight_dropout must lie in [0, 1); got 1"]),
        (V1, {"contextual_delay": 0}, ["contextual_delay must be a positive integer; got 0"]),
        (V1, {"persistent_key_norm_eps": -1.0}, ["persistent_key_norm_eps must be at least 0; got -1"]),
        (V1, {"inverse_bandwidth_scale": 0.0}, ["inverse_bandwidth_scale must be positive"]),
        (
            V1,
            {"inverse_bandwidth_scale": 2.0, "free_intercept": True},
            ["inverse_bandwidth_scale must be positive, and 1 with a free_intercept"],
        ),
        (
            V1,
            {"hidden_size": 24, "num_heads": 5, "head_dropout": 1.5, "kernel": "gausian"},
            [
                "head_dropout must lie in [0, 1); got 1.5",
                "kernel: unknown kernel 'gausian'. Did you mean 'gaussian'",
                "num_heads must divide hidden_size (24); got 5",
            ],
        ),
        (
            V2,
            {"hidden_size": 24, "num_heads": 5, "training_long_term_delay": [9, 2], "kernel": "gausian"},
            [
                "kernel: unknown kernel 'gausian'. Did you mean 'gaussian'",
                "num_heads must divide hidden_size (24); got 5",
                "training_long_term_delay must be two integers 1 <= lowest <= highest; got [9, 2].",
            ],
        ),
        (V2, {"long_term_span": 3}, ["unknown argument 'long_term_span'"]),
        (V2, {"short_term_span": 1}, ["short_term_span must be at least 2; got 1"]),
        (LINEAR, {"variant": "hyena"}, ["variant must be one of"]),
        (LINEAR, {"hidden_size": 36, "num_heads": 4}, ["hidden_size must be a multiple of 4 num_heads"]),
    ],
)
def test_every_problem_of_a_configuration_is_named_once(config, values, problems):
    with pytest.raises(TesseraError) as caught:
        config(**values)
    for line, problem in zip(sorted(str(caught.value).splitlines()), problems, strict=True):
        assert line.startswith(f"{config.__name__}: {problem}")


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
    refused("unknown argument 'my_note'", type(config), my_note="x")  # in a program it may be a slip of the pen


@pytest.mark.parametrize("name", ["to_dict", "problems", "positive"])
def test_a_stored_name_that_hides_a_method_is_refused(name, tmp_path):
    MemoryMosaicConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: 1}))
    refused(f"unknown argument '{name}'", MemoryMosaicConfig.from_pretrained, tmp_path)
