"""Readings and writings by Triton equal the float64 reference, with all gradients."""

import pytest
import torch

from tessera.errors import TesseraError
from tessera.ops.association_matrix import read_association, write_association


def tensors(dtype, device, batch=2, features=40, width=20, pairs=5, queries=9):
    """A, z, queries, keys, values, strengths; features are not negative."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.bfloat16).to(device, dtype)

    drawn = {
        "matrix": normal(batch, features, width),
        "normaliser": normal(batch, features).abs(),
        "query": normal(batch, queries, features).abs(),
        "key": normal(batch, pairs, features).abs(),
        "value": normal(batch, pairs, width),
        "strength": normal(batch, pairs).sigmoid(),
    }
    return {name: x.requires_grad_() for name, x in drawn.items()}


def both(backend, dtype, device, **options):
    given = tensors(dtype, device)
    query = given.pop("query")
    read = read_association(given["matrix"], given["normaliser"], query, backend=backend)
    empty = torch.tensor([True, False], device=device)
    written = write_association(**given, empty=empty, backend=backend, **options)
    loss = sum(
        (x.double() * torch.arange(x.numel(), device=device).view(x.shape).cos()).sum() for x in (read, *written)
    )
    return [read, *written, *torch.autograd.grad(loss, [*given.values(), query])]


@pytest.mark.parametrize(("dtype", "relative"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)], ids=str)
@pytest.mark.parametrize("correction", [True, False])
def test_equal_to_the_reference(triton_device, dtype, relative, correction):
    found = both("triton", dtype, triton_device, correction=correction)
    expected = both("reference", torch.float64, triton_device, correction=correction)
    for left, right in zip(found, expected):
        # Relative to the largest entry; bfloat16 rounds inputs of the second product, the outputs, and b.
        assert (left.double() - right).abs().max().item() <= relative * max(1.0, right.abs().max().item())


def test_sequential_writing_is_refused(triton_device):
    given = tensors(torch.float32, triton_device)
    given.pop("query")
    with pytest.raises(TesseraError, match="a sequential writing has nothing to do at once"):
        write_association(
            **given, empty=torch.zeros(2, dtype=torch.bool, device=triton_device), order="sequential", backend="triton"
        )
