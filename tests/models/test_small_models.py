"""Models of one size, by name."""

import pytest
import torch

from tessera.kernels import kernel_from_config, kernel_names
from tessera.models import MODELS
from tessera.models.small_models import ModelSize, build_small_model
from tests.refusals import refused_in_a_line

SIZES = {"vocab_size": 20, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_positions": 32}

SMALL_MODELS = [name for name, entry in MODELS.items() if entry.of_size is not None]
SEGMENTED = ("armt", "armt_no_correction", "rmt", "prmt")
WHOLE_TEXT = [name for name in SMALL_MODELS if name not in SEGMENTED]


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(20, (2, 24), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_every_model_learns_from_a_loss_over_shifted_labels(name):
    model, ids = build_small_model(name, **SIZES).eval(), tokens()
    labels = ids.clone()
    labels[:, :5] = -100
    out = model(input_ids=ids, labels=labels)
    expected = torch.nn.functional.cross_entropy(out.logits[:, 4:-1].flatten(0, 1), ids[:, 5:].flatten())
    assert torch.allclose(out.loss, expected, atol=1e-5)
    out.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", WHOLE_TEXT)
@pytest.mark.parametrize("width", [64, 128])
def test_every_model_has_the_size_of_the_transformer(name, width):
    sizes = {**SIZES, "hidden_size": width}
    count = sum(parameter.numel() for parameter in build_small_model(name, **sizes).parameters())
    if name == "transformer":
        count -= SIZES["max_positions"] * width
    target = ModelSize(20, width, 2, 4, 32).num_parameters
    assert abs(count / target - 1) < 0.03


@pytest.mark.parametrize("kernel", [*kernel_names(), {"name": "knn", "base": "uniform", "k": 4}])
@pytest.mark.parametrize("name", ["mosaic", "mosaic_v2"])
def test_mosaics_take_every_kernel(name, kernel):
    model = build_small_model(name, **SIZES, kernel=kernel)
    assert model.config.kernel == kernel_from_config(kernel).to_config()
    assert model(input_ids=tokens(), labels=tokens()).loss.isfinite()


def test_seed_decides_and_the_global_state_does_not():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = build_small_model("mosaic", **SIZES, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two, three = build_small_model("mosaic", **SIZES, seed=3), build_small_model("mosaic", **SIZES, seed=4)
    weights = [model.model.embed_tokens.weight for model in (one, two, three)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("mosiac", {}, "unknown model 'mosiac'. Did you mean 'mosaic'?"),
        ("memory_mosaic", {}, "model 'memory_mosaic' has no rule for its size. Did you mean 'mosaic'"),
        ("mosaic", {"kernel": "biwieght"}, "unknown kernel 'biwieght'. Did you mean 'biweight'?"),
        ("mosaic", {"kernel": "sparsmax"}, "unknown kernel 'sparsmax'. Did you mean 'sparsemax'?"),
        ("lstm", {"kernel": {"name": "knn", "neighbours": 3}}, "unknown field 'neighbours'"),
        ("lstm", {"hidden_size": 0}, "hidden_size must be a positive integer; got 0"),
        ("transformer", {"num_heads": 5}, "num_heads must divide hidden_size"),
    ],
)
def test_a_mistake_is_one_clear_line(name, changes, words):
    refused_in_a_line(words, build_small_model, name, **{**SIZES, **changes})


def test_published_details_of_models_are_options():
    mosaic = build_small_model("mosaic", **SIZES, dropout=0.05, initialization="fan_in").config
    assert (mosaic.weight_dropout, mosaic.contextual_weight_dropout, mosaic.residual_dropout) == (0.05, None, 0.05)
    assert mosaic.initialization == "fan_in"
    assert mosaic.logit_scale == pytest.approx(32**-0.5)
    partly = build_small_model("mosaic", **SIZES, dropout=0.05, contextual_dropout=False).config
    assert (partly.weight_dropout, partly.contextual_weight_dropout, partly.residual_dropout) == (0.05, 0.0, 0.05)
    mamba = build_small_model("mamba", **SIZES, mamba_state_size=32).config
    assert (mamba.hidden_size, mamba.num_hidden_layers, mamba.state_size) == (32, 2, 32)
    wide = build_small_model("prmt", **SIZES, num_memory_tokens=64, memory_initializer_range=1.0)
    assert wide.memory_tokens[1].tokens.std().item() == pytest.approx(1.0, rel=0.05)  # 2,048 numbers
    narrow = build_small_model("prmt", **SIZES, num_memory_tokens=64)
    assert narrow.memory_tokens[1].tokens.std().item() == pytest.approx(0.05, rel=0.1)


def test_the_twin_of_v2_is_llama_with_its_rates():
    v2, llama = (build_small_model(name, **SIZES, initialization="fan_in") for name in ("mosaic_v2", "llama"))
    assert llama.config.model_type == "llama"
    assert llama.config.initializer_range == v2.config.initializer_range == 32**-0.5
    assert build_small_model("llama", **SIZES).config.initializer_range == 0.02
