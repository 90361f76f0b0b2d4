"""The page in headless Chromium: every view shows what the trace says, nothing is requested, nothing goes wrong."""

import random
import shutil
from dataclasses import replace

import pytest
import torch

from tessera.inspection.page import write_page
from tests.inspection.pages import armt_trace, mosaic_trace

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the Python package playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium on the path (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


PAIRS = [("body", "body"), (".panel", ".panel"), (".faint", "body"), (".mark", ".panel")]
# WCAG 2: contrast of the first element's text against the second one's background.
CONTRAST = """([name, ground]) => {
    const linear = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = (colour) => {
        const [r, g, b] = colour.match(/[0-9.]+/g).map((part) => linear(part / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const one = light(getComputedStyle(document.querySelector(name)).color);
    const other = light(getComputedStyle(document.querySelector(ground)).backgroundColor);
    return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}"""


class Opened:
    """A page, the requests it made and the errors it logged."""

    def __init__(self, browser, file, **options):
        self.page = browser.new_page(viewport={"width": 1280, "height": 800}, **options)
        self.requests, self.errors = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.errors.append(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("body[data-ready=true]", timeout=20_000)

    def close(self, file):
        """Nothing but the file itself was asked for, and nothing went wrong."""
        self.page.close()
        own = {file.as_uri()}
        foreign = [url for url in self.requests if url not in own and not url.startswith("blob:")]
        assert not foreign
        assert not self.errors


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of some traces; when the test is over, look at what it asked for and logged."""
    pages = []

    def open_page(*traces, **options):
        file = tmp_path / f"page{len(pages)}.html"
        write_page(file, traces, [f"trace {index}" for index in range(len(traces))])
        pages.append((Opened(browser, file, **options), file))
        return pages[-1][0].page

    yield open_page
    for one, file in pages:
        one.close(file)


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


def test_keys(opened):
    page = opened(mosaic_trace())
    page.locator("[data-token='10']").click()
    page.keyboard.press("ArrowRight")
    assert page.locator(".here").get_attribute("data-token") == "11"
    page.keyboard.press("ArrowDown")
    assert page.get_by_label("head 1", exact=True).get_attribute("aria-pressed") == "true"
    before = page.get_by_label("shown memory").input_value()
    page.keyboard.press("]")
    assert page.get_by_label("shown memory").input_value() != before
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("2")
    assert page.get_by_role("tab", name="Network").get_attribute("aria-selected") == "true"


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
    recalling = sum(5 in memory.recalled(query, 0)[0] for query in range(len(trace.tokens)))
    assert f"recalled by {recalling} of {len(trace.tokens)}" in page.locator(".summary").inner_text()
    assert page.locator("svg line").count() == recalling + 1


def test_two_models_side_by_side(opened):
    one, other = mosaic_trace(), mosaic_trace(kernel="gaussian")
    page = opened(one, other)
    page.get_by_role("tab", name="Compare").click()
    assert page.locator(".text").count() == 2
    page.locator(".text").nth(0).locator("[data-token='30']").click()
    for side, trace in enumerate((one, other)):
        pairs, _ = trace.memories[0].recalled(30, 0)
        shown = page.locator(".page").nth(side).locator(".recalled tr")
        assert shown.count() == min(40, len(pairs))


def test_segments_of_armt(opened):
    trace = armt_trace()
    page = opened(trace)
    assert page.get_by_role("tab", name="Segments").get_attribute("aria-selected") == "true"
    count, layers = trace.segments.written.shape
    assert page.locator("svg rect").count() == 5 * count * layers
    titles = page.locator("svg rect title").all_text_contents()
    assert f"segment 2, layer 1: written {float(trace.segments.written[2, 1]):.4g}"[:30] in " ".join(titles)


def test_ten_thousand_hostile_strings_are_shown_and_do_nothing(opened):
    trace = mosaic_trace()
    pieces = [
        "</script>",
        "<img src=x onerror=alert(1)>",
        "<svg onload=alert(1)>",
        "javascript:alert(1)",
        "\x00",
        "\u202e",
        "\ud800",
        "\udfff",
        "]]>",
        "<!--",
        "-->",
        "${alert(1)}",
        "&#x3c;script&#x3e;",
        "\u2028",
        "'\"",
        "{{DATA}}",
        "\x1b[31m",
    ]
    draw = random.Random(0)
    tokens = tuple("".join(draw.choices(pieces, k=draw.randint(1, 4))) for _ in range(10_000))
    memories = tuple(replace(memory, loss_change=None, head_loss_change=None) for memory in trace.memories)
    losses = torch.rand(10_000)
    page = opened(
        replace(
            trace,
            tokens=tokens,
            losses=losses,
            memories=memories,
            vocabulary=dict.fromkeys(trace.vocabulary, tokens[0]),
        )
    )
    page.wait_for_function("document.querySelectorAll('.token').length === 10000", timeout=20_000)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2
    page.locator("[data-token='3']").click()
    for name in ("Network", "Compare", "Pairs", "Read"):
        page.get_by_role("tab", name=name).click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(opened, scheme):
    page = opened(mosaic_trace(), color_scheme=scheme)
    ratios = [page.evaluate(CONTRAST, [name, ground]) for name, ground in PAIRS if page.locator(name).count()]
    assert len(ratios) >= 2
    assert min(ratios) >= 4.5


def test_a_hundred_thousand_tokens_are_drawn_in_two_seconds(opened):
    trace = mosaic_trace()
    memories = tuple(replace(memory, loss_change=None, head_loss_change=None) for memory in trace.memories)
    tokens = tuple(f"word{index % 977} " for index in range(100_000))
    page = opened(replace(trace, tokens=tokens, losses=torch.rand(100_000), memories=memories))
    first = page.evaluate("performance.getEntriesByType('paint').map((one) => one.startTime)")
    print("first paint after", first, "ms")
    assert page.locator(".token").count() >= 1000
