"""Every registered kernel keeps the contract and equals its oracle; wrong kernels do not; laws of all scores."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize

from tessera.base.devices import imagined
from tessera.kernels import (
    KERNELS,
    EntmaxOfRows,
    Epanechnikov,
    Gaussian,
    RectifiedPolynomial,
    entmax,
    kernel_from_config,
    kernel_names,
)
from tessera.kernels.rows import RowKernel
from tessera.testing.kernels import LAWS, check_kernel, example
from tests.kernels.contract import all_kernels, identifier
from tests.kernels.oracles import ORACLES, oracle
from tests.refusals import refused
from tests.tolerances import close

KERNEL = pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)


@KERNEL
@pytest.mark.parametrize("law", LAWS)
def test_contract(kernel, law):
    LAWS[law](kernel)


@KERNEL
@pytest.mark.parametrize("scale", [0.2, 3.0])
def test_weights_equal_the_oracle(kernel, scale):
    scores, visible = example(scale)
    expected = oracle(kernel, scores, visible)
    close(kernel.weights(scores, visible), expected)


@KERNEL
@pytest.mark.parametrize("visible", [None, torch.ones(5, dtype=torch.bool, device="meta")])
def test_weights_without_numbers_have_shapes(kernel, visible):
    """On the meta device, where a search for a threshold sees none."""
    scores = torch.empty(2, 3, 5, device="meta", requires_grad=True)
    weights = kernel.weights(scores, visible)
    weights.sum().backward()
    assert weights.is_meta
    assert weights.shape == scores.grad.shape == (2, 3, 5)


@KERNEL
def test_weights_on_an_imagined_device_have_shapes(kernel):
    """Of tensors without numbers that say that they are on the CPU: `tessera plan` reads models on them."""
    with FakeTensorMode(), imagined("cuda"):
        scores = torch.empty(2, 3, 5, requires_grad=True)
        weights = kernel.weights(scores)
        weights.sum().backward()
    assert weights.shape == scores.grad.shape == (2, 3, 5)


@KERNEL
def test_weights_are_mapped_where_nothing_has_a_gradient(kernel):
    scores = example(3.0)[0]
    close(torch.vmap(kernel.weights)(scores), kernel.weights(scores))


def test_what_rows_learn_has_a_gradient_also_where_scores_have_none():
    gradients = []
    for is_learned in (False, True):
        scores = torch.arange(10, dtype=torch.float64).view(2, 5).div(10).requires_grad_(is_learned)
        alpha = torch.tensor([[1.3], [1.7]], dtype=torch.float64, requires_grad=True)
        EntmaxOfRows(alpha).weights(scores).square().sum().backward()
        gradients.append(alpha.grad)
    assert gradients[0].abs().min() > 0.01
    close(*gradients)


def keeps_its_weights(self, scaled, workspace):
    weights = torch.softmax(scaled, -1)
    return weights, (weights,)


def from_its_weights(self, scaled, statistics, grad, workspace):
    (weights,) = statistics
    return weights, weights * (grad - (weights * grad).sum(-1, keepdim=True))


def test_weights_that_a_kernel_keeps_have_a_gradient():
    members = {"name": "keeping", "forward": keeps_its_weights, "backward": from_its_weights}
    kernel = dataclass(frozen=True)(type("Keeping", (RowKernel,), members))()
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    gradients = [
        torch.autograd.grad(weights.sin().sum(), scores)[0]
        for weights in (kernel.weights(scores), torch.softmax(scores, -1))
    ]
    torch.testing.assert_close(*gradients)


def test_every_kernel_has_an_oracle():
    assert set(ORACLES) == set(KERNELS)


of_gaussian = Gaussian.weights


def wrong(weights=None, base=Gaussian, **members):
    """A kernel with other weights than the Gaussian one, or with other `members` than `base`."""
    members |= {} if weights is None else {"weights": weights}
    return dataclass(frozen=True)(type("Wrong", (base,), members))


def looks_at_hidden_pairs(self, scores, visible=None):
    weights = torch.softmax(scores, -1)
    weights = weights if visible is None else weights * visible
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) ** 0.999


def row_gradient_of_another(self, scaled, statistics, grad, workspace):
    weights, grad = Gaussian.backward(self, scaled, statistics, grad, workspace)
    return weights, grad * 1.01


def forgets_pairs_behind_its_block(self, scores, visible=None):
    seen = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible.expand(scores.shape)
    return of_gaussian(self, scores, seen & (torch.arange(scores.shape[-1]) < 64))


def forgets_them_in_its_rows(self, scaled, workspace):
    weights, statistics = Gaussian.forward(self, scaled, workspace)
    weights[..., 64:] = 0
    return weights, statistics


def keeps_statistics_in_its_block(self, scaled, workspace):
    weights, (*statistics, last) = Epanechnikov.forward(self, scaled, workspace)
    weights = weights.clone()
    return weights, (*statistics, scaled[..., :1].copy_(last))


def sums_the_second_dimension(self, scores, visible=None):
    scores = self.masked(scores, visible).masked_fill(
        torch.zeros_like(scores, dtype=torch.bool) if visible is None else ~visible.any(-1, keepdim=True), 0.0
    )
    weights = torch.softmax(scores, 1)
    return weights if visible is None else weights.masked_fill(~visible, 0.0)


def writes_into_its_scores(self, scores, visible=None):
    if visible is not None and not scores.requires_grad:
        scores.masked_fill_(~visible, -torch.inf)
    return of_gaussian(self, scores, visible)


def overflows(self, scores, visible=None):
    responses = self.masked(scores, visible).exp()
    return (responses / responses.sum(-1, keepdim=True).clamp_min(1e-30)).to(scores.dtype)


def half_the_gradient(scores):
    return scores / 2 + scores.detach() / 2


WRONG = {  # a kernel, and laws that reject it
    "zeros": (
        wrong(lambda self, scores, visible=None: torch.zeros_like(scores) * scores),
        "is_a_distribution", "keeps_the_order_of_scores",
    ),
    "ignores the mask": (
        wrong(lambda self, scores, visible=None: torch.softmax(scores, -1)),
        "is_a_distribution", "hidden_pairs_have_no_influence",
    ),
    "looks at hidden pairs": (
        wrong(looks_at_hidden_pairs), "is_a_distribution", "hidden_pairs_have_no_influence"
    ),
    "shifted by one": (
        wrong(lambda self, scores, visible=None: of_gaussian(self, scores.roll(1, -1), visible)),
        "follows_permutations", "keeps_the_order_of_scores",
    ),
    "reversed": (
        wrong(lambda self, scores, visible=None: of_gaussian(self, -scores, visible)), "keeps_the_order_of_scores"
    ),
    "half the gradient": (
        wrong(lambda self, scores, visible=None: of_gaussian(self, half_the_gradient(scores), visible)),
        "has_the_gradient_it_claims",
    ),
    "half the gradient in float32": (
        wrong(
            lambda self, scores, visible=None: of_gaussian(
                self, scores if scores.dtype == torch.float64 else half_the_gradient(scores), visible
            )
        ),
        "computes_in_every_type",
    ),
    "floor too high": (wrong(score_floor=lambda self, largest: largest - 1), "gives_nothing_at_its_floor"),
    "subset floor too high": (
        wrong(
            base=Epanechnikov,
            subset_floor=lambda self, scores, visible=None: self.masked(scores, visible).amax(-1) - 0.1,
        ),
        "gives_nothing_at_its_floor",
    ),
    "row gradient of another": (wrong(backward=row_gradient_of_another), "agrees_with_its_row_functions"),
    "takes NaN for no pair": (
        wrong(lambda self, scores, visible=None: of_gaussian(self, scores.nan_to_num(nan=-torch.inf), visible)),
        "a_nan_is_not_hidden",
    ),
    "forgets pairs behind its block": (
        wrong(forgets_pairs_behind_its_block), "hidden_pairs_may_as_well_be_absent", "keeps_the_order_of_scores"
    ),
    "forgets them in its rows": (wrong(forward=forgets_them_in_its_rows), "agrees_with_its_row_functions"),
    "rounds long rows": (
        wrong(
            lambda self, scores, visible=None: of_gaussian(
                self, scores + scores.shape[-1] * scores.abs() / 1000, visible
            )
        ),
        "hidden_pairs_may_as_well_be_absent",
    ),
    "sums the second dimension": (wrong(sums_the_second_dimension), "takes_rows_of_any_shape"),
    "writes into its scores": (wrong(writes_into_its_scores), "takes_rows_of_any_shape"),
    "far keys count most": (wrong(affine=lambda self, beta: (-beta, None)), "near_keys_count_most"),
    "has one bandwidth": (wrong(affine=lambda self, beta: (torch.ones_like(beta), None)), "near_keys_count_most"),
    "wider for a larger beta": (wrong(affine=lambda self, beta: (1 / beta, None)), "near_keys_count_most"),
    "keeps statistics in its block": (
        wrong(base=Epanechnikov, forward=keeps_statistics_in_its_block), "agrees_with_its_row_functions"
    ),
    "one bandwidth for all heads": (
        wrong(affine=lambda self, beta: (beta.mean().expand(beta.shape), None)), "near_keys_count_most"
    ),
    "overflows": (wrong(overflows), "bears_large_scores"),
    "widens its weights": (
        wrong(
            lambda self, scores, visible=None: of_gaussian(
                self, scores.float() if scores.dtype == torch.bfloat16 else scores, visible
            )
        ),
        "computes_in_every_type",
    ),
    "counts hidden pairs": (
        wrong(support_size=lambda self, scores, visible=None: Gaussian.support_size(self, scores)),
        "tells_what_it_looks_at",
    ),
    "takes a score for a bandwidth": (
        wrong(bandwidth=lambda self, scores, beta, visible=None: self.masked(scores, visible).amin(-1)),
        "tells_what_it_looks_at",
    ),
    "infinite where pairs are hidden": (
        wrong(
            bandwidth=lambda self, scores, beta, visible=None: (
                self.masked(scores, visible).amax(-1) - self.masked(scores, visible).amin(-1)
            )
        ),
        "tells_what_it_looks_at",
    ),
    "forgets its fields": (wrong(to_config=lambda self: {"name": "biweight"}), "survives_its_configuration"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "law"), [(name, law) for name, (_, *laws) in WRONG.items() for law in laws])
def test_wrong_kernels_are_rejected(name, law):
    with pytest.raises(AssertionError):
        LAWS[law](WRONG[name][0]())


def test_a_broken_law_is_named_with_what_it_says(monkeypatch):
    """Here a field that a JSON file changes; what a trial raises is said, too."""
    monkeypatch.setattr(KERNELS, "_entries", dict(KERNELS.items()))
    powers = dataclass(frozen=True)(
        type("Powers", (Gaussian,), {"__annotations__": {"powers": tuple}, "powers": (1, 2), "name": "powers"})
    )
    KERNELS.add("powers", powers)
    with pytest.raises(AssertionError, match=r"^survives_its_configuration: What a file .*\nGot: .*powers=\[1, 2\]"):
        check_kernel(powers())
    with pytest.raises(AssertionError, match=r"^near_keys_count_most: By the .*\nGot: ValueError: too many values"):
        check_kernel(wrong(affine=lambda self, beta: beta)())


def test_every_check_rejects_some_wrong_kernel():
    assert {law for _, *laws in WRONG.values() for law in laws} == set(LAWS)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "rectified_polynomial", "order": 0.5}, "order must be a finite number of at least 1; got 0.5"),
        ({"name": "rectified_polynomial", "order": 1e9}, "order must be at most 10,000; got 1000000000.0"),
        ({"name": "entmax", "lowest": 1 + 1e-9}, "lowest must be at least 1.0001; got"),
        ({"name": "relumax", "margin": 0}, "margin must be a finite positive number; got 0"),
        ({"name": "knn", "base": "box"}, "base must be one of gaussian, uniform; got 'box'"),
        ({"name": "knn", "k": 0}, "k must be an integer of at least 1; got 0"),
        ({"name": "biweight", "order": 3}, "unknown field 'order'"),
        ("epanechnikow", "Did you mean 'epanechnikov'"),
    ],
)
def test_configurations_that_are_refused(spec, message):
    refused(message, kernel_from_config, spec)


FEW = settings(max_examples=25, deadline=None, derandomize=True)


@FEW
@given(row=st.lists(st.floats(-20, 20), min_size=1, max_size=90))
def test_alpha_towards_one_tends_to_softmax(row):
    # (1 + x/r)^r = exp(x) (1 - x^2 / 2r + ...): the distance shrinks like 1/r; entries 40 below the top vanish.
    row = torch.tensor(row, dtype=torch.float64)
    errors = [(entmax(row, 1 + 1 / r) - torch.softmax(row, -1)).abs().max().item() for r in (1e2, 1e4, 1e6)]
    assert errors[1] <= 0.02 * errors[0] + 1e-9
    assert errors[2] <= 1e-5
    torch.testing.assert_close(entmax(row, 1), torch.softmax(row, -1), rtol=0, atol=1e-11)


@FEW
@given(seed=st.integers(0, 2**31), order=st.floats(1, 60), beta=st.floats(0.05, 200), pairs=st.integers(1, 200))
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


def test_which_kernels_give_weight_to_every_pair():
    """That is what keeps an index from leaving pairs unread."""
    everywhere = {name for name in kernel_names() if not kernel_from_config(name).has_floor}
    assert {kernel_from_config(name).name for name in everywhere} == {"gaussian"}
