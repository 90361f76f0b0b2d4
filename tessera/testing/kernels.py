"""What every kernel must satisfy."""

import json

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

from tessera.kernels import Kernel, RowKernel, kernel_from_config
from tessera.kernels.rows import Workspace
from tessera.testing.laws import REORDERED_FLOAT32, REORDERED_FLOAT64, laws_in, try_laws

ROWS, PAIRS = 6, 13
MANY = 300  # more than one block of any implementation


def check_kernel(kernel: Kernel) -> None:
    """Run every law of `LAWS` on `kernel`; raises AssertionError at the first that it breaks."""
    try_laws(LAWS, kernel)


def example(scale: float = 1.5, pairs: int = PAIRS) -> tuple[Tensor, Tensor]:
    """Scores (rows, pairs) without ties and a mask with an empty row and a row of one pair."""
    generator = torch.Generator().manual_seed(7)
    scores = scale * torch.randn(ROWS, pairs, generator=generator, dtype=torch.float64)
    visible = torch.rand(ROWS, pairs, generator=generator) < 0.7
    visible[1] = False
    visible[2] = torch.arange(pairs) == 4
    visible[3] = True
    return scores, visible


def is_a_distribution(kernel: Kernel) -> None:
    """Weights are not negative, 0 for hidden pairs, and sum to 1 where a pair is visible."""
    for pairs in (PAIRS, MANY):
        scores, visible = example(pairs=pairs)
        _check_distribution(kernel.weights(scores, visible), visible, REORDERED_FLOAT64)


def _check_distribution(weights: Tensor, visible: Tensor, tolerance: float) -> None:
    assert bool((weights >= 0).all()), "a weight is negative or NaN"
    assert bool((weights[~visible] == 0).all()), "a hidden pair has weight"
    torch.testing.assert_close(weights.sum(-1), visible.any(-1).to(weights), rtol=0, atol=tolerance)


def hidden_pairs_have_no_influence(kernel: Kernel) -> None:
    """The scores of hidden pairs change no bit."""
    scores, visible = example()
    other = torch.where(visible, scores, 50.0)
    torch.testing.assert_close(kernel.weights(scores, visible), kernel.weights(other, visible), rtol=0, atol=0)


def hidden_pairs_may_as_well_be_absent(kernel: Kernel) -> None:
    """The visible pairs of a long row have the weights that they have alone; no pair at all has none."""
    scores, visible = example(pairs=MANY)
    visible[3] = torch.arange(MANY) % 29 == 11
    weights = kernel.weights(scores, visible)
    for row in (0, 2, 3):
        seen = visible[row]
        alone = kernel.weights(scores[row : row + 1, seen])[0]
        torch.testing.assert_close(weights[row, seen], alone, rtol=0, atol=REORDERED_FLOAT64)
    assert kernel.weights(scores[:, :0]).shape == (ROWS, 0), "no pair has another shape than (rows, 0)"


def takes_rows_of_any_shape(kernel: Kernel) -> None:
    """Scores (B, H, T, N) with a mask that is broadcast are so many rows; None sees all; `scores` stay as they are."""
    rows, visible = example()
    scores = torch.stack([rows, rows.flip(0), 2 * rows, -rows]).view(2, 2, ROWS, PAIRS)
    kept = scores.clone()
    weights = kernel.weights(scores, visible)
    assert torch.equal(scores, kept), "the scores were changed in place"
    flat = kernel.weights(scores.flatten(0, 2), visible.repeat(4, 1))
    torch.testing.assert_close(weights.flatten(0, 2), flat, rtol=0, atol=REORDERED_FLOAT64)
    seen = torch.ones(1, PAIRS, dtype=torch.bool)
    torch.testing.assert_close(kernel.weights(scores), kernel.weights(scores, seen), rtol=0, atol=REORDERED_FLOAT64)


def follows_permutations(kernel: Kernel) -> None:
    """Pairs in another order have their weights in that order."""
    scores, visible = example()
    order = torch.randperm(PAIRS, generator=torch.Generator().manual_seed(1))
    moved = kernel.weights(scores[:, order], visible[:, order])
    torch.testing.assert_close(moved, kernel.weights(scores, visible)[:, order], rtol=0, atol=REORDERED_FLOAT64)


