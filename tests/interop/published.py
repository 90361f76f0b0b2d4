"""Published checkpoints: their values and gradients, and tensors in them that are no weights."""

import torch

from tessera.base.errors import TesseraError
from tessera.interop import from_reference
from tests.tolerances import GOLDEN_GRADIENT, GOLDEN_VALUE


def close(ours, expected):
    torch.testing.assert_close(ours, expected, rtol=0, atol=GOLDEN_VALUE)


def expect_gradients(loss, leaves, expected, relative=GOLDEN_GRADIENT):
    """Of the loss, under the published names: the import is a differentiable function of the checkpoint `leaves`."""
    assert expected
    gradients = torch.autograd.grad(loss, [leaves[name] for name in expected], allow_unused=True)
    for (name, theirs), gradient in zip(expected.items(), gradients):
        gradient = torch.zeros_like(theirs) if gradient is None else gradient.double()
        bound = relative * theirs.abs().max().item()
        torch.testing.assert_close(gradient, theirs, rtol=0, atol=bound, msg=lambda text, name=name: f"{name}: {text}")


def hostile_variants(tensor):
    """Tensors that are no weights of this shape; a transposed square one would be, so that it is left out."""
    variants = {
        "one axis more": tensor[None],
        "no axes": tensor.flatten()[0],
        "flat": tensor.flatten() if tensor.dim() > 1 else tensor[:-1],
        "empty": tensor[:0],
        "longer": torch.cat([tensor, tensor]),
        "integers": tensor.long(),
        "booleans": tensor.bool(),
        "complex": tensor.to(torch.complex64),
        "sparse": tensor.to_sparse(),
        "quantised": torch.quantize_per_tensor(tensor.float(), 0.1, 0, torch.qint8),
        "eight bits": tensor.to(torch.float8_e4m3fn),
        "NaN": tensor * float("nan"),
        "infinite": tensor + float("inf"),
    }
    if tensor.dim() > 1 and tensor.shape[0] != tensor.shape[-1]:
        variants["transposed"] = tensor.transpose(0, -1)
    return variants


def expect_refusals(source, weights, arguments):
    """Every parameter of a published model in turn is made such a tensor: refused in one line, or not used at all."""
    original = from_reference(source, weights, arguments)
    for place, (parameter, tensor) in enumerate(weights.items()):
        variants = list(hostile_variants(tensor).items())
        for what, hostile in variants if place < 3 else [variants[place % len(variants)]]:
            try:
                model = from_reference(source, {**weights, parameter: hostile}, arguments)
            except TesseraError as caught:
                assert "\n" not in str(caught), (parameter, what)  # noqa: PT017
                continue
            for (name, one), other in zip(model.state_dict().items(), original.state_dict().values(), strict=True):
                assert torch.equal(one, other), f"{parameter}, {what}: taken as {name}"
