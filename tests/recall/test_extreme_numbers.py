"""Keys, queries and scores that are huge, infinite or no numbers."""

import pytest
import torch

import tessera.recall
from tessera.base.errors import TesseraError
from tessera.ops.kernel_regression import Window
from tessera.recall import PairIndex
from tessera.recall.pair_store import PairStore
from tests.recall.test_recall import KERNELS, near_a_plane, random, scan
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.mark.parametrize("slope", [80.0, 1e10, 1e20, 1e30])
def test_the_gaussian_finds_the_nearest_pair_where_scores_are_so_large_that_they_round_a_share_away(slope):
    """The floor was the largest score itself: no pair was above it, the answer 0 and the weight left out 0."""
    keys, values = near_a_plane(2, 3000, 16).float(), random(2, 3000, 4, dtype=torch.float32)
    queries = keys[:, [7, 1234]]
    recalled = tessera.recall.build(keys, values).recall(queries, kernel="gaussian", slope=slope)
    assert int(recalled.certificate.pairs_read.max()) < 3000
    if slope > 100:
        torch.testing.assert_close(recalled.output, values[:, [7, 1234]])
    assert bool((recalled.certificate.pairs_in_support > 0).all())


@pytest.mark.parametrize("kernel", [*KERNELS, "gaussian", "epanechnikov", "entmax"])
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("window", [None, Window(delay=1, span=700)])
def test_a_query_that_is_no_number_recalls_what_the_scan_does(kernel, number, window):
    """NaN, but for the nearest of pairs that are infinitely similar, which all have one weight."""
    keys, values = near_a_plane(2, 3000, 16), random(2, 3000, 4)
    queries = keys[:, [7, 1234, 2900]]
    queries[0, 1, 3] = number
    index, offset = tessera.recall.build(keys, values), 2990 if window else 0
    options = {"kernel": kernel, "slope": 40.0, "intercept": 0.0, "window": window, "query_offset": offset}
    recalled = index.recall(queries, **options).output
    scanned, _ = scan(queries, keys, values, kernel, 40.0, 0.0, window, offset)
    assert bool(scanned[0, 1].isnan().all()) or kernel == "uniform_knn"
    dropped = 1e-5 if kernel == "gaussian" else 1e-9
    torch.testing.assert_close(recalled, scanned, equal_nan=True, rtol=0, atol=dropped)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_visible_nan_is_no_pair_that_is_not_there(kernel):
    """As in the scan: a key makes NaN of every query that sees it, filed or not; a query of its own answer alone."""
    keys, values = near_a_plane(1, 700, 8), random(1, 700, 3, seed=9)
    slope, intercept = KERNELS[kernel]
    options = {"kernel": kernel, "slope": 20 * slope, "intercept": intercept, "window": Window()}
    for place in (3, 699):
        spoiled = keys.clone()
        spoiled[0, place, 0] = torch.nan
        index = PairIndex(PairStore.of(spoiled[None], values[None])).with_all_filed()
        for offset in (1, 600, 700):
            recalled = index.recall(keys[:, 40:41], query_offset=offset, **options)
            assert bool(recalled.output.isnan().any()) == (place < offset), (place, offset)
    queries = keys[:, 40:43].clone()
    queries[0, 1, 0] = torch.nan
    recalled = tessera.recall.build(keys, values).recall(queries, query_offset=700, **options)
    assert recalled.output[0].isnan().all(1).tolist() == [False, True, False]


def test_keys_whose_squares_overflow_are_filed():
    keys, values = near_a_plane(1, 600, 12).float(), random(1, 600, 3).float()
    recalled = tessera.recall.build(1e25 * keys, values).recall(keys[:, 7:10], kernel="biweight", slope=1e-23)
    expected = tessera.recall.build(keys, values).recall(keys[:, 7:10], kernel="biweight", slope=100.0)
    torch.testing.assert_close(recalled.output, expected.output, rtol=1e-3, atol=1e-4)


def test_keys_that_are_no_numbers_are_refused():
    refused("finite", tessera.recall.build, torch.full((1, 3, 2), float("nan")), torch.zeros(1, 3, 2))
    index = tessera.recall.build(torch.ones(1, 3, 2), torch.zeros(1, 3, 2))
    with pytest.raises(TesseraError, match="keys must be finite; got NaN or infinity"):
        index.append(torch.full((1, 3, 2), -torch.inf), torch.zeros(1, 3, 2))
