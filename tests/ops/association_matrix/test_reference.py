"""The association matrix against its formulas, written out pair by pair."""

import pytest
import torch

from tessera.layers.dpfp import dpfp
from tessera.ops.association_matrix import read_association, write_association
from tests.refusals import refused
from tests.tolerances import close

EPSILON = 1e-5


def problem(batch=2, pairs=4, features=6, width=5, empty=()):
    """A, z, phi(k), v, b in float64; the memories of the rows `empty` are."""
    shapes = [(features, width), (features,), (pairs, features), (pairs, width), (pairs,)]
    matrix, normaliser, key, value, strength = (torch.rand(batch, *shape, dtype=torch.float64) for shape in shapes)
    matrix[list(empty)], normaliser[list(empty)] = 0, 0
    # Sparse features, so that gamma takes values between 0 and 1.
    return matrix, 0.3 * normaliser, key * (torch.rand_like(key) > 0.5), value, strength


def written_out(matrix, normaliser, key, value, strength, empty, correction, order):
    """The formulas of one row, with loops."""
    rows = []
    for b in range(len(matrix)):
        a, z, is_empty = matrix[b].clone(), normaliser[b].clone(), bool(empty[b])
        old_a, old_z = a, z
        for i in range(key.shape[1]):
            if order == "sequential" and i > 0:
                old_a, old_z, is_empty = a, z, False
            k = key[b, i]
            recalled, gamma = torch.zeros_like(value[b, i]), 1.0
            if not is_empty:
                divisor = old_z @ k + EPSILON
                recalled = old_a.T @ k / divisor
                gamma = (1 - divisor / (k @ k + EPSILON)).clamp(0, 1) if correction else 1.0
            a = a + strength[b, i] * torch.outer(k, value[b, i] - recalled)
            z = z + gamma * k
        rows.append((a, z))
    return torch.stack([a for a, _ in rows]), torch.stack([z for _, z in rows])


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("correction", [True, False])
@pytest.mark.parametrize("pairs", [1, 2, 5])
@pytest.mark.parametrize("empty", [(), (0, 1), (1,)])
def test_writing_is_the_formula(order, correction, pairs, empty):
    inputs, empty = problem(pairs=pairs, empty=empty), torch.tensor([row in empty for row in range(2)])
    actual = write_association(*inputs, empty, correction=correction, order=order, backend="reference")
    for a, b in zip(actual, written_out(*inputs, empty, correction, order)):
        close(a, b)


def test_an_empty_memory_answers_zero_and_a_full_one_what_was_stored():
    matrix, normaliser, key, value, strength = problem(batch=1, pairs=1, empty=(0,))
    empty = torch.ones(1, dtype=torch.bool)
    assert not read_association(matrix, normaliser, key).any()
    matrix, normaliser = write_association(matrix, normaliser, key, value, torch.ones_like(strength), empty)
    # One pair at full strength comes back but for eps, which |phi|^2 of order one exceeds 1e4-fold.
    torch.testing.assert_close(read_association(matrix, normaliser, key), value, rtol=1e-3, atol=1e-3)


def test_no_gradient_flows_through_gamma():
    matrix, normaliser, key, value, strength = problem()
    key.requires_grad_()
    _, z = write_association(matrix, normaliser, key, value, strength, torch.zeros(2, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(z.sum(), key)
    gamma = 1 - ((normaliser[:, None] * key).sum(-1) + EPSILON) / (key.square().sum(-1) + EPSILON)
    torch.testing.assert_close(gradient, gamma.clamp(0, 1).detach()[..., None].expand_as(key))


def test_gradients_numerically():
    inputs, empty = problem(batch=1, pairs=2, features=4, width=3), torch.zeros(1, dtype=torch.bool)
    leaves = [tensor.requires_grad_() for tensor in inputs]

    def write(*tensors):  # A only: gamma, which enters z, is cut off on purpose
        return write_association(*tensors, empty, order="sequential", correction=False)

    torch.autograd.gradcheck(write, leaves)
    torch.autograd.gradcheck(read_association, (leaves[0], leaves[1], leaves[2]))


def test_refusals():
    names = ("matrix", "normaliser", "key", "value", "strength", "empty")
    right = dict(zip(names, (*problem(), torch.zeros(2, dtype=torch.bool))))
    for change, message in [
        ({"value": right["value"][..., :-1]}, r"value must be \(2, 4, 5\)"),
        ({"strength": right["strength"][:, :-1]}, r"strength must be \(2, 4\)"),
        ({"empty": right["empty"][:1]}, "empty must be booleans"),
        ({"normaliser": right["normaliser"][:, :-1]}, "agree in B and P"),
        ({"order": "reversed"}, "order must be one of parallel, sequential"),
    ]:
        refused(message, write_association, **{**right, **change})
    refused(r"num_rolls must lie in 1\.\.9", dpfp, torch.zeros(3, 5), 10)


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("rows", [(), (0, 1)])
def test_a_gated_normaliser_is_that_of_the_pairs_that_are_written(order, rows):
    """Pairs of strength 0 are as if left out, but for the gradient of their strength: a closed gate can open."""
    matrix, normaliser, key, value, strength = problem(empty=rows)
    empty = torch.full((2,), bool(rows))
    strength[:, [0, 2]] = 0.0
    strength.requires_grad_()
    actual = write_association(matrix, normaliser, key, value, strength, empty, order=order, gate_normaliser=True)
    written = (tensor[:, [1, 3]] for tensor in (key, value, strength))
    expected = write_association(matrix, normaliser, *written, empty, order=order)
    close(actual, expected)
    (gradient,) = torch.autograd.grad(actual[0].square().sum(), [strength])
    assert (gradient.abs() > 0).all()
