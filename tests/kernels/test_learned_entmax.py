"""Learned alphas, and any alpha of `entmax`: against bisection, the entmax package and the dense reference."""

import math

import pytest
import torch
from torch.nn.functional import normalize

from tessera.kernels import (
    KERNELS,
    Entmax,
    EntmaxOfRows,
    RectifiedPolynomial,
    entmax,
    kernel_from_config,
    normalized_relu,
    relumax,
)
from tessera.layers.bandwidth import LearnedAlpha
from tessera.ops.kernel_regression import Call, Window, chosen_query_weights, kernel_regression
from tests.refusals import refused
from tests.tolerances import close


def drawn(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("scale", [0.3, 4.0])
@pytest.mark.parametrize("length", [9, 70])  # short rows, and rows whose threshold is first sought among group maxima
def test_weights_and_gradients_are_those_of_bisection(length, scale):
    scores = drawn(4, 3, length, scale=scale).requires_grad_()
    visible = drawn(4, 3, length, seed=1) < 1
    visible[0, 0] = False
    alpha = torch.tensor([1.05, 1.4, 2.0], dtype=torch.float64)[:, None].requires_grad_()
    results = [EntmaxOfRows(alpha).weights(scores, visible), entmax(scores.masked_fill(~visible, -torch.inf), alpha)]
    close(*results)
    assert not results[0][0, 0].any()
    gradients = [torch.autograd.grad((result * drawn(length)).sum(), (scores, alpha)) for result in results]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_a_nan_makes_its_row_and_its_gradients_nan(alpha):
    scores, alphas = drawn(2, 6), torch.full((2, 1), alpha, dtype=torch.float64, requires_grad=True)
    scores[1, 3] = torch.nan
    weights = EntmaxOfRows(alphas).weights(scores.requires_grad_())
    for result in (weights, *torch.autograd.grad((weights * drawn(6)).sum(), (scores, alphas))):
        assert bool(result[1].isnan().all())
        assert bool(result[0].isfinite().all())


def test_equal_alphas_are_the_fixed_kernel():
    scores = drawn(5, 40).float()
    for alpha in (1.05, 1.5, 2.0):
        expected = entmax(scores, alpha)
        actual = EntmaxOfRows(torch.full((1,), alpha)).weights(scores)
        torch.testing.assert_close(actual, expected, rtol=0, atol=2e-5 if alpha < 1.1 else 1e-6)


@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"window": Window(delay=2, span=60)},
        {"window": Window(), "query_documents": torch.arange(150).expand(2, -1) // 40},
    ],
    ids=["all", "window", "documents"],
)
def test_in_blocks_as_all_at_once(masks):
    """One alpha for each head, and one for each head and query."""
    if "query_documents" in masks:
        masks["pair_documents"] = masks["query_documents"]
    inputs = [normalize(drawn(2, 3, 150, 5, seed=seed), dim=-1) for seed in (1, 2)] + [drawn(2, 3, 150, 4, seed=3)]
    slope = drawn(3, 1, seed=4).exp() * 4
    for shape in ((3, 1, 1), (2, 3, 150, 1)):
        alpha = 1.05 + 0.95 * torch.rand(shape, generator=torch.Generator().manual_seed(5)).double()
        results = []
        for backend in ("chunked", "reference"):
            leaves = [tensor.clone().requires_grad_() for tensor in (*inputs, slope, alpha)]
            query, key, value, scale, learned = leaves
            options = {"kernel": EntmaxOfRows(learned), "slope": scale, "backend": backend, **masks}
            output = kernel_regression(query, key, value, **options)
            results.append([output, *torch.autograd.grad((output * inputs[2].roll(1, 2)).sum(), leaves)])
        torch.testing.assert_close(*results, rtol=1e-8, atol=1e-9)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_new_process_compiles_it(monkeypatch):
    """The compiler was made to read the plugins, as in a process whose tables nobody has read; it cannot."""
    monkeypatch.setattr(KERNELS, "_unread", (None, "tessera.kernels"))
    torch._dynamo.reset()
    pairs, alpha = drawn(1, 2, 6, 4), torch.tensor([1.3, 1.7], dtype=torch.float64)[:, None, None].requires_grad_()

    def regress(alpha):
        return kernel_regression(pairs, pairs, pairs, kernel=EntmaxOfRows(alpha), slope=2.0, window=Window())

    compiled = torch.compile(regress, backend="aot_eager", fullgraph=True)
    results = [
        [output := run(alpha), torch.autograd.grad(output.square().sum(), alpha)[0]] for run in (compiled, regress)
    ]
    torch.testing.assert_close(*results)


