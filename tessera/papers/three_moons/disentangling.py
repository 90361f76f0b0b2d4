"""Whether each head follows one moon, and from which context length on the continuation is right."""

import math

import torch
from torch import Tensor, nn

from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.papers.three_moons.settings import INVERSE_BANDWIDTH
from tessera.papers.three_moons.task import MEAN_MODULUS, common_period, in_observations

# A head is dedicated to a moon that has at least this share of its squared moduli.
DEDICATED = 0.9
# "A few steps" after a period, and the level that counts as accurate.
LATER = 5
ACCURATE = 0.1


def layers(memory: LinearContextualMemory) -> dict[str, nn.Linear]:
    """The layers of the three matrices by their names in the paper."""
    assert memory.output is not None, "the experiment's memories have an output layer"
    return {"W_phi": memory.key_extractor, "W_psi": memory.value_extractor, "W_z": memory.output}


def weights(memory: LinearContextualMemory) -> dict[str, list]:
    """The three matrices, JSON-ready: [real, imaginary] for each complex entry, a number for each real one."""
    matrices = {name: layer.weight.detach() for name, layer in layers(memory).items()}
    return {name: (torch.view_as_real(one) if one.is_complex() else one).tolist() for name, one in matrices.items()}


def matrices_of(stored: dict[str, list]) -> dict[str, Tensor]:
    """W_phi and W_psi (rows: complex components of the heads, columns: moons) and W_z (the other way round)."""
    return {name: torch.view_as_complex(torch.tensor(pairs)) for name, pairs in stored.items()}


def moduli(stored: dict[str, list]) -> dict[str, Tensor]:
    """How much of each moon there is in each head's component; of real matrices the norms of their 2 x 2 blocks."""
    if torch.tensor(stored["W_phi"]).ndim == 3:
        return {name: matrix.abs() for name, matrix in matrices_of(stored).items()}
    blocks = {name: torch.tensor(rows).unflatten(0, (-1, 2)).unflatten(2, (-1, 2)) for name, rows in stored.items()}
    return {name: block.square().sum((1, 3)).sqrt() for name, block in blocks.items()}


def dedication(stored: dict[str, list]) -> list[int | None]:
    """For each head of one complex component the moon (0, 1, 2) that it is dedicated to, or None, given the `weights`.

    The share of moon m in head h is `|W_hm|^2 / sum_n |W_hn|^2` (in W_z: `|W_mh|^2 / sum_n |W_nh|^2`). A head is
    dedicated to m if this share is at least 0.9 in W_phi, in W_psi and in W_z.
    """
    parts = moduli(stored)
    power = torch.stack([parts["W_phi"], parts["W_psi"], parts["W_z"].mT]).square()
    share = (power / power.sum(-1, keepdim=True)).amin(0)
    return [int(row.argmax()) if row.max() >= DEDICATED else None for row in share]


def disentangled(moons: list[int | None]) -> bool:
    """Whether every head is dedicated, each to another moon."""
    return None not in moons and len(set(moons)) == len(moons)


def gains(stored: dict[str, list]) -> dict[str, float]:
    """What a disentangled network does to a moon between memory and prediction, given its `weights`.

    `turn`: the mean angle of the diagonal of W_z W_psi, positive when predictions run ahead (angles of observations
    fall with time, since they hold the sine first). `leak`: its largest modulus off the diagonal. `width`: the mean of
    `1 / (sqrt(beta) |w|)`, the angular width of a head's kernel, with beta = 50 and w its largest entry of W_phi.
    """
    matrix = matrices_of(stored)
    product = matrix["W_z"] @ matrix["W_psi"]
    off = product.abs() * (1 - torch.eye(len(product)))
    width = (INVERSE_BANDWIDTH**0.5 * matrix["W_phi"].abs().amax(1)).reciprocal()
    return {"turn": -product.diagonal().angle().mean().item(), "leak": off.max().item(), "width": width.mean().item()}


def levels(curve: list[float], periods: tuple[float, ...]) -> dict[str, float | int | None]:
    """What a curve of errors says; entry c - 1 is for c observations.

    `early`: mean up to the shortest period. `after_slowest`, `after_common`: 5 observations after the longest and the
    common period, as shares of `early`, or of the error of always saying 0 if that is less (continuations of some
    networks explode early, and would look accurate beside that). `accurate_from`: the least context length from which
    on the error stays below a tenth of the same. None where the curve is too short, or never accurate.
    """
    shortest, slowest = in_observations(min(periods)), in_observations(max(periods))
    start = curve[: math.floor(shortest)]
    early = sum(start) / len(start)
    usual = min(early, MEAN_MODULUS)

    def share_after(period: float) -> float | None:
        context = math.ceil(period) + LATER
        return curve[context - 1] / usual if context <= len(curve) else None

    wrong = [context for context, error in enumerate(curve, 1) if error >= ACCURATE * usual]
    last = wrong[-1] if wrong else 0
    return {
        "early": early,
        "after_slowest": share_after(slowest),
        "after_common": share_after(in_observations(common_period(periods))),
        "accurate_from": last + 1 if last < len(curve) else None,
    }
