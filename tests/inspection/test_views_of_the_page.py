"""The page in headless Chromium: every view shows what the trace says."""

import pytest
import torch

from tests.inspection.pages import armt_trace, memory_trace, mosaic_trace

pytestmark = pytest.mark.browser


def test_reading_shows_what_the_trace_recalled(opened):
    trace = mosaic_trace()
    page = opened(trace)
    assert page.locator(".token").count() == len(trace.tokens)
    token, memory = 40, trace.memories[0]
    page.locator(f"[data-token='{token}']").click()
    page.get_by_label("shown memory").select_option("0")
    for head in range(2):
        page.get_by_label(f"head {head}", exact=True).click()
        pairs, weights = memory.recalled(token, head)
        shown = page.locator(".recalled tr")
        assert shown.count() == min(40, len(pairs))
        first = shown.nth(0).inner_text()
        assert f"{100 * weights[0]:.0f}" in first or f"{100 * weights[0]:.1f}" in first
        marked = page.locator(".token").evaluate_all("all => all.map(one => one.style.backgroundColor !== '')")
        assert [index for index, on in enumerate(marked) if on] == sorted(pairs.tolist())
        assert f"{len(pairs)} of {int(memory.num_pairs[token])} stored pairs" in page.locator(".summary").inner_text()
    text = page.locator(".panel").inner_text()
    change = float(memory.loss_change[token + 1])
    assert f"{'+' if change >= 0 else '−'}{abs(change):.3f}" in text


def test_network_shows_every_memory_and_its_cost(opened):
    trace = mosaic_trace()
    page = opened(trace)
    page.get_by_role("tab", name="Network").click()
    texts = page.locator("svg text").all_text_contents()
    for memory in trace.memories:
        assert any(f"layer {memory.layer}, {memory.kind}" in text for text in texts)
        mean = float(memory.loss_change[1:].mean())
        assert any(f"{abs(mean):.3f} nats" in text for text in texts)
    with page.expect_download() as download:
        page.get_by_text("Save as SVG").first.click()
    assert download.value.suggested_filename == "network.svg"


def test_a_pair_is_followed_through_time(opened):
    trace = mosaic_trace()
    page = opened(trace)
    page.get_by_role("tab", name="Pairs").click()
    page.locator("[data-token='5']").click()
    memory = trace.memories[0]
    weights = [dict(zip(*(part.tolist() for part in memory.recalled(query, 0)))) for query in range(len(trace.tokens))]
    recalling = [query for query, pairs in enumerate(weights) if pairs.get(5, 0) > 0]
    assert f"recalled by {len(recalling)} of {len(trace.tokens)}" in page.locator(".summary").inner_text()
    assert page.locator(".stem").count() == len(recalling)
    marked = page.locator(".token").evaluate_all("all => all.map(one => one.style.backgroundColor !== '')")
    assert [index for index, on in enumerate(marked) if on] == recalling
    worth = float(memory.pair_loss_change[0, 1:].sum())
    assert f"{'+' if worth >= 0 else '−'}{abs(worth):.3f} nats" in page.locator(".worth").inner_text()
    page.keyboard.press("ArrowRight")
    assert "Pair 6" in page.locator(".panel").inner_text()


def test_all_heads_are_the_mean_of_the_heads(opened):
    trace = mosaic_trace()
    page, memory, token = opened(trace), trace.memories[0], 40
    page.locator(f"[data-token='{token}']").click()
    page.get_by_label("all heads").click()
    mean = torch.zeros(token)
    for head in range(2):
        pairs, weights = memory.recalled(token, head)
        mean[pairs.long()] += weights / 2
    shown = [float(text.split()[-2]) for text in page.locator(".recalled .number").all_inner_texts()]
    expected = mean.sort(descending=True).values[: len(shown)] * 100
    assert len(shown) == min(40, int((mean > 0).sum()))
    torch.testing.assert_close(torch.tensor(shown), expected, rtol=0, atol=0.51)


def test_every_memory_is_listed_with_what_came_of_it(opened):
    trace = mosaic_trace()
    page, token = opened(trace), 20
    page.locator(f"[data-token='{token}']").click()
    rows = page.locator(".memories tr").all_inner_texts()[1:]
    assert len(rows) == len(trace.memories)
    for row, memory in zip(rows, trace.memories):
        assert f"layer {memory.layer}, {memory.kind}" in row
        assert f"{abs(float(memory.loss_change[token + 1])):.3f}" in row
        probability = 100 * float(memory.after_scores[token, 0].exp())
        assert f"{probability:.1f}" in row or f"{probability:.0f}" in row
    page.locator(".memories button").nth(2).click()
    assert page.get_by_label("shown memory").input_value() == "2"


SHORTER = {"text": "a dog ran to the dog."}
SIDES = {  # the traces, the token that is chosen in each of the texts, and what the two sides show of which trace
    "models": ([{}, {"kernel": "gaussian"}], {0: 30}, [(0, 30, 0), (1, 30, 0)]),
    "texts": ([{}, SHORTER], {0: 40, 1: 9}, [(0, 40, 0), (1, 9, 0)]),
    "heads": ([{}], {1: 30}, [(0, 30, 0), (0, 30, 1)]),
}


