"""Who gets weight decay, and the learning rate at every step."""

import math

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, MambaConfig

from tessera import (
    MemoryMosaicConfig,
    MemoryMosaicForCausalLM,
    MemoryMosaicV2Config,
    MemoryMosaicV2ForCausalLM,
    TesseraError,
    wrap,
)
from tessera.models.small_models import untrained_model
from tessera.recipes.sections import TrainingSection
from tessera.training.optimizer import (
    FitOptions,
    make_optimizer,
    parameter_groups,
    scalar_parameters,
    schedule_factor,
    stage_options,
)


class Model(nn.Module):
    scalar_parameters = ("rates",)

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.rates = nn.Parameter(torch.zeros(2))
        self.frozen = nn.Parameter(torch.zeros(2, 2), requires_grad=False)


def test_only_matrices_decay():
    model = Model()
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, TrainingSection(weight_decay=0.3, learning_rate=0.5))
    actual = {names[p]: (group["weight_decay"], group["lr"]) for group in groups for p in group["params"]}
    decayed = {name for name, (decay, _) in actual.items() if decay == 0.3}
    assert decayed == {"embedding.weight", "linear.weight"}
    assert actual.keys() - decayed == {"linear.bias", "norm.weight", "norm.bias", "rates"}
    assert set(actual.values()) == {(0.3, 0.5), (0, 0.5)}


def test_decay_rates_and_what_is_marked_do_not_decay():
    """Zero is no neutral value of a logarithm of rates; state-spaces/mamba marks its own."""
    model = untrained_model(MambaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, state_size=2))
    model.lm_head = nn.Linear(8, 9)
    model.lm_head.weight._no_weight_decay = True
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = parameter_groups(model, TrainingSection(weight_decay=0.3))
    kept = {names[p] for group in groups if group["weight_decay"] == 0 for p in group["params"] if p.dim() >= 2}
    assert kept == {"backbone.layers.0.mixer.A_log", "lm_head.weight"}


def test_scalars_of_some_names_have_their_own_rates_and_betas_reach_the_optimizer():
    config = MemoryMosaicConfig(vocab_size=9, hidden_size=8, num_layers=1, num_heads=2, num_persistent_slots=2)
    model = MemoryMosaicForCausalLM(config)
    scales = {"mix": 1.0, "log_scale": 4.0}
    section = TrainingSection(
        learning_rate=0.5, betas=(0.7, 0.8), scalar_learning_rate_scale=10.0, scalar_learning_rate_scales=scales
    )
    names = {id(parameter): name.rpartition(".")[2] for name, parameter in model.named_parameters()}
    optimizer = make_optimizer(model, section)
    assert optimizer.defaults["betas"] == (0.7, 0.8)
    rates = {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"] if p.dim() == 1}
    assert rates == {"weight": 0.5, "mix": 0.5, "log_scale": 2.0, "decay_rate": 5.0, "log_inverse_bandwidth": 5.0}
    with pytest.raises(TesseraError, match="'mixes' must name a scalar of this model. Did you mean 'mix'"):
        make_optimizer(model, TrainingSection(scalar_learning_rate_scales={"mixes": 1.0}))


@pytest.mark.parametrize("warmup", [0, 1, 4])
def test_the_schedule_of_the_paper(warmup):
    section = TrainingSection(steps=12, warmup_steps=warmup, learning_rate=2.0, min_learning_rate=0.5)
    options = stage_options(section, section.stages[0])
    for step in range(13):
        after = (step - warmup) / (12 - warmup)
        expected = 2.0 * (step + 1) / warmup if step < warmup else 0.5 + 1.5 * (1 + math.cos(math.pi * after)) / 2
        # float64 on both sides, a handful of operations
        assert 2.0 * schedule_factor(options, step) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("decay", "ratio", "last"),
    [
        ("constant", 1.0, 1.0),
        ("linear", 1.0, 1 / 8),
        ("linear", 2.0, 1 - 7 / 18),  # a schedule longer than the training, and a shorter one
        ("linear", 0.5, 0.0),
    ],
)
def test_other_schedules(decay, ratio, last):
    options = FitOptions(10, 1.0, warmup_ratio=0.2, decay=decay, schedule_ratio=ratio)
    factors = [schedule_factor(options, step) for step in range(10)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    assert factors[-1] == pytest.approx(last)


V1 = {"key_extractor.decay_rate", "value_extractor.mix", "bandwidth.log_inverse_bandwidth", "output.log_scale"}
V2 = {"value_extractor.mix", "bandwidth.log_offset", "bandwidth.log_slope", "bandwidth.exponent_rate"}
V1_LAYER = {f"contextual.{name}" for name in V1} | {f"persistent.{name}" for name in V1 - {"value_extractor.mix"}}
V2_LAYER = {f"{memory}.{name}" for memory in ("short_term", "long_term") for name in V2}
SMALL = {"vocab_size": 20, "hidden_size": 16, "num_layers": 1, "num_heads": 2}


def v1(**options):
    return MemoryMosaicForCausalLM(MemoryMosaicConfig(**SMALL, num_persistent_slots=4, **options))


def v2():
    return MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SMALL, intermediate_size=16))


@pytest.mark.parametrize(
    ("build", "prefix", "expected"),
    [
        (lambda: v1(bias=True), "model.layers.0.", V1_LAYER),
        (lambda: v1(free_intercept=True), "model.layers.0.", V1_LAYER | {"contextual.bandwidth.intercept"}),
        (v2, "model.layers.0.", V2_LAYER),
        (lambda: wrap(v1(bias=True), memory_dim=4), "base.model.layers.0.layer.", V1_LAYER),
        (lambda: wrap(v2(), memory_dim=4), "base.model.layers.0.layer.", V2_LAYER),
        (lambda: GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)), "", set()),
    ],
    ids=["v1 with biases", "v1 with intercepts", "v2", "ARMT around v1", "ARMT around v2", "transformer"],
)
def test_the_scalars_of_real_models(build, prefix, expected):
    """No bias and no norm is among them."""
    model = build()
    assert scalar_parameters(model) == {prefix + name for name in expected}
    scalars = {id(model.get_parameter(prefix + name)) for name in expected}
    groups = parameter_groups(model, TrainingSection(learning_rate=0.5, scalar_learning_rate_scale=10.0))
    assert {id(p) for group in groups if group["lr"] == 5.0 for p in group["params"]} == scalars
