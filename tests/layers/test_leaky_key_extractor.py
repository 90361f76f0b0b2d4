"""Keys of leaky averages: weighted means beside sums."""

import torch

from tessera.layers.key_extractors import LeakyKeyExtractor
from tests.tolerances import REORDERED_FLOAT64

HEADS, WIDTH, STEPS, EPS = 2, 3, 7, 0.2


def extractor(**changes):
    torch.manual_seed(0)
    return LeakyKeyExtractor(6, HEADS, WIDTH, norm_eps=EPS, **changes).double()


def test_mean_keys_equal_their_definition_and_go_on_in_chunks():
    layer, x = extractor(mean=True), torch.randn(1, STEPS, 6, dtype=torch.float64)
    candidates = layer.projection(x).unflatten(-1, (HEADS, WIDTH))[0]
    decay = layer.decay()
    expected = torch.zeros(1, HEADS, STEPS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        for step in range(STEPS):
            weights = decay[head] ** torch.arange(step, -1, -1, dtype=torch.float64)
            mean = (weights[:, None] * candidates[: step + 1, head]).sum(0) / weights.sum()
            expected[0, head, step] = mean / (mean.norm() + EPS)
    keys, carry = layer(x)
    torch.testing.assert_close(keys, expected, rtol=0, atol=REORDERED_FLOAT64)
    first, carry = layer(x[:, :3])
    rest, _ = layer(x[:, 3:], carry)
    torch.testing.assert_close(torch.cat([first, rest], dim=2), expected, rtol=0, atol=REORDERED_FLOAT64)
    assert not torch.allclose(extractor()(x)[0], expected, atol=1e-3)  # with an epsilon the divisor counts
