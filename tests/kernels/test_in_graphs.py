"""Compiled and exported, where Python cannot look at numbers, kernels give the same weights and gradients."""

import pytest
import torch

from tests.covering import some
from tests.kernels.contract import all_kernels, identifier

pytestmark = pytest.mark.grid  # compiles

# Of each way to find the threshold, and of each other formula, one.
SOME = "normalized_relu-0.0 biweight knn-gaussian-3".split()
NUM_PAIRS = 70  # more than four groups of the threshold's search


def rows():
    """Scores of queries that see everything, ties, less than k pairs, one pair, nothing, and no positive score."""
    scores = 2 * torch.randn(6, NUM_PAIRS, dtype=torch.float64)
    visible = torch.ones(6, NUM_PAIRS, dtype=torch.bool)
    scores[1] = scores[1].round()
    visible[2, 2:] = visible[3, 1:] = visible[4] = False
    scores[5] = -scores[5].abs()
    return scores.requires_grad_(), visible


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the compiler's own
@some("kernel", all_kernels(), by_default=lambda kernel: identifier(kernel) in SOME, ids=identifier)
def test_one_graph_gives_the_same(kernel):
    torch._dynamo.reset()
    scores, visible = rows()
    above = torch.randn(6, NUM_PAIRS, dtype=torch.float64)
    results = []
    for weights in (kernel.weights, torch.compile(kernel.weights, backend="aot_eager", fullgraph=True)):
        result = weights(scores, visible)
        results.append((result.detach(), torch.autograd.grad((result * above).sum(), scores)[0]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)
