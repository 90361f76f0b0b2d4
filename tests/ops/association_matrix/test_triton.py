"""Readings and writings by Triton equal the float64 reference, with all gradients."""

import pytest
import torch

from tessera.ops.association_matrix import read_association, write_association
from tests.refusals import refused
from tests.tolerances import assert_within


def tensors(dtype, device, held=None, batch=2, features=40, width=20, pairs=5, queries=9):
    """A, z, queries, keys, values, strengths; features are not negative."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(torch.bfloat16).to(device, dtype)

    drawn = {
        "matrix": normal(batch, features, width).to(held or dtype),
        "normaliser": normal(batch, features).abs().to(held or dtype),
        "query": normal(batch, queries, features).abs(),
        "key": normal(batch, pairs, features).abs(),
        "value": normal(batch, pairs, width),
        "strength": normal(batch, pairs).sigmoid(),
    }
    return {name: x.requires_grad_() for name, x in drawn.items()}


def both(backend, dtype, device, held=None, closed=(), **options):
    inputs = tensors(dtype, device, held)
    with torch.no_grad():
        inputs["strength"][:, list(closed)] = 0.0
        if closed:
            inputs["matrix"][0] = 0.0  # as that of an empty memory is
    query = inputs.pop("query")
    read = read_association(inputs["matrix"], inputs["normaliser"], query, backend=backend)
    empty = torch.tensor([True, False], device=device)
    written = write_association(**inputs, empty=empty, backend=backend, **options)
    loss = sum(
        (x.double() * torch.arange(x.numel(), device=device).view(x.shape).cos()).sum() for x in (read, *written)
    )
    return [read, *written, *torch.autograd.grad(loss, [*inputs.values(), query])]


@pytest.mark.parametrize(
    ("dtype", "relative", "options"),
    # Relative to the largest entry; bfloat16 rounds inputs of the second product, the outputs, and b.
    [(torch.float32, 1e-5, {}), (torch.bfloat16, 4e-2, {})]
    + [(torch.float32, 1e-5, {"closed": (1, 3), "gate_normaliser": True})],
    ids=["float32", "bfloat16", "pairs of strength 0 leave the normaliser"],
)
@pytest.mark.parametrize("correction", [True, False])
def test_equal_to_the_reference(triton_device, dtype, relative, options, correction):
    actual, expected = (
        both(backend, kind, triton_device, correction=correction, **options)
        for backend, kind in (("triton", dtype), ("reference", torch.float64))
    )
    assert_within(actual, expected, relative)


def test_a_memory_wider_than_what_meets_it(triton_device):
    """As under autocast: the memory stays in float32, also its gradients, where features and values are bfloat16."""
    actual = both("triton", torch.bfloat16, triton_device, held=torch.float32)
    expected = both("reference", torch.float64, triton_device)
    lower, wide = torch.bfloat16, torch.float32
    assert [x.dtype for x in actual] == [lower, wide, wide, wide, wide, lower, lower, lower, lower]
    assert_within(actual, expected, 4e-2)


def test_a_memory_of_two_dtypes_and_sequential_writing_are_refused(triton_device):
    inputs = tensors(torch.float32, triton_device)
    query, options = inputs.pop("query"), {"order": "sequential", "backend": "triton"}
    memory = (inputs["matrix"], inputs["normaliser"].bfloat16())
    message = "the memory of this or float32; got torch.bfloat16, torch.float32"
    refused(message, read_association, *memory, query, backend="triton")
    options["empty"] = torch.zeros(2, dtype=torch.bool, device=triton_device)
    refused("a sequential writing has nothing to do at once", write_association, **inputs, **options)


def test_the_mapped_dimension_may_stand_anywhere(triton_device):
    shapes = {"matrix": (2, 3, 6, 4), "normaliser": (2, 6), "query": (2, 5, 3, 6)}
    inputs = {name: torch.rand(*shape, device=triton_device) for name, shape in shapes.items()}
    read = torch.vmap(lambda a, z, q: read_association(a, z, q, backend="triton"), in_dims=(1, None, 2))
    actual = read(inputs["matrix"], inputs["normaliser"], inputs["query"])
    for i in range(3):
        one = read_association(
            inputs["matrix"][:, i], inputs["normaliser"], inputs["query"][:, :, i], backend="reference"
        )
        torch.testing.assert_close(actual[i], one, rtol=1e-5, atol=1e-6)


def test_an_empty_memory_in_float16_has_finite_gradients(triton_device):
    """1 / eps is beyond float16."""
    query = torch.rand(1, 3, 6, device=triton_device, dtype=torch.float16).requires_grad_()
    matrix, normaliser = query.new_zeros(1, 6, 4), query.new_zeros(1, 6)
    read_association(matrix, normaliser, query, backend="triton").float().mul(1e3).sum().backward()
    assert torch.equal(query.grad, torch.zeros_like(query))
