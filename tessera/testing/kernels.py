"""What every kernel must satisfy."""

import torch

from tessera.kernels import Kernel, RowKernel, kernel_from_config
from tessera.kernels.workspace import Workspace
from tessera.testing.tolerances import REORDERED_FLOAT64

ROWS, PAIRS = 6, 13


def check_kernel(kernel: Kernel) -> None:
    """Run every law of `LAWS` on `kernel`; raises AssertionError at the first that it breaks."""
    for law in LAWS.values():
        law(kernel)


def example(scale: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores (rows, pairs) without ties and a mask with an empty row and a row of one pair."""
    generator = torch.Generator().manual_seed(7)
    scores = scale * torch.randn(ROWS, PAIRS, generator=generator, dtype=torch.float64)
    visible = torch.rand(ROWS, PAIRS, generator=generator) < 0.7
    visible[1] = False
    visible[2] = torch.arange(PAIRS) == 4
    visible[3] = True
    return scores, visible


def is_a_distribution(kernel: Kernel) -> None:
    """Weights are not negative, 0 for hidden pairs, and sum to 1 where a pair is visible."""
    scores, visible = example()
    weights = kernel.weights(scores, visible)
    assert bool((weights >= 0).all())
    assert bool((weights[~visible] == 0).all())
    torch.testing.assert_close(weights.sum(-1), visible.any(-1).double(), rtol=0, atol=REORDERED_FLOAT64)


def hidden_pairs_have_no_influence(kernel: Kernel) -> None:
    """The scores of hidden pairs change no bit."""
    scores, visible = example()
    other = torch.where(visible, scores, 50.0)
    torch.testing.assert_close(kernel.weights(scores, visible), kernel.weights(other, visible), rtol=0, atol=0)


def follows_permutations(kernel: Kernel) -> None:
    """Pairs in another order have their weights in that order."""
    scores, visible = example()
    order = torch.randperm(PAIRS, generator=torch.Generator().manual_seed(1))
    moved = kernel.weights(scores[:, order], visible[:, order])
    torch.testing.assert_close(moved, kernel.weights(scores, visible)[:, order], rtol=0, atol=REORDERED_FLOAT64)


def keeps_the_order_of_scores(kernel: Kernel) -> None:
    """A larger score has no smaller weight, the largest one above 0."""
    scores, _ = example()
    ranked = kernel.weights(scores.sort(-1).values)
    assert bool((ranked.diff(dim=-1) >= 0).all())
    assert bool((ranked[:, -1] > 0).all())


def has_the_gradient_it_claims(kernel: Kernel) -> None:
    """Autograd's gradient is that of finite differences."""
    scores, visible = example()
    assert torch.autograd.gradcheck(
        lambda s: kernel.weights(s, visible), scores.clone().requires_grad_(), eps=1e-7, atol=1e-6
    )


def gives_nothing_at_its_floor(kernel: Kernel) -> None:
    """At or below `score_floor` the weight is 0."""
    scores, visible = example(scale=4.0)
    weights = kernel.weights(scores, visible)
    floor = kernel.score_floor(scores.masked_fill(~visible, -torch.inf).amax(-1, keepdim=True))
    assert bool((weights[visible & (scores <= floor)] == 0).all())


def agrees_with_its_row_functions(kernel: Kernel) -> None:
    """`forward` and `backward` of a `RowKernel` are `weights` and its gradient."""
    if not isinstance(kernel, RowKernel):
        return
    scores, visible = example()
    grad = torch.randn_like(scores)
    scores.requires_grad_()
    weights = kernel.weights(scores, visible)
    (expected,) = torch.autograd.grad(weights, scores, grad)
    scaled = kernel.score_scale * scores.detach().masked_fill(~visible, -torch.inf)
    weights, statistics = kernel.forward(scaled.clone(), Workspace())
    again, actual = kernel.backward(scaled, statistics, grad.clone(), Workspace())
    torch.testing.assert_close(weights, weights.detach(), rtol=0, atol=REORDERED_FLOAT64)
    torch.testing.assert_close(again, weights.detach(), rtol=0, atol=REORDERED_FLOAT64)
    torch.testing.assert_close(actual.masked_fill(~visible, 0.0), expected, rtol=0, atol=REORDERED_FLOAT64)
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
    """`kernel_from_config(kernel.to_config())` is the kernel: it is registered."""
    assert kernel_from_config(kernel.to_config()) == kernel


LAWS = {
    law.__name__: law
    for law in (
        is_a_distribution,
        hidden_pairs_have_no_influence,
        follows_permutations,
        keeps_the_order_of_scores,
        has_the_gradient_it_claims,
        gives_nothing_at_its_floor,
        agrees_with_its_row_functions,
        a_nan_is_not_hidden,
        survives_its_configuration,
    )
}