def test_weights_and_bandwidths_of_chosen_queries_are_those_of_each_head_alone():
    key, value = normalize(drawn(1, 2, 12, 5), dim=-1), drawn(1, 2, 12, 4, seed=1)
    alphas, slope = torch.tensor([1.2, 1.8], dtype=torch.float64), torch.full((1,), 9.0, dtype=torch.float64)
    both = Call(key, key, value, EntmaxOfRows(alphas[:, None, None]), slope, window=Window())
    seen = chosen_query_weights(both, [5, 11])
    for head, alpha in enumerate(alphas.tolist()):
        one, fixed = slice(head, head + 1), RectifiedPolynomial(1 / (alpha - 1))
        alone = Call(key[:, one], key[:, one], value[:, one], fixed, slope, window=Window())
        expected = chosen_query_weights(alone, [5, 11])
        close(seen.weights[:, one], expected.weights)
        torch.testing.assert_close(seen.bandwidth[:, one], expected.bandwidth, rtol=0, atol=1e-9)


@pytest.mark.parametrize("alpha", [1.001, 1.01])
@pytest.mark.parametrize(
    "weights", [entmax, lambda scores, alpha: EntmaxOfRows(alpha).weights(scores)], ids=["any", "of rows"]
)
def test_an_alpha_near_1_has_its_gradient_in_float32_too(weights, alpha):
    """As differences of terms divided by (alpha - 1)^2 it was -13.5 in place of 1.1 at 1.001."""
    gradients = []
    for dtype in (torch.float32, torch.float64):
        alphas = torch.full((3, 1), alpha, dtype=dtype, requires_grad=True)
        answers = weights(drawn(3, 64).float().to(dtype), alphas) * drawn(3, 64, seed=1).to(dtype)
        gradients.append(torch.autograd.grad(answers.sum(), alphas)[0].double())
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("excess", [1e-4, 1e-9, 1e-14])
def test_any_alpha_above_1_has_weights_that_sum_to_1(excess):
    """An alpha that float32 rounds to 1 is the least above: powers of an infinite number were anything."""
    scores = drawn(5, 40, scale=3.0).float()
    for alpha in (1 + excess, torch.tensor(1 + excess, dtype=torch.float64)):
        torch.testing.assert_close(entmax(scores, alpha), scores.softmax(-1), rtol=0, atol=1e-5 + 10 * excess)
        torch.testing.assert_close(entmax(scores, alpha).sum(-1), torch.ones(5))


def test_chosen_queries_have_the_alphas_and_slopes_of_theirs():
    key, value = normalize(drawn(1, 2, 12, 5), dim=-1), drawn(1, 2, 12, 4, seed=1)
    alphas = torch.linspace(1.2, 1.8, 12, dtype=torch.float64)
    for slope in (torch.tensor(9.0, dtype=torch.float64), torch.linspace(3, 9, 12, dtype=torch.float64)):
        call = Call(key, key, value, EntmaxOfRows(alphas[:, None]), slope, window=Window())
        answers = kernel_regression(key, key, value, kernel=call.kernel, slope=slope, window=Window())
        close(chosen_query_weights(call, [5, 11]).weights @ value, answers[:, :, [5, 11]])


