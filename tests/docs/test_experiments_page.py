"""The tables in docs/experiments/ are those that `make experiments-page` makes of results/ now."""

import re

import pytest

from tessera.papers import results as module
from tessera.papers.experiment import EXPERIMENTS
from tessera.papers.results import END, MARKED, ResultsFile, report_text, with_tables
from tests.docs.test_code_blocks import ROOT
from tests.refusals import refused

PAGES = ROOT / "docs" / "experiments"
STORED = [name for name in EXPERIMENTS if (ROOT / "results" / name / "cpu.json").exists()]


@pytest.fixture(scope="module", autouse=True)
def _made_once():
    """Pages and the files beside the results show the same tables."""
    make, made = module.tables_of, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            module, "tables_of", lambda results: made.get(results.path) or made.setdefault(results.path, make(results))
        )
        yield


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_tables_of_a_page_are_up_to_date(page):
    written = page.read_text(encoding="utf-8")
    assert written == with_tables(written, ROOT / "results"), "run `make experiments-page`"


@pytest.mark.parametrize("name", STORED)
def test_tables_beside_the_results_are_up_to_date(name):
    results = ResultsFile(ROOT / "results", name, "cpu")
    assert results.path.with_suffix(".md").read_text(encoding="utf-8") == report_text(results)


@pytest.mark.parametrize("name", STORED)
def test_every_experiment_has_a_page_a_line_in_the_index_and_its_figure(name):
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"({name}.md)" in (PAGES / "README.md").read_text(encoding="utf-8")
    assert f"tessera reproduce {name}\n" in page
    assert MARKED.search(page), "a page shows tables"
    for link in re.findall(r"\]\((?!http)([^)#]+)", page):
        assert (PAGES / link).exists(), link


def test_what_is_written_by_hand_stays_and_tables_are_made_anew():
    page = f"Mine.\n<!-- table regbench/cpu: Settings -->\nold\n{END}\nMine too.\n"
    made = with_tables(page, ROOT / "results")
    assert made.startswith("Mine.\n<!-- table regbench/cpu: Settings -->\n\n| setting | here | paper |\n")
    assert made.endswith(f"|\n\n{END}\nMine too.\n")
    assert "old" not in made
    assert with_tables(made, ROOT / "results") == made


@pytest.mark.parametrize(
    ("title", "folder", "message"),
    [
        ("Setings", ROOT / "results", "regbench/cpu: a table must be one of .*Settings.*; got 'Setings'"),
        ("Settings", ROOT, "cpu.json must be there; it is not. `tessera reproduce regbench --budget cpu` makes it."),
    ],
)
def test_a_table_that_there_is_not_is_told(title, folder, message):
    refused(message, with_tables, f"<!-- table regbench/cpu: {title} -->\n{END}", folder)
