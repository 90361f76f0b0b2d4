"""Tutorials read in the repository show what their cells print, as `make tutorials` wrote it."""

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TOOL = runpy.run_path(str(DOCS / "tutorial_outputs.py"), run_name="tutorial_outputs")


@pytest.mark.parametrize("page", TOOL["PAGES"], ids=lambda page: page.stem)
def test_outputs_are_of_the_cells_that_are_there(page):
    text = page.read_text(encoding="utf-8")
    marks = [TOOL["mark"](program) for program in TOOL["cells"](text)]
    assert len(marks) == text.count("```{code-cell}\n") == len(set(marks))
    shown = TOOL["OUTPUT"].findall(text)
    assert shown, "run `make tutorials`"
    assert {mark for mark, _ in shown} <= set(marks), "a cell has changed: run `make tutorials`"
    printing = {TOOL["mark"](cell) for cell in TOOL["cells"](text) if re.search(r"^tessera |^print\(", cell, re.M)}
    assert printing <= {mark for mark, _ in shown}, "a cell that prints has no output: run `make tutorials`"
    for _, output in shown:
        assert output.strip()
        assert not re.search(r"/(home|root|tmp|work|usr|Users)/|Traceback|Warning", output)
        for image in re.findall(r"\]\(([^)]+)\)", output):
            assert (page.parent / image).is_file()


def test_the_site_has_the_pages_as_they_are_written_by_hand():
    page = "a\n```{code-cell}\nprint(1)\n```\n\n<!-- output of 12ab -->\n```text\n1\n```\n<!-- end of output -->\n\nb\n"
    assert TOOL["without_outputs"](page) == "a\n```{code-cell}\nprint(1)\n```\n\nb\n"
    assert "without_outputs" in (DOCS / "conf.py").read_text(encoding="utf-8")