def test_heads_start_alike_stay_in_bounds_and_learn():
    layer = LearnedAlpha(3, Entmax(alpha=1.25, lowest=1.1, highest=1.8))
    torch.testing.assert_close(layer.alpha, torch.full((3,), 1.25))
    with torch.no_grad():
        layer.alpha_logit.copy_(torch.tensor([-50.0, 0.0, 50.0]))
    torch.testing.assert_close(layer.alpha, torch.tensor([1.1, 1.45, 1.8]))
    target = entmax(drawn(3, 2, 20).float(), 1.6)
    layer.reset_parameters()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        (layer().weights(drawn(3, 2, 20).float()) - target).square().sum().backward()
        optimizer.step()
    torch.testing.assert_close(layer.alpha, torch.full((3,), 1.6), rtol=0, atol=0.01)


@pytest.mark.parametrize("fields", [{"alpha": 1.05}, {"lowest": 1.0}, {"highest": 2.5}, {"alpha": "1.5"}], ids=str)
def test_bounds_that_are_refused(fields):
    message = "kernel 'entmax': lowest, alpha, highest must rise from above 1 to at most 2"
    refused(message, kernel_from_config, {"name": "entmax", **fields})


def drawn_alpha(shape):
    return 1.1 + 2.4 * torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("alpha", [2.0001, 2.5, 3.0, 5.0])
def test_numbers_above_two(alpha):
    peer = pytest.importorskip("entmax")
    x = drawn(4, 5, 9).requires_grad_()
    expected = peer.entmax_bisect(x, torch.tensor(alpha, dtype=torch.float64), dim=-1, n_iter=80)
    actual = entmax(x, alpha)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    above = torch.randn_like(x)
    gradients = [torch.autograd.grad((result * above).sum(), x)[0] for result in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("spread", [1e-6, 1e-3, 1.0])
@pytest.mark.parametrize("alpha", [1.3, 4.0, 8.0, 20.0, 50.0])
def test_weights_of_a_large_alpha_differ_as_the_scores_do(alpha, spread):
    """`p_i^(alpha - 1) - p_j^(alpha - 1) = (alpha - 1) (s_i - s_j)` inside, no more outside, and the sum is 1."""
    for dtype in (torch.float64, torch.float32, torch.float16):
        x = (spread * drawn(30, 9)).to(dtype).requires_grad_()
        p = entmax(x.double(), alpha).detach()
        close(p.sum(-1), torch.ones(30).double())
        powers, scaled = p.pow(alpha - 1), (alpha - 1) * x.detach().double()
        last = p.masked_fill(p == 0, 2).min(-1, keepdim=True).indices
        risen = powers - powers.gather(-1, last) - (scaled - scaled.gather(-1, last))
        assert bool((risen.abs() <= 1e-12 * powers.clamp(min=1e-300) + 1e-15 * spread)[p > 0].all())
        assert bool((risen >= 0)[p == 0].all())
        weights = entmax(x, alpha)
        torch.testing.assert_close(weights.double(), p, rtol=0, atol=4 * torch.finfo(dtype).eps)
        weights.backward(torch.randn(30, 9).to(dtype))
        assert not x.grad.isnan().any()


@pytest.mark.parametrize("alpha", [8.0, 20.0])
def test_the_gradient_of_a_large_alpha_is_that_of_differences(alpha):
    x, above, step = 1e-3 * drawn(4, 9), drawn(4, 9, seed=1), 1e-9 * drawn(4, 9, seed=2)
    (gradient,) = torch.autograd.grad((entmax(x.requires_grad_(), alpha) * above).sum(), x)
    change = ((entmax(x.detach() + step, alpha) - entmax(x.detach() - step, alpha)) * above).sum(-1) / 2
    torch.testing.assert_close((gradient * step).sum(-1), change, rtol=1e-4, atol=0)
    narrow = x.detach().float().requires_grad_()
    (rounded,) = torch.autograd.grad((entmax(narrow, alpha) * above.float()).sum(), narrow)
    torch.testing.assert_close(rounded.double(), gradient, rtol=0, atol=1e-4 * gradient.abs().max().item())


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (4, 1, 1), (4, 5, 1)], ids=str)
def test_an_alpha_for_each_row_that_is_learned(shape):
    peer = pytest.importorskip("entmax")
    x, alpha = drawn(4, 5, 9).requires_grad_(), drawn_alpha(shape).requires_grad_()
    full = alpha.expand(4, 5, 1)
    results = [entmax(x, alpha), peer.entmax_bisect(x, full, dim=-1, n_iter=80)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)
    above = torch.randn_like(x)
    gradients = [torch.autograd.grad((result * above).sum(), (x, alpha)) for result in results]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)
    assert torch.autograd.gradcheck(entmax, (x, alpha), eps=1e-7, atol=1e-5, fast_mode=True)