def keeps_the_order_of_scores(kernel: Kernel) -> None:
    """A larger score has no smaller weight, the largest one above 0."""
    for pairs in (PAIRS, MANY):
        scores, _ = example(pairs=pairs)
        ranked = kernel.weights(scores.sort(-1).values)
        assert bool((ranked.diff(dim=-1) >= 0).all())
        assert bool((ranked[:, -1] > 0).all())


def near_keys_count_most(kernel: Kernel) -> None:
    """By the scores of `affine`: of two keys the nearer has no smaller weight; a larger beta has a larger slope."""
    similarity = torch.linspace(-1, 1, PAIRS, dtype=torch.float64)
    betas = torch.tensor([0.3, 2.0, 30.0], dtype=torch.float64)
    slope, intercept = kernel.affine(betas)
    assert bool((slope.diff() > 0).all()), f"a larger beta has no larger slope: {slope.tolist()}"
    intercept = torch.zeros_like(slope) if intercept is None else intercept
    for beta, one_slope, one_intercept in zip(betas, slope, intercept):
        alone, beside = kernel.affine(beta)
        assert torch.equal(alone, one_slope), "one beta changes the slope of another"
        assert beside is None or torch.equal(beside, one_intercept), "one beta changes the intercept of another"
        weights = kernel.weights((one_slope * similarity + one_intercept)[None])
        assert bool((weights.diff() >= 0).all()), "a farther key has more weight"


def has_the_gradient_it_claims(kernel: Kernel) -> None:
    """Autograd's gradient is that of finite differences; of long rows along a random direction."""
    for pairs in (PAIRS, MANY):
        scores, visible = example(pairs=pairs)

        def weights(s: Tensor, visible: Tensor = visible) -> Tensor:
            return kernel.weights(s, visible)

        try:
            gradcheck(weights, scores.requires_grad_(), eps=1e-7, atol=1e-6, fast_mode=pairs == MANY)
        except GradcheckError as error:
            raise AssertionError(str(error)) from error


def bears_large_scores(kernel: Kernel) -> None:
    """Scores of ten thousand, of either sign, give weights that sum to 1, and finite gradients: in float64 and 32."""
    for dtype, tolerance in ((torch.float64, REORDERED_FLOAT64), (torch.float32, REORDERED_FLOAT32)):
        for centre in (-1e4, 0.0, 1e4):
            scores, visible = example(scale=1e3)
            scores = (scores + centre).to(dtype).requires_grad_()
            weights = kernel.weights(scores, visible)
            _check_distribution(weights, visible, tolerance)
            if weights.requires_grad:
                (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
                assert bool(gradient.isfinite().all()), "a large score has a gradient that is not finite"


def computes_in_every_type(kernel: Kernel) -> None:
    """Weights are of the scores' type; in float32 they, and their gradient, are near those in float64."""
    scores, visible = example(pairs=MANY)
    scores = scores.float()
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3))
    results = []
    for dtype in (torch.float64, torch.float32):
        leaf = scores.to(dtype).requires_grad_()
        weights = kernel.weights(leaf, visible)
        assert weights.dtype == dtype, f"weights of scores in {dtype} are {weights.dtype}"
        gradient = torch.autograd.grad(weights, leaf, grad.to(dtype))[0]
        results.append((weights.detach().double(), gradient.double()))
    for exact, rounded in zip(*results):
        torch.testing.assert_close(rounded, exact, rtol=0, atol=10 * REORDERED_FLOAT32)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = kernel.weights(scores.to(dtype), visible)
        assert narrow.dtype == dtype, f"weights of scores in {dtype} are {narrow.dtype}"
        wide = kernel.weights(scores.to(dtype).double(), visible)
        assert bool(((narrow.double() - wide).abs() <= 2.0**-8 * wide + 1e-4).all()), f"weights in {dtype} are far off"


def gives_nothing_at_its_floor(kernel: Kernel) -> None:
    """At or below `score_floor` the weight is 0; at `subset_floor` of some pairs as well, whatever the others score."""
    for scale in (0.4, 4.0):
        scores, visible = example(scale)
        weights = kernel.weights(scores, visible)
        floor = kernel.score_floor(scores.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True))
        assert bool((weights[visible & (scores <= floor)] == 0).all()), "a pair below score_floor has weight"
        for some in (1, 5, PAIRS):
            floor = kernel.subset_floor(scores[:, :some], visible[:, :some])[:, None]
            assert bool((weights[visible & (scores <= floor)] == 0).all()), "a pair below subset_floor has weight"


