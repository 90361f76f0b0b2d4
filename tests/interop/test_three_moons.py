"""Published three moons weights give the published numbers."""

import pytest
import torch
from torch.func import functional_call

from tessera.ops.kernel_regression import Call, reference
from tests.golden_files import cases, load, part
from tests.interop.published_three_moons import convert, three_moons
from tests.refusals import refused
from tests.tolerances import GOLDEN_FLOAT32_RATIO, GOLDEN_GRADIENT, GOLDEN_VALUE

CASES = [case for case in cases("G_moons") if not case.startswith("G0")]


def golden(case, dtype=torch.float64):
    """Tensors, description, and the memory with the published weights."""
    tensors, description = load("G_moons", case)
    return tensors, description, three_moons(part(tensors, "param/"), description["config"], dtype)


def close(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=0, atol=GOLDEN_VALUE)


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
    output, _ = functional_call(memory, convert(leaves, description["config"]), tensors["in/x"].double())
    expected = part(tensors, "f64/grad/")
    gradients = torch.autograd.grad(clipped_loss(output, tensors["in/y"].double()), [leaves[name] for name in expected])
    for gradient, theirs in zip(gradients, expected.values()):
        bound = GOLDEN_GRADIENT * theirs.abs().max().item()
        torch.testing.assert_close(gradient, theirs, rtol=0, atol=bound)


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"v_shift": 2}, "v_shift must be 1"),
        ({"out_sum": True}, "out_proj must be the opposite of out_sum"),
        ({"norm_vals": True}, "norm_keys must be norm_vals"),
        ({"bias": True}, "bias must be False"),
        ({"n_heads": 3}, "unknown argument 'n_heads'. Did you mean 'n_head'?"),
        ({"emb": True}, "tensor 'emb.weight' is missing"),
    ],
)
def test_refusals(changes, message):
    tensors, description = load("G_moons", "G2_3heads")
    refused(message, three_moons, part(tensors, "param/"), {**description["config"], **changes})