def test_it_is_the_function_of_numbers():
    for alpha in (1.2, 1.5, 2.0):
        tensor = torch.tensor(alpha, dtype=torch.float64)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
            x = drawn(4, 5, 9).to(dtype)
            torch.testing.assert_close(entmax(x, tensor), entmax(x, alpha), rtol=tolerance, atol=tolerance)


def test_other_dimensions_absent_entries_and_nan():
    x, alpha = drawn(4, 5, 9), drawn_alpha((4, 1, 9))
    x[0, 2:, 3], x[1, :, 4], x[2, 1, 5] = -torch.inf, -torch.inf, torch.nan
    along = entmax(x, alpha, dim=1)
    torch.testing.assert_close(along, entmax(x.mT, alpha.mT).mT, equal_nan=True)
    assert bool((along[0, 2:, 3] == 0).all())
    assert bool((along[1, :, 4] == 0).all())
    assert bool(along[2, :, 5].isnan().all())
    assert int(along.isnan().sum()) == 5


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        *((alpha, f"alpha must be a finite number of at least 1; got {alpha}") for alpha in (0.99, math.inf, math.nan)),
        ("1.5", "alpha must be a finite number of at least 1; got 1.5"),
        (torch.tensor([1.0]), "alpha must be above 1 where it is a tensor; got 1.0"),
        (torch.full((4, 1, 9), 1.5), r"alpha must broadcast to \(4, 5, 1\); got \(4, 1, 9\)"),
    ],
)
def test_other_alphas_are_refused(alpha, message):
    refused(message, entmax, drawn(4, 5, 9), alpha)


@pytest.mark.parametrize("alpha", [1.0, 2.5, 3.0])
def test_alphas_of_rows_that_no_polynomial_has_are_refused(alpha):
    """Newton's steps ended anywhere: weights of alpha = 2.5 summed to 2.4."""
    alphas = torch.tensor([1.5, alpha])[:, None]
    refused(r"alphas of rows must lie in \(1, 2\]", EntmaxOfRows(alphas).weights, torch.randn(2, 9))
    pairs, options = torch.randn(1, 1, 2, 3), {"kernel": EntmaxOfRows(alphas), "slope": 1.0, "backend": "chunked"}
    refused(r"kernel_regression: alphas of rows must lie", kernel_regression, pairs, pairs, pairs, **options)


@pytest.mark.parametrize("alpha", [1.5, 2.5, torch.tensor(1.5)], ids=str)
def test_the_arguments_are_those_of_every_alpha(alpha):
    """Nothing has no weights; whole numbers, which would round weights, and missing dimensions are refused."""
    assert entmax(torch.zeros(3, 0), alpha).shape == (3, 0)
    refused("scores must be .*floating-point numbers; got .*int64", entmax, torch.tensor([1, 2]), alpha)
    for weights in (entmax, relumax, normalized_relu):
        refused("scores must be .*floating-point numbers; got .*bool", weights, torch.tensor([True, False]))
    refused(r"dim must lie in -2\.\.1; got 2", entmax, torch.zeros(3, 4), alpha, 2)
    refused(r"dim must lie in .*; got -1", entmax, torch.zeros(()), alpha)
