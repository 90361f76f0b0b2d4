"""The page as a file: nothing from data is markup, nothing but its own script may run, and it stays small."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import tessera.inspection.page as page_module
from tessera.inspection.page import page_of, write_page
from tessera.inspection.trace import SegmentTrace
from tests.covering import some
from tests.inspection.pages import armt_trace, arrays_of, data_of, long_trace, mosaic_trace, weights_of
from tests.refusals import refused

HOSTILE = "</script><img src=x onerror=alert(1)>{{DATA}}&lt;<!--\x00\u202e\ud800"


def test_hostile_strings_are_data():
    trace = mosaic_trace()
    trace = replace(trace, tokens=(HOSTILE, *trace.tokens[1:]), model={"type": HOSTILE}, vocabulary={1: HOSTILE})
    page = page_of([trace], [HOSTILE])
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "<img" not in page
    assert "onerror=alert(1)>" not in page
    assert HOSTILE in data_of(page)[0]["texts"]
    page.encode("utf-8")


def test_the_policy_names_exactly_the_script_and_the_style():
    page = page_of([mosaic_trace()], ["one"])
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for (text,), name in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy


def test_own_code_is_small_and_knows_no_address():
    files = list(Path(page_module.__file__).parent.glob("page.*"))
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.suffix != ".py")
    assert len(text) < 150_000
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(", text)


@some(
    ("steps", "pairs", "num_memories"),
    [(2500, 1_000_000, 1), (100_000, 100_000, 12)],
    by_default=[(2500, 1_000_000, 1)],
)
def test_long_texts_and_many_pairs_take_at_most_8_megabytes(steps, pairs, num_memories):
    size = len(page_of([long_trace(steps, pairs, num_memories)], ["long"])) / 1e6
    print(f"{steps:,} tokens, {num_memories} memories with {pairs:,} recalled pairs each: {size:.1f} MB")
    assert size <= 8


def segments_of(count, size, layers):
    """Random numbers; no segment gates the first layer, nor the first one any."""
    written, erased, read, norm, gamma = torch.rand(5, count, layers)
    gamma[:, 0] = gamma[0] = torch.nan
    return SegmentTrace(
        written, erased, read, norm, gamma, size * torch.arange(count), torch.rand(count * size, layers)
    )


def test_thousands_of_segments_are_a_strip_of_a_few_hundred_columns():
    segments = segments_of(15_625, 4, 12)
    page = page_of([replace(long_trace(15_625 * 4, 4000), segments=segments)], ["long"])
    assert len(page) / 1e6 <= 2
    told, values = data_of(page)[0]["segments"], arrays_of(page)
    assert (told["count"], told["merged"], told["layers"]) == (15_625, 40, 12)
    norm = values(told["norm"]).reshape(-1, 12)
    assert len(norm) == 391
    torch.testing.assert_close(
        torch.from_numpy(norm[[0, -1]]), torch.stack([segments.norm[:40].mean(0), segments.norm[-25:].mean(0)])
    )
    of_layers = np.isnan(values(told["gamma"]).reshape(-1, 12))
    assert of_layers.any(0).tolist() == of_layers.all(0).tolist() == [True] + 11 * [False]
    assert told["reads"][::2] == ["w2", 15_625 * 4 * 12]
    assert told["largestRead"] == float(segments.reads.max())


def test_what_is_no_number_is_shown_as_nothing_and_breaks_no_page():
    """As of a model that diverged."""
    segments = segments_of(5, 4, 2)
    segments.reads[3:8, 0] = torch.tensor([float("nan"), float("inf"), 0.0, 2.0, 1.0])
    page = page_of([replace(long_trace(20, 4000), segments=segments)], ["long"])
    told = data_of(page)[0]["segments"]
    assert told["largestRead"] == 2
    assert weights_of(page)(told["reads"])[[6, 8, 10, 12, 14]].tolist() == [0, 1, 0, 1, 0.5]


def test_each_of_few_segments_is_a_column():
    trace = armt_trace()
    page = page_of([trace], ["armt"])
    told = data_of(page)[0]["segments"]
    assert told["merged"] == 1
    assert arrays_of(page)(told["written"]).tolist() == trace.segments.written.flatten().tolist()


def test_files(tmp_path):
    write_page(tmp_path / "page.html", [mosaic_trace(), armt_trace()], ["mosaic", "armt"])
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    refused("traces must come with one title each", write_page, tmp_path / "page.html", [mosaic_trace()], [])
    refused("cannot be written", write_page, tmp_path / "nowhere" / "page.html", [mosaic_trace()], ["one"])
