"""Every registered kernel keeps the contract and equals its oracle; wrong kernels do not."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tessera.base.errors import TesseraError
from tessera.kernels import KERNELS, Epanechnikov, Gaussian, Kernel, kernel_from_config
from tessera.testing.kernels import LAWS, example
from tests.kernels.contract import all_kernels, identifier
from tests.kernels.oracles import ORACLES, oracle
from tests.tolerances import REORDERED_FLOAT64

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
    torch.testing.assert_close(kernel.weights(scores, visible), expected, rtol=0, atol=REORDERED_FLOAT64)


def test_every_kernel_has_an_oracle():
    assert set(ORACLES) == set(KERNELS)


@dataclass(frozen=True)
class Zeros(Kernel):
    name: ClassVar[str] = "gaussian"

    def weights(self, scores, visible=None):
        return torch.zeros_like(scores) * scores


@dataclass(frozen=True)
class IgnoresTheMask(Gaussian):
    def weights(self, scores, visible=None):
        return torch.softmax(scores, -1)


@dataclass(frozen=True)
class LooksAtHiddenPairs(Gaussian):
    def weights(self, scores, visible=None):
        weights = torch.softmax(scores, -1)
        weights = weights if visible is None else weights * visible
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30) ** 0.999


@dataclass(frozen=True)
class ShiftedByOne(Gaussian):
    def weights(self, scores, visible=None):
        return super().weights(scores.roll(1, -1), visible)


@dataclass(frozen=True)
class Reversed(Gaussian):
    def weights(self, scores, visible=None):
        return super().weights(-scores, visible)


@dataclass(frozen=True)
class HalfTheGradient(Gaussian):
    def weights(self, scores, visible=None):
        return super().weights(scores / 2 + scores.detach() / 2, visible)


@dataclass(frozen=True)
class FloorTooHigh(Gaussian):
    def score_floor(self, largest):
        return largest - 1


@dataclass(frozen=True)
class RowGradientOfAnother(Gaussian):
    def backward(self, scaled, statistics, grad, workspace):
        weights, grad = super().backward(scaled, statistics, grad, workspace)
        return weights, grad * 1.01


@dataclass(frozen=True)
class TakesNaNForNoPair(Gaussian):
    def weights(self, scores, visible=None):
        return super().weights(scores.nan_to_num(nan=-torch.inf), visible)


@dataclass(frozen=True)
class ForgetsPairsBehindItsBlock(Gaussian):
    def weights(self, scores, visible=None):
        seen = torch.ones_like(scores, dtype=torch.bool) if visible is None else visible.expand(scores.shape)
        return super().weights(scores, seen & (torch.arange(scores.shape[-1]) < 64))


@dataclass(frozen=True)
class ForgetsThemInItsRows(Gaussian):
    def forward(self, scaled, workspace):
        weights, statistics = super().forward(scaled, workspace)
        weights[..., 64:] = 0
        return weights, statistics


@dataclass(frozen=True)
class RoundsLongRows(Gaussian):
    def weights(self, scores, visible=None):
        return super().weights(scores + scores.shape[-1] * scores.abs() / 1000, visible)


@dataclass(frozen=True)
class SumsTheSecondDimension(Gaussian):
    def weights(self, scores, visible=None):
        scores = self.masked(scores, visible).masked_fill(
            torch.zeros_like(scores, dtype=torch.bool) if visible is None else ~visible.any(-1, keepdim=True), 0.0
        )
        weights = torch.softmax(scores, 1)
        return weights if visible is None else weights.masked_fill(~visible, 0.0)


@dataclass(frozen=True)
class WritesIntoItsScores(Gaussian):
    def weights(self, scores, visible=None):
        if visible is not None and not scores.requires_grad:
            scores.masked_fill_(~visible, -torch.inf)
        return super().weights(scores, visible)


@dataclass(frozen=True)
class FarKeysCountMost(Gaussian):
    def affine(self, inverse_bandwidth):
        return -inverse_bandwidth, None


@dataclass(frozen=True)
class OneBandwidthForAllHeads(Gaussian):
    def affine(self, inverse_bandwidth):
        return inverse_bandwidth.mean().expand(inverse_bandwidth.shape), None


@dataclass(frozen=True)
class Overflows(Gaussian):
    def weights(self, scores, visible=None):
        responses = self.masked(scores, visible).exp()
        return (responses / responses.sum(-1, keepdim=True).clamp_min(1e-30)).to(scores.dtype)


@dataclass(frozen=True)
class HalfTheGradientInFloat32(Gaussian):
    def weights(self, scores, visible=None):
        return super().weights(scores if scores.dtype == torch.float64 else scores / 2 + scores.detach() / 2, visible)


@dataclass(frozen=True)
class WidensItsWeights(Gaussian):
    def weights(self, scores, visible=None):
        return super().weights(scores.float() if scores.dtype == torch.bfloat16 else scores, visible)


@dataclass(frozen=True)
class SubsetFloorTooHigh(Epanechnikov):
    def subset_floor(self, scores, visible=None):
        return self.masked(scores, visible).amax(-1) - 0.1


@dataclass(frozen=True)
class CountsHiddenPairs(Gaussian):
    def support_size(self, scores, visible=None):
        return super().support_size(scores)


@dataclass(frozen=True)
class TakesAScoreForABandwidth(Gaussian):
    def bandwidth(self, scores, inverse_bandwidth, visible=None):
        return self.masked(scores, visible).amin(-1)


@dataclass(frozen=True)
class ForgetsItsFields(Gaussian):
    def to_config(self):
        return {"name": "biweight"}


WRONG = {
    Zeros: {"is_a_distribution", "keeps_the_order_of_scores"},
    IgnoresTheMask: {"is_a_distribution", "hidden_pairs_have_no_influence"},
    LooksAtHiddenPairs: {"is_a_distribution", "hidden_pairs_have_no_influence"},
    ShiftedByOne: {"follows_permutations", "keeps_the_order_of_scores"},
    Reversed: {"keeps_the_order_of_scores"},
    HalfTheGradient: {"has_the_gradient_it_claims"},
    FloorTooHigh: {"gives_nothing_at_its_floor"},
    RowGradientOfAnother: {"agrees_with_its_row_functions"},
    TakesNaNForNoPair: {"a_nan_is_not_hidden"},
    ForgetsPairsBehindItsBlock: {"hidden_pairs_may_as_well_be_absent", "keeps_the_order_of_scores"},
    ForgetsThemInItsRows: {"agrees_with_its_row_functions"},
    RoundsLongRows: {"hidden_pairs_may_as_well_be_absent"},
    SumsTheSecondDimension: {"takes_rows_of_any_shape"},
    WritesIntoItsScores: {"takes_rows_of_any_shape"},
    FarKeysCountMost: {"near_keys_count_most"},
    OneBandwidthForAllHeads: {"near_keys_count_most"},
    Overflows: {"bears_large_scores"},
    HalfTheGradientInFloat32: {"computes_in_every_type"},
    WidensItsWeights: {"computes_in_every_type"},
    SubsetFloorTooHigh: {"gives_nothing_at_its_floor"},
    CountsHiddenPairs: {"tells_what_it_looks_at"},
    TakesAScoreForABandwidth: {"tells_what_it_looks_at"},
    ForgetsItsFields: {"survives_its_configuration"},
}


@pytest.mark.parametrize("kernel", WRONG, ids=lambda kernel: kernel.__name__)
def test_wrong_kernels_are_rejected(kernel):
    rejected = set()
    for name, law in LAWS.items():
        try:
            law(kernel())
        except AssertionError:
            rejected.add(name)
    assert rejected >= WRONG[kernel]


def test_every_check_rejects_some_wrong_kernel():
    assert set().union(*WRONG.values()) == set(LAWS)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "rectified_polynomial", "order": 0.5}, "order must be a finite number of at least 1; got 0.5"),
        ({"name": "relumax", "margin": 0}, "margin must be a finite positive number; got 0"),
        ({"name": "knn", "base": "box"}, "base must be one of gaussian, uniform; got 'box'"),
        ({"name": "knn", "k": 0}, "k must be an integer of at least 1; got 0"),
        ({"name": "biweight", "order": 3}, "unknown field 'order'"),
        ("epanechnikow", "Did you mean 'epanechnikov'"),
    ],
)
def test_configurations_that_are_refused(spec, message):
    with pytest.raises(TesseraError, match=message):
        kernel_from_config(spec)
