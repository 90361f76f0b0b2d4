"""The Python blocks of README and docs run, each file from top to bottom; tutorials show what their cells print."""

import re
import runpy
import sys
from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from tessera.models import MODELS

ROOT = Path(__file__).parents[2]
HOW_TO = sorted((ROOT / "docs" / "how-to").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *HOW_TO]
# Comments that end a block are what it prints, with an explanation behind three spaces.
PRINTED = re.compile(r"((?:^# .*\n)+)\Z", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# What the libraries that these pages are about warn of, and those that take long on a busy machine.
SLOW_AND_WARNED = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
MARKS = {"memories": [pytest.mark.slow], "fine-tune": SLOW_AND_WARNED, "export": SLOW_AND_WARNED}


def cases(pages):
    return [pytest.param(page, id=page.name, marks=MARKS.get(page.stem, [])) for page in pages]


@pytest.mark.parametrize("page", cases(page for page in PAGES if BLOCK.search(page.read_text())))
def test_blocks_run_and_print_what_they_say(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS.items()))
    for names in (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES, CONFIG_MAPPING._extra_content):
        monkeypatch.setitem(names, "fading", None)  # what a page registers is taken back
    if page.stem == "fine-tune":
        pytest.importorskip("peft")
        pytest.importorskip("trl")
    namespace = {}
    for block in BLOCK.findall(page.read_text()):
        capsys.readouterr()
        exec(compile(block, str(page), "exec"), namespace)
        stated = PRINTED.search(block)
        if stated:
            lines = [line.removeprefix("# ").split("   ")[0] for line in stated[1].splitlines()]
            assert capsys.readouterr().out.splitlines() == lines
    sys.modules.pop("fading", None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


DOCS = ROOT / "docs"
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
