"""What the index recalls is what a scan of all pairs in float64 gives, and it says so itself."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tessera.recall
from tessera.base.errors import TesseraError
from tessera.kernels import EntmaxOfRows, kernel_from_config
from tessera.ops.kernel_regression import Window
from tessera.recall import leaves as leaves_module
from tessera.recall import search
from tests.refusals import refused

KERNELS = {  # with an affine map of similarities that leaves a few pairs
    "sparsemax": (40.0, 0.0),
    "biweight": (40.0, 0.0),
    "triweight": (20.0, 0.0),
    "relumax": (10.0, 0.0),
    "gaussian_knn": (5.0, 0.0),
    "uniform_knn": (5.0, 0.0),
    "normalized_relu": (10.0, -9.0),
}


pytestmark = pytest.mark.usefixtures("small_blocks")


def random(*shape, seed=0, dtype=torch.double):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed)).to(dtype)


def near_a_plane(heads, count, width, seed=0):
    """Unit keys that vary in three directions, as those of trained memories vary in few."""
    spread = random(heads, count, 3, seed=seed) @ random(heads, 3, width, seed=seed + 1)
    return torch.nn.functional.normalize(spread + 0.02 * random(heads, count, width, seed=seed + 2), dim=-1)


def scan(queries, keys, values, kernel, slope, intercept, window=None, query_offset=0, **documents):
    """(output, weights) over all pairs in float64, each scored alone: equal keys have equal scores."""
    queries, keys, values = queries.double(), keys.double(), values.double()
    scores = (queries.unsqueeze(2) * keys.unsqueeze(1)).sum(-1) * slope + intercept
    age = query_offset + torch.arange(queries.shape[1])[:, None] - torch.arange(keys.shape[1])
    visible = torch.ones_like(age, dtype=torch.bool)
    if window is not None:
        visible = (age >= window.delay) & (age < (window.span or 1 << 60))
    if documents:
        of_pairs = documents["pair_documents"]
        visible = visible & (documents["query_documents"][:, None] == of_pairs) & (of_pairs >= 0)
    weights = kernel_from_config(kernel).weights(scores, visible.expand_as(scores)) if keys.shape[1] else scores
    return weights @ values, weights


def check(recalled, output, weights, atol=1e-9):
    torch.testing.assert_close(recalled.output.double(), output, rtol=0, atol=atol)
    assert recalled.certificate.is_exact
    for head in range(weights.shape[0]):
        for query in range(weights.shape[1]):
            places, ours = recalled.support.of(head, query)
            theirs = weights[head, query]
            certain = (theirs > atol).nonzero().squeeze(1)
            assert set(certain.tolist()) <= set(places.tolist())
            torch.testing.assert_close(ours.double(), theirs[places], rtol=0, atol=atol)


@pytest.mark.parametrize("kernel", KERNELS)
def test_recall_is_the_scan_and_reads_few_pairs(kernel):
    keys, values = near_a_plane(2, 1500, 12), random(2, 1500, 3, seed=9)
    queries = torch.nn.functional.normalize(keys[:, 100:101] + 0.01 * random(2, 4, 12, seed=5), dim=-1)
    index = tessera.recall.build(keys, values)
    slope, intercept = KERNELS[kernel]
    slope, intercept = 5 * slope, 5 * intercept - (4 if intercept else 0)
    recalled = index.recall(queries, kernel=kernel, slope=slope, intercept=intercept)
    check(recalled, *scan(queries, keys, values, kernel, slope, intercept))
    assert recalled.certificate.pairs_read.max() < 800, "the bounds leave most leaves out"
    assert (recalled.certificate.pairs_in_support <= recalled.certificate.pairs_read).all()


@pytest.mark.parametrize("kernel", ["sparsemax", "gaussian_knn"])
def test_autocast_changes_no_bound_and_no_score(kernel):
    """Products in bfloat16 would rule out leaves that hold pairs with weight, and the certificate would not know."""
    keys, values = near_a_plane(2, 1500, 12).float(), random(2, 1500, 3, seed=9, dtype=torch.float32)
    queries = torch.nn.functional.normalize(keys[:, ::300] + 0.01 * random(2, 5, 12, seed=5).float(), dim=-1)
    results = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            index = tessera.recall.build(keys, values)
            recalled = index.recall(queries, kernel=kernel, slope=5 * KERNELS[kernel][0])
        parts = [*vars(recalled.certificate).values(), recalled.support.places, recalled.output]
        results.append([*parts, *(leaves.codes for leaves in index.blocks)])
    assert results[0][0].max() > 0
    for plain, autocast in zip(*results, strict=True):
        assert torch.equal(autocast, plain)


DRAWN = {
    "kernel": sorted(KERNELS),
    "count": range(401),
    "kind": ["plane", "random", "equal", "few", "zeros", "scaled"],
    "dtype": [torch.double, torch.float32, torch.bfloat16],
    "pieces": range(1, 5),
    "window": [None, Window(), Window(delay=5), Window(delay=2, span=60)],
    "with_documents": [False, True],
    "sharpness": [0.05, 1.0, 10.0],
    "seed": range(10_001),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**{name: st.sampled_from(values) for name, values in DRAWN.items()})
def test_hard_pairs_are_recalled_exactly(**drawn):
    check_hard_pairs(3, **drawn)


def test_pairs_that_all_tie_at_zero_are_not_taken_for_lower_ones():
    """The floor of neighbours is just below 0; divided by a slope it was 0, and the most recent of equals were lost."""
    options = {"kernel": "uniform_knn", "count": 370, "kind": "zeros", "dtype": torch.double, "window": Window(delay=1)}
    check_hard_pairs(1, **options, pieces=1, with_documents=False, sharpness=10.0, seed=6791)


@pytest.mark.slow
def test_a_hundred_thousand_queries_are_answered_exactly():
    draw = Random(0)
    for _ in range(1000):
        drawn = {name: draw.choice(values) for name, values in DRAWN.items()}
        check_hard_pairs(draw.choice((1, 8, 16, 200)), **drawn)  # of two heads: 112,500 on average


def check_hard_pairs(num_queries, kernel, count, kind, dtype, pieces, window, with_documents, sharpness, seed):
    keys = near_a_plane(2, count, 6, seed) if count else torch.zeros(2, 0, 6, dtype=torch.double)
    if kind == "random":
        keys = random(2, count, 6, seed=seed)
    elif kind == "equal":
        keys = keys[:, :1].expand(-1, count, -1)
    elif kind == "few":  # duplicates: most keys tie
        keys = keys[:, torch.arange(count) % 5] if count > 5 else keys
    elif kind == "zeros":
        keys = keys * (torch.arange(count) % 3 > 0).view(-1, 1)
    elif kind == "scaled":  # one key far outside of all others
        keys = keys * (1 + 50.0 * (torch.arange(count) == count // 2)).view(-1, 1)
    keys, values = keys.to(dtype), random(2, count, 3, seed=seed + 3).to(dtype)
    queries = random(2, num_queries, 6, seed=seed + 4).to(dtype)
    if count:
        queries[:, 0] = keys[:, count // 3]
    documents = (torch.arange(count) * 3 // max(count, 1)) - (torch.arange(count) % 7 == 6).long()
    options = {"window": window, "query_offset": count // 2}
    pair_documents = documents if with_documents else None
    if with_documents:
        options["query_documents"] = torch.arange(num_queries) % 3
    borders = [round(count * piece / pieces) for piece in range(pieces + 1)]
    cut = [slice(first, last) for first, last in pairwise(borders)]
    part = [None if pair_documents is None else pair_documents[piece] for piece in cut]
    index = tessera.recall.build(keys[:, cut[0]], values[:, cut[0]], part[0])
    for piece, of_piece in zip(cut[1:], part[1:]):
        index = index.append(keys[:, piece], values[:, piece], of_piece)
    slope, intercept = (sharpness * number for number in KERNELS[kernel])
    recalled = index.recall(queries, kernel=kernel, slope=slope, intercept=intercept, **options)
    if with_documents:
        options["pair_documents"] = documents
    output, weights = scan(queries, keys, values, kernel, slope, intercept, **options)
    if dtype == torch.double:
        check(recalled, output, weights)
    elif "knn" not in kernel:  # of neighbours that tie up to rounding, either is right
        size = float(keys.double().norm(dim=-1).max()) if count else 1.0
        precision = {torch.float32: 2e-5, torch.bfloat16: 2e-2}[dtype]
        error = (recalled.output.double() - output).abs().max() if count else torch.zeros(())
        assert error <= precision * (1 + slope * size), "rounding of scores, times how steep the kernel is"
        assert recalled.certificate.is_exact


def test_the_rounding_of_a_product_decides_no_tie(monkeypatch):
    """Of equal keys the most recent are the nearest, in whatever last bits a product of matrices gives their scores."""
    read = search._Reader._unfiled

    def rounded_otherwise(self):
        candidates = read(self)
        bits = (torch.arange(len(candidates.scores)) % 3 - 1).double()
        return replace(candidates, scores=candidates.scores * (1 + 2e-16 * bits))

    monkeypatch.setattr(search._Reader, "_unfiled", rounded_otherwise)
    keys = near_a_plane(1, 1, 6).expand(-1, 31, -1)
    recalled = tessera.recall.build(keys, random(1, 31, 2)).recall(keys[:, :1], kernel="gaussian_knn", slope=3.0)
    assert recalled.support.of(0, 0)[0].tolist() == list(range(15, 31))


@pytest.mark.parametrize("outside", [0.0, 1e-6, 1e-4, 0.3])
@pytest.mark.parametrize("length", [1e-3, 1.0, 50.0])
def test_no_key_of_a_leaf_is_more_similar_than_its_bound(outside, length):
    """In float32, for keys that all but lie in a few directions: what is left of them has few correct digits."""
    keys = random(2, 512, 3) @ random(2, 3, 24, seed=1) + outside * random(2, 512, 24, seed=2)
    keys = torch.nn.functional.normalize(keys, dim=-1).float() * length
    queries = torch.cat([random(2, 40, 24, seed=3), keys[:, :40].double(), torch.zeros(2, 1, 24)], 1).float()
    leaves = leaves_module.Leaves.of(keys, 0)
    lengths = queries.norm(dim=-1, keepdim=True)
    directions = leaves.coordinates(queries / lengths.clamp(min=1e-30))
    rounding = leaves.rounding(lengths, 24)
    bounds = (leaves.largest_similarities(directions, lengths) + rounding).double()
    similarities = queries.double() @ leaves.keys.double().flatten(1, 2).mT
    of_leaf = similarities.view(2, 81, -1, leaves.keys.shape[2]).amax(-1)
    assert (bounds >= of_leaf).all()
    excess = (bounds - of_leaf) / (queries.double().norm(dim=-1) * length).clamp(min=1e-30).unsqueeze(-1)
    assert excess.median() < 0.3, "and the bounds are of use"
    of_key = (lengths * directions[:, 0]) @ leaves.codes.flatten(1, 2).mT + rounding
    assert (of_key.double() >= similarities).all()


def test_a_kernel_narrower_than_rounding_finds_its_pair():
    """Keys in three directions, whose bounds are their similarities: nothing but the margin for rounding keeps them."""
    keys = torch.nn.functional.normalize(random(1, 1500, 3) @ random(1, 3, 24, seed=1), dim=-1).float()
    index = tessera.recall.build(keys, torch.arange(1500.0).view(1, -1, 1))
    for place in range(0, 1500, 70):
        recalled = index.recall(keys[:, place : place + 1], kernel="sparsemax", slope=1e5)
        similarities = keys[0].double() @ keys[0, place].double()
        places, _ = recalled.support.of(0, 0)
        assert similarities[places].min() > similarities.max() - 2e-5, place


def test_the_gaussian_says_how_much_weight_it_may_have_left_out():
    keys, values = near_a_plane(2, 1500, 12), random(2, 1500, 3, seed=9)
    recalled = tessera.recall.build(keys, values).recall(keys[:, 3:5], kernel="gaussian", slope=400.0, tolerance=1e-4)
    output, weights = scan(keys[:, 3:5], keys, values, "gaussian", 400.0, 0.0)
    assert not recalled.certificate.is_exact
    assert (recalled.certificate.pairs_read < 1500).all()
    for head in range(2):
        for query in range(2):
            places = recalled.support.of(head, query)[0]
            dropped = 1 - weights[head, query, places].sum()
            assert dropped <= recalled.certificate.dropped_weight[head, query] + 1e-4
    torch.testing.assert_close(recalled.output, output, rtol=0, atol=1e-3)


def test_of_a_query_that_sees_no_pair_nothing_is_left_out():
    """That was not a number, so that no certificate was exact which held the first query of a window."""
    keys, values = near_a_plane(2, 1500, 12), random(2, 1500, 3, seed=9)
    index = tessera.recall.build(keys, values)
    recalled = index.recall(keys[:, :2], kernel="gaussian", slope=1.0, window=Window(delay=1), tolerance=0.0)
    assert recalled.certificate.dropped_weight.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert recalled.certificate.is_exact


@pytest.mark.parametrize("kernel", ["gaussian", "gaussian_knn", "sparsemax", "triweight"])
def test_a_wide_head_beside_a_narrow_one_changes_no_certificate(kernel):
    """Rows of many candidates and of few are solved apart: each by its own floor, rounding and unread leaves."""
    keys, values = near_a_plane(2, 1500, 12), random(2, 1500, 3, seed=9)
    slopes, options = torch.tensor([[200.0], [2000.0]]).double(), {"kernel": kernel, "tolerance": 1e-4}

    def asked(heads):
        index = tessera.recall.build(keys[heads], values[heads])
        return index.recall(keys[heads, 3:5], slope=slopes[heads], intercept=0 * slopes[heads], **options)

    both = asked(slice(0, 2))
    for head in range(2):
        alone = asked(slice(head, head + 1))
        torch.testing.assert_close(both.output[head], alone.output[0], rtol=0, atol=1e-12)
        for name, column in vars(alone.certificate).items():
            rounding = 1e-12 if name == "dropped_weight" else 1e-14  # of an exponential, of a score
            torch.testing.assert_close(getattr(both.certificate, name)[head], column[0], rtol=rounding, atol=0)


def test_keys_by_chance_are_scanned_after_a_few_rounds(monkeypatch):
    rounds, read = [], search._Reader._read_leaves
    monkeypatch.setattr(
        search._Reader,
        "_read_leaves",
        lambda self, needed, floor: rounds.append(int(needed.sum())) or read(self, needed, floor),
    )
    keys = torch.nn.functional.normalize(random(1, 2048, 24), dim=-1)
    recalled = tessera.recall.build(keys, random(1, 2048, 2)).recall(keys[:, :1], kernel="triweight", slope=2.0)
    assert recalled.certificate.pairs_read.item() == 2048
    assert rounds == [2, 8], "leaves, of 256"


@pytest.mark.parametrize(("query", "slope", "rounds"), [(5, 20.0, [2, 16]), (77, 60.0, [2, 14]), (77, 20.0, [2, 8, 9])])
def test_a_query_reads_few_leaves_at_once_and_of_many_the_best_first(query, slope, rounds, monkeypatch):
    """Few are at most 16 of 256, more than the 8 that tell of the others."""
    seen, read = [], search._Reader._read_leaves
    monkeypatch.setattr(
        search._Reader,
        "_read_leaves",
        lambda self, needed, floor: seen.append(int(needed[0].sum())) or read(self, needed, floor),
    )
    keys = near_a_plane(2, 2048, 12)
    index = tessera.recall.build(keys, random(2, 2048, 2))
    index.recall(keys[:, query : query + 1], kernel="biweight", slope=slope)
    assert seen == rounds


@pytest.mark.parametrize("wide", [0, 1, 2], ids="head {} by chance".format)
@pytest.mark.parametrize("kernel", ["gaussian", *KERNELS])
def test_heads_with_keys_by_chance_are_scanned_and_the_others_pruned(kernel, wide, monkeypatch):
    """Whether all pairs are read is a question to each head; a scan keeps what the pairs behind the leaves have."""
    scanned, scan_heads = [], search._Reader._scanned
    monkeypatch.setattr(
        search._Reader, "_scanned", lambda self, heads, *args: scanned.extend(heads) or scan_heads(self, heads, *args)
    )
    keys, values = near_a_plane(3, 2061, 24), random(3, 2061, 2, seed=9)
    keys[wide] = torch.nn.functional.normalize(random(2061, 24, seed=5), dim=-1)
    slope, intercept = KERNELS.get(kernel, (40.0, 0.0))
    queries = keys[:, 40:43].clone()
    queries[wide] = torch.nn.functional.normalize(random(3, 24, seed=6), dim=-1)
    options = {"kernel": kernel, "slope": slope, "intercept": intercept}
    recalled = tessera.recall.build(keys, values).recall(queries, **options, window=Window(2), query_offset=2061)
    assert scanned == [wide]
    output, weights = scan(queries, keys, values, kernel, slope, intercept, Window(2), 2061)
    if kernel == "gaussian":
        torch.testing.assert_close(recalled.output, output, rtol=0, atol=1e-5)
        torch.testing.assert_close(recalled.output[wide], output[wide], rtol=0, atol=1e-12)
        assert recalled.certificate.dropped_weight[wide].max() == 0
    else:
        check(recalled, output, weights)
    of_heads = recalled.certificate.pairs_read.amax(1)
    assert [read > 2061 / 2 for read in of_heads.tolist()] == [head == wide for head in range(3)], of_heads


def test_gradients_are_those_of_the_scan():
    tensors = [x.requires_grad_() for x in (near_a_plane(2, 700, 8), random(2, 700, 3, seed=9), random(2, 4, 8))]
    keys, values, queries = tensors
    recalled = tessera.recall.build(keys, values).recall(queries, kernel="biweight", slope=20.0)
    ours = torch.autograd.grad(recalled.output.sin().sum(), tensors)
    output = tessera.kernel_regression(queries[None], keys[None], values[None], kernel="biweight", slope=20.0)
    for mine, theirs in zip(ours, torch.autograd.grad(output.sin().sum(), tensors)):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_each_head_may_have_a_learned_alpha(at_once, monkeypatch):
    monkeypatch.setattr(search, "SCORES_AT_ONCE", at_once * 3 * 600)
    keys, values, queries = near_a_plane(3, 600, 8), random(3, 600, 5), near_a_plane(3, 11, 8, seed=5)
    kernel = EntmaxOfRows(torch.tensor([1.2, 1.5, 2.0], dtype=torch.double)[:, None, None])
    output, weights = scan(queries, keys, values, kernel, 40.0, 0.0)
    check(tessera.recall.build(keys, values).recall(queries, kernel=kernel, slope=40.0), output, weights)


def test_bandwidths_are_those_of_the_operation():
    keys, values = near_a_plane(2, 90, 8), random(2, 90, 3, seed=9)
    index, options = tessera.recall.build(keys, values), {"kernel": "normalized_relu", "inverse_bandwidth": 4.0}
    expected = tessera.kernel_regression(keys[None, :, :5], keys[None], values[None], **options)[0]
    torch.testing.assert_close(index.recall(keys[:, :5], **options).output, expected, rtol=0, atol=1e-12)
    with pytest.raises(TesseraError, match="recall: intercept must be given beside a slope"):
        index.recall(keys[:, :5], kernel="normalized_relu", slope=8.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queries": torch.zeros(2, 1, 5)}, "queries"),
        ({"slope": -1.0}, "slope"),
        ({"tolerance": -1e-6}, r"tolerance must lie in \[0, 1\); got -1e-06"),  # 32 leaves were read, and no more
        ({"tolerance": torch.nan}, "tolerance"),
        ({"query_documents": torch.zeros(1, dtype=torch.long)}, "query_documents must be given where .* got some, of"),
        ({"kernel": "nothing"}, "unknown kernel"),
        ({"kernel": EntmaxOfRows(torch.full((3, 1), 1.5))}, r"'entmax of rows' must broadcast to \(2, 1, 1\)"),
        ({"query_offset": 0.5}, "query_offset must be an integer of at least 0; got 0.5"),
        ({"window": Window(delay=torch.tensor([1, 2]))}, "delay"),
    ],
)
def test_mistakes_are_named(change, message):
    index = tessera.recall.build(near_a_plane(2, 20, 6), random(2, 20, 3))
    arguments = {"queries": random(2, 1, 6), "kernel": "sparsemax", "slope": 1.0, **change}
    refused(message, index.recall, arguments.pop("queries"), **arguments)


def test_pairs_of_another_kind_than_those_of_the_index_are_refused():
    """Widths and heads of 1 and other number formats would be copied into the buffers without a word."""
    keys, values = random(2, 20, 6), random(2, 20, 3)
    index = tessera.recall.build(keys, values)
    others = [(keys[..., :1], values), (keys, values[..., :1]), (keys[:1], values[:1]), (keys.float(), values.float())]
    for other in others:
        for add in (lambda: index.append(*other), lambda: index.merge(tessera.recall.build(*other))):  # noqa: B023
            refused("keys and values must be as those of the index", add)
    refused("floating-point", tessera.recall.build, keys.int(), values.int())
    for nothing in ((keys[:0], values[:0]), (keys[..., :0], values)):
        refused(r"keys and values must be \(H, N, K\)", tessera.recall.build, *nothing)


def test_places_and_documents_are_whole_numbers_of_any_size():
    keys, values = random(2, 20, 6), random(2, 20, 3)
    index = tessera.recall.build(keys, values, torch.zeros(20, dtype=torch.long))
    assert index.delete(torch.tensor([3], dtype=torch.int32)).kept.tolist() == [place != 3 for place in range(20)]
    for places in (torch.ones(20, dtype=torch.bool), torch.tensor([0.5])):
        refused("places", index.delete, places)
    with pytest.raises(TesseraError, match=r"lie in 0..19; got \[20, 21, 22\]\.$"):  # not all that are there
        index.delete(torch.arange(10_000))
    for documents in (torch.zeros(9, dtype=torch.long), torch.zeros(20)):
        refused(r"documents must be integers \(20,\)", tessera.recall.build, keys, values, documents)
    for documents in (torch.zeros(9, dtype=torch.long), torch.zeros(1)):
        with pytest.raises(TesseraError, match="query_documents must be integers"):
            index.recall(keys[:, :1], kernel="sparsemax", slope=1.0, query_documents=documents)


def test_the_support_of_a_query_that_is_not_there_is_not_that_of_another():
    recalled = tessera.recall.build(random(2, 20, 6), random(2, 20, 3)).recall(random(2, 3, 6), kernel="knn", slope=1.0)
    assert len(recalled.support.of(1, 2)[0]) > 0
    for head, query in ((0, 3), (-1, 0), (2, 0), (0, -1)):
        refused(r"lie in a support of \(2, 3\)", recalled.support.of, head, query)


def test_no_query_is_answered_by_nothing():
    index = tessera.recall.build(random(2, 5000, 6), random(2, 5000, 3))
    for kernel in ("sparsemax", "gaussian", "knn"):
        recalled = index.recall(random(2, 0, 6), kernel=kernel, slope=1.0)
        assert recalled.output.shape == (2, 0, 3)
        assert recalled.certificate.is_exact


def test_a_query_may_be_trained_while_pairs_are_appended():
    """What autograd kept of the index is what it was."""
    keys, values, queries = random(2, 40, 6), random(2, 40, 3), random(2, 4, 6).requires_grad_()
    index = tessera.recall.build(keys[:, :20], values[:, :20]).append(keys[:, 20:30], values[:, 20:30])
    output = index.recall(queries, kernel="biweight", slope=2.0).output
    index.append(keys[:, 30:], values[:, 30:])
    (actual,) = torch.autograd.grad(output.sin().sum(), queries)
    output = tessera.recall.build(keys[:, :30], values[:, :30]).recall(queries, kernel="biweight", slope=2.0).output
    torch.testing.assert_close(actual, *torch.autograd.grad(output.sin().sum(), queries), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_floor_of_a_part_of_the_scores_is_one_of_all(kernel):
    """What `Kernel.subset_floor` promises, with scores on both sides of it, and without digits left."""
    kernel = kernel_from_config(kernel)
    for scores in (random(50, 40, seed=3) * 3, random(50, 40, seed=3) * 1e30):
        floors, weights = kernel.subset_floor(scores[:, ::4]), kernel.weights(scores)
        assert not ((scores <= floors.unsqueeze(1)) & (weights > 0)).any()


@pytest.mark.parametrize("kernel", ["sparsemax", "biweight", "triweight"])
def test_the_floor_of_all_scores_is_where_weights_begin(kernel):
    """Also where few of many scores come near the largest: the others are left out first."""
    kernel, scores = kernel_from_config(kernel), random(20, 3000, seed=3)
    for slope in (3.0, 100.0):
        floors, weights = kernel.subset_floor(slope * scores), kernel.weights(slope * scores)
        assert torch.equal(slope * scores > floors.unsqueeze(1) + 1e-9, weights > 0)
