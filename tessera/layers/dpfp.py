"""Deterministic parameter-free projection (DPFP), the feature map of ARMT's association matrices."""

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect
from tessera.base.shapes import Float
from tessera.ops.float16_autocast import widened


@explains_mistakes
def dpfp(x: Float[Tensor, "*rows K"], num_rolls: int = 3) -> Float[Tensor, "*rows P"]:
    """DPFP-nu: `r = [relu(x), relu(-x)]`, `phi(x) = concat_{j=1..nu} r * roll(r, j)` (ARMT, section 2).

    Schlag et al. 2021 (arXiv:2102.11174), equation 35; nu is `num_rolls`. All features are >= 0, and two inputs that
    differ in sign patterns have disjoint features, so that few stored keys collide.

    Args:
        x: (..., K). num_rolls: nu, 1 to 2 K - 1.
    Returns:
        (..., 2 nu K), in the dtype of `x` (float32 under float16's autocast). Cost: 2 nu K multiplications per vector.
    Raises:
        TesseraError: a number of rolls outside 1..2 K - 1 (a full turn gives the features of j = 0 again).

    >>> dpfp(torch.tensor([1.0, -2.0]), num_rolls=1)
    tensor([2., 0., 0., 0.])
    """
    x = widened(x)
    width = 2 * x.shape[-1]
    expect(1 <= num_rolls < width, "dpfp", "num_rolls", f"lie in 1..{width - 1} for width {x.shape[-1]}", num_rolls)
    signed = torch.cat([x, -x], dim=-1).relu()
    # One copy behind another makes every roll a view: roll(r, j)[i] = r[i - j].
    twice = torch.cat([signed[..., width - num_rolls :], signed], dim=-1)
    rolled = [twice[..., num_rolls - j : num_rolls - j + width] for j in range(1, num_rolls + 1)]
    return torch.cat([signed * view for view in rolled], dim=-1)


def dpfp_size(width: int, num_rolls: int = 3) -> int:
    """Number of features `2 nu K` of vectors of `width` K."""
    return 2 * num_rolls * width
