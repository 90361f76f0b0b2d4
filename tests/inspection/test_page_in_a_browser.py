"""The page in headless Chromium: every view shows what the trace says, nothing is requested, nothing goes wrong."""

import io
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from tessera.inspection.page import write_page
from tests.inspection.pages import armt_trace, long_trace, memory_trace, mosaic_trace

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


# WCAG 2: the lowest contrast of any text that can be seen against what lies behind it, and that text.
CONTRAST = """() => {
    const parts = (colour) => { const [r, g, b, a] = colour.match(/[0-9.]+/g).map(Number); return [r, g, b, a ?? 1]; };
    const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a)];
    const ground = (node) => {
        const own = parts(getComputedStyle(node).backgroundColor);
        if (own[3] === 1) return own.slice(0, 3);
        return over(own, node.parentElement ? ground(node.parentElement) : [255, 255, 255]);
    };
    const linear = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    let lowest = [100, ""];
    for (const node of document.querySelectorAll("body *")) {
        const own = [...node.childNodes].filter((child) => child.nodeType === 3);
        const text = own.map((child) => child.data).join("").trim();
        if (!text || !node.checkVisibility() || ["SCRIPT", "STYLE", "TITLE", "title"].includes(node.tagName)) continue;
        const behind = ground(node), style = getComputedStyle(node);
        const front = over(parts(node instanceof SVGElement ? style.fill : style.color), behind);
        const [one, other] = [light(front), light(behind)];
        const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
        if (ratio < lowest[0]) lowest = [ratio, text];
    }
    return lowest;
}"""
# Words of a picture that lie on each other, and how far the page is too wide.
LAYOUT = """() => {
    const clashes = [];
    for (const svg of document.querySelectorAll("svg")) {
        const texts = [...svg.querySelectorAll("text")], boxes = texts.map((text) => text.getBoundingClientRect());
        boxes.forEach((one, i) => boxes.slice(i + 1).forEach((other, j) => {
            const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
            const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
            if (wide > 1 && high > 3) clashes.push(`${texts[i].textContent} / ${texts[i + 1 + j].textContent}`);
        }));
    }
    return [clashes, document.documentElement.scrollWidth - window.innerWidth];
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
    weights = [dict(zip(*(part.tolist() for part in memory.recalled(query, 0)))) for query in range(len(trace.tokens))]
    recalling = [query for query, pairs in enumerate(weights) if pairs.get(5, 0) * 65535 >= 0.5]
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
    shown = [float(text.split()[0]) for text in page.locator(".recalled .number").all_inner_texts()]
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


def test_two_models_side_by_side(opened):
    one, other = mosaic_trace(), mosaic_trace(kernel="gaussian")
    page = opened(one, other)
    page.get_by_role("tab", name="Compare").click()
    assert page.locator(".text").count() == 2
    page.locator(".text").nth(0).locator("[data-token='30']").click()
    for side, trace in enumerate((one, other)):
        pairs, _ = trace.memories[0].recalled(30, 0)
        shown = page.locator(".side").nth(side).locator(".recalled tr")
        assert shown.count() == min(40, len(pairs))


def test_two_texts_side_by_side(opened):
    """A token is chosen in its own text alone, also where the other text is shorter."""
    one, other = mosaic_trace(), mosaic_trace(text="a dog ran to the dog.")
    page = opened(one, other)
    page.get_by_role("tab", name="Compare").click()
    page.locator(".text").nth(0).locator("[data-token='40']").click()
    page.locator(".text").nth(1).locator("[data-token='9']").click()
    assert [page.locator(".side").nth(side).locator("h2").inner_text()[:8] for side in (0, 1)] == [
        "Token 40",
        "Token 9:",
    ]


def test_two_heads_side_by_side(opened):
    trace = mosaic_trace()
    page = opened(trace)
    page.get_by_role("tab", name="Compare").click()
    page.locator(".text").nth(1).locator("[data-token='30']").click()
    for side in (0, 1):
        pairs, _ = trace.memories[0].recalled(30, side)
        assert f"{len(pairs)} of 30 stored pairs" in page.locator(".side").nth(side).locator(".summary").inner_text()


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
    memories = tuple(
        replace(memory, loss_change=None, head_loss_change=None, pair_loss_change=None) for memory in trace.memories
    )
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


VIEWS = ("Read", "Network", "Compare", "Pairs", "Segments", "Memory")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_readable(opened, scheme, screenshots):
    """Contrast of all text, no word on another, nothing wider than the window; with a picture to look at."""
    page = opened(mosaic_trace(), armt_trace(), color_scheme=scheme)
    page.keyboard.press("?")
    for view in VIEWS:
        page.get_by_role("tab", name=view).click()
        if page.locator(".token").count():
            page.locator(".text [data-token='30']").first.click()
        ratio, text = page.evaluate(CONTRAST)
        assert ratio >= 4.5, f"{view}: {text!r} has a contrast of {ratio:.2f}"
        clashes, excess = page.evaluate(LAYOUT)
        assert not clashes, view
        assert excess <= 0, view
        picture = page.screenshot(path=screenshots / f"{view.lower()}-{scheme}.png")
        assert len(image_of(picture).getcolors(1 << 20)) > 20, f"{view} is empty"


def test_the_shade_of_a_token_is_its_weight(opened):
    """As the screen has it: the heaviest pair is darker than the lightest one that is listed."""
    trace = mosaic_trace(kernel="gaussian")
    page = opened(trace)
    page.locator("[data-token='40']").click()
    pairs, weights = trace.memories[0].recalled(40, 0)
    assert weights[0] > weights[-1]

    def blueness(pair):
        image = image_of(page.locator(f"[data-token='{int(pair)}']").screenshot())
        colours = image.getcolors(1 << 20)
        red, _, blue = max(colours)[1][:3]  # the commonest colour is the ground
        return blue - red

    assert blueness(pairs[0]) > blueness(pairs[-1]) > 0


def image_of(picture):
    return pytest.importorskip("PIL.Image").open(io.BytesIO(picture)).convert("RGB")


@pytest.fixture
def screenshots(tmp_path):
    """Where pictures go: TESSERA_SCREENSHOTS, to look at them, or a folder that is thrown away."""
    folder = Path(os.environ.get("TESSERA_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_saved_picture_is_well_formed(opened):
    """Also with hostile tokens in it."""
    trace = mosaic_trace()
    page = opened(replace(trace, tokens=("\x0b<\ud800&\uffff",) * len(trace.tokens)))
    page.get_by_role("tab", name="Pairs").click()
    page.locator("[data-token='5']").click()
    with page.expect_download() as download:
        page.get_by_text("Save as SVG").first.click()
    root = ElementTree.parse(download.value.path()).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall("{http://www.w3.org/2000/svg}line")) > 1


def test_everything_can_be_reached_with_the_keyboard(opened):
    """Tab comes to every button and list that is shown; Enter presses it."""
    page = opened(mosaic_trace())
    reached = set()
    for _ in range(150):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.outerHTML"))
    controls = page.locator("button:visible, select:visible").evaluate_all("all => all.map((one) => one.outerHTML)")
    assert controls
    assert set(controls) <= reached
    page.get_by_role("tab", name="Network").focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("tab", name="Network").get_attribute("aria-selected") == "true"


def test_a_notebook_shows_the_page(browser, tmp_path):
    """In its frame, which may run scripts and no more."""
    file = tmp_path / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8>{mosaic_trace()._repr_html_()}", encoding="utf-8")
    page, errors = browser.new_page(), []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("body[data-ready=true]").wait_for(timeout=20_000)
    assert frame.locator(".token").count() == len(mosaic_trace().tokens)
    frame.locator("[data-token='30']").click()
    assert "Token 30" in frame.locator(".panel").inner_text()
    page.close()
    assert not errors


DRAWN = "performance.getEntriesByName('drawn')[0].startTime"  # ms since the page began to load


def test_a_hundred_thousand_tokens(opened):
    trace = mosaic_trace()
    memories = tuple(
        replace(memory, loss_change=None, head_loss_change=None, pair_loss_change=None) for memory in trace.memories
    )
    tokens = tuple(f"word{index % 977} " for index in range(100_000))
    page = opened(replace(trace, tokens=tokens, losses=torch.rand(100_000), memories=memories))
    print(f"100,000 tokens: first picture after {page.evaluate(DRAWN):.0f} ms")
    assert page.locator(".token").count() >= 1000


def test_a_million_recalled_pairs(opened):
    trace = long_trace(steps=2000, pairs=1_000_000)
    page = opened(trace)
    print(f"1,000,000 recalled pairs: first picture after {page.evaluate(DRAWN):.0f} ms")
    page.locator("[data-token='1500']").click()
    assert "250 of 1500 stored pairs" in page.locator(".summary").inner_text()
