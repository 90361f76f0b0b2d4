"""Laws that hold for all scores, searched for counterexamples."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from tessera.kernels import RectifiedPolynomial, entmax, sparsemax
from tests.kernels.contract import all_kernels, identifier

KERNEL = pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)
FEW = settings(max_examples=25, deadline=None, derandomize=True)
# Threshold and sum in float64 over at most a few hundred entries of order one.
EXACT = 1e-11

scores = st.lists(st.floats(-20, 20), min_size=1, max_size=90).map(lambda row: torch.tensor(row, dtype=torch.float64))
seeds = st.integers(0, 2**31)
orders = st.floats(1, 60)


@KERNEL
@FEW
@given(row=scores, seed=seeds)
def test_weights_are_a_distribution_in_the_order_of_the_scores(kernel, row, seed):
    """To draw a row takes longer than to look at it in three ways."""
    weights = kernel.weights(row)
    assert bool((weights >= 0).all())
    assert abs(weights.sum().item() - 1) < EXACT
    weights = kernel.weights(row.sort().values)
    assert bool((weights.diff() >= 0).all()), "a larger score has a smaller weight"
    # Ties are broken by recency, so that only rows without ties may be permuted.
    row = row.unique()
    order = torch.randperm(len(row), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(kernel.weights(row[order]), kernel.weights(row)[order], rtol=0, atol=EXACT)


@FEW
@given(row=scores, shift=st.floats(-1e3, 1e3), order=orders)
def test_entmax_does_not_change_when_all_scores_move(row, shift, order):
    # A score of 1e3 has a spacing of 1e-13; r times that enters a weight.
    alpha = 1 + 1 / order
    torch.testing.assert_close(entmax(row + shift, alpha), entmax(row, alpha), rtol=0, atol=1e-11 * max(1, order))


@FEW
@given(row=scores)
def test_alpha_towards_one_tends_to_softmax(row):
    # (1 + x/r)^r = exp(x) (1 - x^2 / 2r + ...): the distance shrinks like 1/r; entries 40 below the top vanish.
    errors = [(entmax(row, 1 + 1 / r) - torch.softmax(row, -1)).abs().max().item() for r in (1e2, 1e4, 1e6)]
    assert errors[1] <= 0.02 * errors[0] + 1e-9
    assert errors[2] <= 1e-5
    torch.testing.assert_close(entmax(row, 1), torch.softmax(row, -1), rtol=0, atol=EXACT)


@FEW
@given(row=scores)
def test_sparsemax_is_the_nearest_point_of_the_simplex(row):
    # Optimality of the projection p of s: s_i - p_i is constant on the support and at most that constant outside.
    weights = sparsemax(row)
    rest = row - weights
    level = rest[weights > 0]
    assert (level.max() - level.min()).item() < EXACT
    assert (rest <= level.max() + EXACT).all()


@FEW
@given(seed=seeds, order=orders, beta=st.floats(0.05, 200), pairs=st.integers(1, 200))
def test_proposition_1_adaptive_bandwidth_regression_is_entmax(seed, order, beta, pairs):
    generator = torch.Generator().manual_seed(seed)
    keys = normalize(torch.randn(pairs, 8, generator=generator, dtype=torch.float64), dim=-1)
    query = normalize(torch.randn(8, generator=generator, dtype=torch.float64), dim=-1)
    kernel, inverse_bandwidth = RectifiedPolynomial(order), torch.tensor(beta, dtype=torch.float64)
    attention = entmax(beta * keys @ query, alpha=1 + 1 / order)
    h = kernel.bandwidth(beta * keys @ query, inverse_bandwidth)
    responses = (1 - (keys - query).square().sum(-1) / h**2).clamp_min(0) ** order
    # u^r with u in [0, 1] multiplies the relative error of the threshold by r.
    torch.testing.assert_close(responses / responses.sum(), attention, rtol=0, atol=1e-11 * order)
