"""The site builds without a warning, its tutorials run in the promised time, its links lead somewhere, offline."""

import json
import os
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
PROMISED_SECONDS = 120

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, *"-m sphinx -b html -q -W --keep-going".split(), str(ROOT / "docs"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return folder


class Page(HTMLParser):
    """Anchors, links and loaded files of a page."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = {""}, [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag in ("script", "img", "link", "iframe"):
            self.loaded.append(attributes.get("src") or attributes.get("href") or "")


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def test_links_and_anchors_exist(pages):
    missing = []
    for path, page in pages.items():
        for link in page.links:
            target = urlsplit(link)
            if not target.scheme and not target.netloc:
                file = (path.parent / unquote(target.path)).resolve() if target.path else path
                known = pages[file].anchors if file in pages else {""} if file.is_file() else set()
                if unquote(target.fragment) not in known:
                    missing.append(f"{path.name}: {link}")
    assert missing == []


def test_nothing_is_loaded_from_a_network(pages):
    assert [file for page in pages.values() for file in page.loaded if "//" in file] == []


def test_every_tutorial_ran_in_the_promised_time(site):
    seconds = json.loads((site / "seconds.json").read_text())
    tutorials = {f"tutorials/{path.stem}" for path in (ROOT / "docs" / "tutorials").glob("*.md")}
    assert tutorials <= set(seconds)
    assert {name: time for name, time in seconds.items() if time > PROMISED_SECONDS} == {}


def test_printed_pieces_are_one_text():
    from nbformat import NotebookNode  # of the extra that builds the site

    join = runpy.run_path(str(ROOT / "docs" / "conf.py"))["as_printed"]
    printed = [("stdout", "sat by t"), ("stderr", "slow"), ("stdout", "he well\n"), ("stderr", "ly\n")]
    outputs = [NotebookNode(output_type="stream", name=name, text=text) for name, text in printed]
    figure = NotebookNode(output_type="display_data", data={}, metadata={})
    joined = join([outputs[0], figure, *outputs[1:]])
    assert [(output.get("name"), output.get("text")) for output in joined] == [
        ("stdout", "sat by the well\n"),
        (None, None),
        ("stderr", "slowly\n"),
    ]
    assert outputs[0].text == "sat by t"
