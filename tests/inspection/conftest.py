"""A page opened in headless Chromium: nothing is requested, nothing goes wrong."""

import os
import shutil
from pathlib import Path

import pytest

from tessera.inspection.page import write_page

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


@pytest.fixture
def screenshots(tmp_path):
    """Where pictures go: TESSERA_SCREENSHOTS, to look at them, or a folder that is thrown away."""
    folder = Path(os.environ.get("TESSERA_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
