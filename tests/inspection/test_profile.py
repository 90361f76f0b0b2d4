"""Pictures hold the trace's numbers; a notebook shows the page."""

import html
import re
from dataclasses import replace

import pytest
import torch

from tessera.inspection import recall_map, recalled_text, recency_profile
from tessera.inspection.trace import MemoryTrace
from tests.inspection.pages import mosaic_trace
from tests.refusals import refused


def test_recency_profile():
    memory = mosaic_trace().memories[0]
    lines = recency_profile(memory).get_lines()
    assert len(lines) == 3
    assert lines[0].get_xdata().tolist()[:3] == [1, 2, 4]
    torch.testing.assert_close(torch.as_tensor(lines[2].get_ydata()), memory.ages.mean(0))
    refused("recall pairs of the text", recency_profile, mosaic_trace().memories[1])


def test_weights_by_age_are_means_over_the_pairs_of_that_age():
    trace = mosaic_trace()
    memory, steps = trace.memories[0], len(trace.tokens)
    dense = torch.zeros(steps, steps)
    for query in range(steps):
        pairs, weights = memory.recalled(query, 1)
        dense[query, pairs.long()] = weights
    ages = torch.arange(steps)[:, None] - torch.arange(steps)
    for place, (low, high) in enumerate([(1, 1), (2, 3), (4, 7)]):
        inside = (ages >= low) & (ages <= high)
        torch.testing.assert_close(memory.ages[1, place], dense[inside].mean(), rtol=1e-4, atol=1e-6)


def test_recall_map():
    trace = mosaic_trace()
    image = torch.as_tensor(recall_map(trace, trace.memories[0], 1).get_images()[0].get_array())
    pairs, weights = trace.memories[0].recalled(30, 1)
    torch.testing.assert_close(image[30, pairs.long()].float(), weights)
    assert image[30].sum() == pytest.approx(weights.sum().item(), abs=1e-5)
    refused(r"head must lie in 0\.\.1", recall_map, trace, trace.memories[0], 2)
    no_weights = MemoryTrace("network", 0, "network", False)
    refused("memory must have weights over stored pairs; got network", recall_map, trace, no_weights, 0)


@pytest.mark.parametrize(("query", "head"), [(0, 2), (0, -1), (-1, 0), (47, 0)])
def test_a_head_or_query_that_is_not_there_is_refused(query, head):
    """Head 2 of the first query was head 0 of the second."""
    trace = mosaic_trace()
    assert (len(trace.queries), trace.memories[0].num_heads) == (47, 2)
    refused(r"trace: (head|query) must lie in 0\.\.", trace.memories[0].recalled, query, head)


def test_pairs_before_the_text_are_left_of_it_in_the_map():
    """They were drawn in the last columns, as if the newest tokens of the text had been recalled."""
    trace = mosaic_trace()
    memory = trace.memories[0]
    behind = replace(memory, pairs=memory.pairs - 5)
    drawn = recall_map(trace, behind, 1).get_images()[0]
    assert drawn.get_extent()[0] == -5.5
    plain = torch.as_tensor(recall_map(trace, memory, 1).get_images()[0].get_array())
    torch.testing.assert_close(torch.as_tensor(drawn.get_array())[:, : plain.shape[1]], plain)


def test_the_map_of_weights_that_are_all_small_is_not_blank():
    """As of a Gaussian memory, which spreads its weight over all pairs: the first query has all of it on one."""
    trace = mosaic_trace()
    memory, steps = trace.memories[0], len(trace.tokens)
    counts = torch.arange(steps)
    rows = torch.cat([torch.zeros(1), counts.repeat_interleave(memory.num_heads).cumsum(0)]).int()
    pairs = torch.cat([torch.arange(count) for count in counts.tolist() for _ in range(memory.num_heads)]).int()
    weights = (1 / counts.repeat_interleave(memory.num_heads).clamp(min=1)).repeat_interleave(rows.diff())
    uniform = replace(memory, rows=rows, pairs=pairs, weights=weights)
    drawn = recall_map(trace, uniform, 1).get_images()[0]
    darkness = drawn.norm(drawn.get_array())[-1, : steps - 1]
    assert drawn.norm.vmin == 0
    assert darkness.min() > 3 / (steps - 1), "three times as dark as on a scale from 0 to 1"


def test_the_map_of_a_long_text():
    """PyTorch takes quantiles of at most 2^24 numbers."""
    trace, count = mosaic_trace(), 4200
    rows, pairs = count * torch.arange(count + 1), torch.arange(count, dtype=torch.int32).repeat(count)
    options = {"share": torch.ones(count, 1), "num_pairs": torch.full((count,), count)}
    memory = replace(trace.memories[0], rows=rows, pairs=pairs, weights=torch.full(pairs.shape, 1 / count), **options)
    drawn = recall_map(replace(trace, queries=torch.arange(count)), memory, 0).get_images()[0]
    assert drawn.norm.vmax == pytest.approx(1 / count)


def test_recalled_text():
    trace = mosaic_trace()
    axes = recalled_text(trace, trace.memories[0], 1, 30, first=2)
    assert "".join(text.get_text() for text in axes.texts) == "".join(trace.tokens[2:31])
    *shades, frame = axes.patches
    pairs, weights = trace.memories[0].recalled(30, 1)
    expected = torch.zeros(31)
    expected[pairs.long()] = 0.6 * weights / weights.max()
    torch.testing.assert_close(torch.tensor([patch.get_alpha() for patch in shades]), expected[2:])
    assert frame.get_x() == shades[-1].get_x()
    mean = recalled_text(trace, trace.memories[0], None, 30)
    assert sum(patch.get_alpha() > 0 for patch in mean.patches[:-1]) >= len(pairs)
    refused("query must be a traced token", recalled_text, trace, trace.memories[0], 0, 99)


def test_a_notebook_shows_the_page_in_a_sandbox():
    shown = mosaic_trace()._repr_html_()
    assert 'sandbox="allow-scripts allow-downloads"' in shown
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert page.startswith("<!doctype html>")
    assert shown.count("<") == 2  # nothing of the page is markup of the notebook's