@pytest.mark.parametrize(("traces", "chosen", "shown"), SIDES.values(), ids=SIDES)
def test_two_side_by_side(opened, traces, chosen, shown):
    """A token is chosen in its own text alone, also where the other text is shorter."""
    traces = [mosaic_trace(**options) for options in traces]
    page = opened(*traces)
    page.get_by_role("tab", name="Compare").click()
    assert page.locator(".text").count() == 2
    for text, token in chosen.items():
        page.locator(".text").nth(text).locator(f"[data-token='{token}']").click()
    for place, (trace, token, head) in enumerate(shown):
        side, (pairs, _) = page.locator(".side").nth(place), traces[trace].memories[0].recalled(token, head)
        assert side.locator("h2").inner_text().startswith(f"Token {token}:")
        assert side.locator(".recalled tr").count() == min(40, len(pairs))
        assert f"{len(pairs)} of {token} stored pairs" in side.locator(".summary").inner_text()


def test_what_is_followed_is_shown_in_its_own_trace(opened):
    """Of two texts the shorter one is second; it was the first that was shown, or nothing."""
    one, other = mosaic_trace(), mosaic_trace(**SHORTER)
    page = opened(one, other)
    show = lambda name: page.get_by_role("tab", name=name).click()  # noqa: E731
    show("Compare")
    page.locator(".text").nth(1).locator("[data-token='15']").click()
    pairs, _ = other.memories[0].recalled(15, 0)
    page.locator(".side").nth(1).locator(".recalled button").first.click()
    pair = int(pairs[0])
    expected = f"Pair {pair}: “{other.tokens[pair]}” → “{other.tokens[pair + 1]}”"
    assert page.locator(".panel h2").inner_text() == expected
    page.get_by_label("shown trace").select_option("0")
    page.locator("[data-token='40']").click()
    page.get_by_label("shown trace").select_option("1")
    assert page.locator(".panel h2").inner_text().startswith(f"Pair {len(other.tokens) - 1}: ")
    show("Read")
    page.get_by_label("shown trace").select_option("0")
    page.locator("[data-token='40']").click()
    show("Network")
    page.locator("svg").nth(1).locator(".effect").last.click()
    assert page.get_by_label("shown trace").input_value() == "1"
    assert page.locator(".here").get_attribute("data-token") == str(len(other.tokens) - 1)


def test_a_pair_that_every_token_of_a_long_text_recalled(opened):
    """More tokens than a function of JavaScript takes arguments; of each column of the picture the tallest is drawn."""
    text = "{ tokens: Array(200000).fill('a') }"
    recalls = "Array.from(Array(200000), (_, token) => [token, token / 2e5])"
    drawn = f"timeline({text}, {recalls}, 'a pair').querySelectorAll('.stem').length"
    page = opened(mosaic_trace())
    assert page.evaluate(drawn) == 325
    assert page.evaluate(drawn.replace("querySelectorAll('.stem').length", "innerHTML")).count("token 199999 ") == 1


def test_segments_of_armt(opened):
    trace = armt_trace()
    page = opened(trace)
    assert page.get_by_role("tab", name="Segments").get_attribute("aria-selected") == "true"
    count, layers = trace.segments.written.shape
    assert page.locator("svg .cell").count() == 5 * count * layers
    titles = page.locator("svg .cell title").all_text_contents()
    assert f"segment 2, layer 1: written {float(trace.segments.written[2, 1]):.4g}"[:30] in " ".join(titles)
    page.locator("svg .cell").nth(2 * layers).click()  # the third segment's first cell
    assert page.locator(".here").get_attribute("data-token") == "16"
    assert page.locator(".token.start").count() == count
    page.get_by_role("tab", name="Segments").click()
    page.get_by_label("open a segment").select_option("3")
    assert page.locator(".here").get_attribute("data-token") == "24"
    page.locator("[data-token='16']").click()
    page.get_by_label("shown memory").select_option("0")
    assert trace.memories[0].kind == "association"
    read = float(trace.segments.reads[16, 0])
    assert float(page.locator(".summary").inner_text().split()[1].rstrip(";")) == pytest.approx(read, rel=1e-2)
    page.get_by_label("shown memory").select_option("1")
    pairs, _ = trace.memories[1].recalled(16, 0)
    assert f"{len(pairs)} of 1 stored pairs" in page.locator(".summary").inner_text()


@pytest.mark.parametrize("make", ["wrap", "wrap_rmt", "wrap_prmt"])
def test_a_stored_memory(opened, make):
    trace = memory_trace(make)
    page = opened(trace)
    assert page.get_by_role("tab").all_inner_texts() == ["Memory"]
    assert "47 tokens in 6 segments" in page.locator(".summary").inner_text()
    shown = [float(text) for text in page.locator(".contents .number").all_inner_texts()]
    strengths = trace.stored.strengths
    listed = strengths[strengths >= 1e-6 * strengths.max(1, keepdim=True).values]
    torch.testing.assert_close(torch.tensor(shown), listed, rtol=1e-2, atol=0)
