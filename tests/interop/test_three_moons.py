"""Published three moons weights give the published numbers. (That code predicts positions: no `from_reference`.)"""

import pytest
import torch
from torch.func import functional_call

from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.ops.kernel_regression import Call, reference
from tests.golden_files import cases, load, part
from tests.interop.published import close, expect_gradients
from tests.tolerances import GOLDEN_FLOAT32_RATIO

CASES = [case for case in cases("G_moons") if not case.startswith("G0")]
MATRICES = {"emb": "embedding", "k_lin": "key_extractor", "v_lin": "value_extractor", "out_proj": "output"}


def golden(case, dtype=torch.float64):
    """Tensors, description, and the memory with the published weights: `ContextMemory` of the published code."""
    tensors, description = load("G_moons", case)
    config = description["config"]
    memory = LinearContextualMemory(
        config["input_dim"],
        config["n_head"],
        config["h_dim"],
        complex_numbers=config["complex"],
        inverse_bandwidth=float(config["attn_scale"] or 1.0),
        norm_eps=1e-3 if config["norm_keys"] else None,
        learned_scale=config["scale_keys"],
        embedding_dim=config["n_head"] * config["h_dim"] if config["emb"] else None,
        output="sum" if config["out_sum"] else "projection",
        delay=1 + config["v_ban"],
        dtype=dtype,
    )
    published = {name: tensor.double() for name, tensor in part(tensors, "param/").items()}
    memory.load_state_dict(convert(published, config["complex"]))
    return tensors, description, memory.eval()


def convert(published, is_complex):
    """Our parameters as a differentiable function of the published ones."""
    result = {}
    for name, tensor in published.items():
        if name == "k_scale":
            result["log_key_scale"] = tensor.squeeze(0)
        else:
            ours = MATRICES[name.removesuffix(".weight")]
            result[f"{ours}.weight"] = complex_from_blocks(tensor) if is_complex else tensor
    return result


def complex_from_blocks(weight):
    """The complex matrix (out, in) nearest to a real one (2 out, 2 in) that acts on (real, imaginary) pairs.

    A 2 x 2 block [[a, b], [-b, a]] multiplies by `a - i b`; any other block is projected onto that form.
    """
    blocks = weight.unflatten(0, (-1, 2)).unflatten(-1, (-1, 2))
    diagonal = (blocks[:, 0, :, 0] + blocks[:, 1, :, 1]) / 2
    crossed = (blocks[:, 0, :, 1] - blocks[:, 1, :, 0]) / 2
    return torch.complex(diagonal, -crossed)


def clipped_loss(predictions, targets):
    return (predictions - targets).clamp(-0.5, 0.5).square().mean()


@pytest.mark.parametrize("case", CASES)
def test_keys_values_weights_and_outputs(case):
    tensors, _, memory = golden(case)
    x = tensors["in/x"].double()
    keys, values = memory.features(x)
    close(keys, tensors["f64/k"])
    close(values[:, :, 1:], tensors["f64/v"][:, :, :-1])
    call = Call(keys, keys, values, memory.kernel, **memory.scores(keys), window=memory.window)
    close(reference.weights(call), tensors["f64/att"])
    output, state = memory(x)
    assert state is None
    close(output, tensors["f64/out"])
    close(clipped_loss(output, tensors["in/y"].double()), tensors["f64/loss"])
    assert not output[:, 0].any(), "an empty memory says 0"


@pytest.mark.parametrize("case", CASES)
def test_gradients_under_the_published_names(case):
    tensors, description, memory = golden(case)
    leaves = {name: tensor.double().requires_grad_() for name, tensor in part(tensors, "param/").items()}
    parameters = convert(leaves, description["config"]["complex"])
    output, _ = functional_call(memory, parameters, tensors["in/x"].double())
    expect_gradients(clipped_loss(output, tensors["in/y"].double()), leaves, part(tensors, "f64/grad/"))


@pytest.mark.parametrize("case", CASES)
def test_generation_continues_as_if_everything_were_read_again(case):
    tensors, description, memory = golden(case)
    length, steps = description["context_for_generation"], description["generated_steps"]
    context = tensors["in/x"][:, :length].double()
    expected = tensors["f64/generate_nocache"]
    close(memory(context)[0], expected[:, :length])
    close(memory.generate(context, steps + 1), expected[:, length - 1 :])


@pytest.mark.parametrize("case", CASES)
def test_float32_is_as_good_as_the_published_one(case):
    tensors, description, memory = golden(case, torch.float32)
    bound = GOLDEN_FLOAT32_RATIO * description["mlx_f32_minus_f64_max_abs"]["out"]
    torch.testing.assert_close(memory(tensors["in/x"])[0].double(), tensors["f64/out"], rtol=0, atol=bound)