def tells_what_it_looks_at(kernel: Kernel) -> None:
    """`support_size` counts the pairs with weight; `bandwidth` is finite, not negative, and NaN in an empty row."""
    scores, visible = example()
    counted = (kernel.weights(scores, visible) > 0).sum(-1)
    size = kernel.support_size(scores, visible).long()
    assert torch.equal(size, counted), "support_size is not the pairs with weight"
    slope, intercept = kernel.affine(torch.full((ROWS,), 3.0, dtype=torch.float64))
    keys = (scores / scores.abs().max()) * slope[:, None] + (0 if intercept is None else intercept[:, None])
    bandwidth = kernel.bandwidth(keys, torch.full((ROWS,), 3.0, dtype=torch.float64), visible)
    assert bandwidth.shape == (ROWS,)
    has_pairs = visible.any(-1)
    assert torch.equal(bandwidth.isnan(), ~has_pairs), "bandwidth is NaN where there is no visible pair, only there"
    of_pairs = bandwidth[has_pairs]
    assert bool((of_pairs >= 0).all()), "a bandwidth is negative"
    assert bool(of_pairs.isfinite().all()), "a bandwidth is infinite"


def agrees_with_its_row_functions(kernel: Kernel) -> None:
    """`forward` and `backward` of a `RowKernel` are `weights` and its gradient, also of long rows and in float32."""
    if not isinstance(kernel, RowKernel):
        return
    for pairs, dtype in ((PAIRS, torch.float64), (MANY, torch.float64), (MANY, torch.float32)):
        tolerance = REORDERED_FLOAT64 if dtype == torch.float64 else 10 * REORDERED_FLOAT32
        scores, visible = example(pairs=pairs)
        scores = scores.float().double()  # the same numbers in either type
        grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(3)).double()
        scores.requires_grad_()
        weights = kernel.weights(scores, visible)
        (expected,) = torch.autograd.grad(weights, scores, grad)
        scaled = kernel.score_scale * scores.detach().masked_fill(~visible, -torch.inf).to(dtype)
        block = scaled.clone()
        of_rows, statistics = kernel.forward(block, Workspace())
        torch.testing.assert_close(of_rows.double(), weights.detach(), rtol=0, atol=tolerance)
        kept = tuple(statistic.clone() for statistic in statistics)
        block.fill_(torch.nan), of_rows.fill_(torch.nan)  # as the next block does
        assert all(map(torch.equal, statistics, kept)), "statistics lie in a block that the next one overwrites"
        again, actual, *_ = kernel.backward(scaled, statistics, grad.to(dtype), Workspace())
        torch.testing.assert_close(again.double(), weights.detach(), rtol=0, atol=tolerance)
        torch.testing.assert_close(actual.double().masked_fill(~visible, 0.0), expected, rtol=0, atol=tolerance)
        assert bool((actual[~visible] == 0).all())


def a_nan_is_not_hidden(kernel: Kernel) -> None:
    """As softmax does: its row is NaN and so is the gradient; not where it is hidden, and no other row."""
    scores, visible = example()
    clean = kernel.weights(scores, visible)
    seen, hidden = 3, 0
    scores[seen, 5], scores[hidden, (~visible[hidden]).nonzero()[0]] = torch.nan, torch.nan
    scores.requires_grad_()
    weights = kernel.weights(scores, visible)
    assert bool(weights[seen].isnan().all())
    others = torch.arange(ROWS) != seen
    assert torch.equal(weights[others], clean[others])
    if getattr(kernel, "base", None) != "uniform":  # which has no gradient at all
        (gradient,) = torch.autograd.grad(weights.sum(), scores)
        assert bool(gradient[seen].isnan().any())


def survives_its_configuration(kernel: Kernel) -> None:
    """What a file holds of it, as JSON, makes it again: it is registered, and its fields are numbers and names."""
    again = kernel_from_config(json.loads(json.dumps(kernel.to_config())))
    assert again == kernel, f"{kernel} comes back from its configuration as {again}"


LAWS = laws_in(globals(), Kernel)
