"""docs/experiments.md is what `make experiments-page` makes of results/ now."""

from tessera.experiments.report import page
from tests.docs.test_code_blocks import ROOT


def test_the_page_is_up_to_date():
    written = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert written == page(ROOT / "results"), "run `make experiments-page`"


def test_tables_beside_the_results_are_those_of_the_page():
    written = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    for table in sorted((ROOT / "results").glob("*/cpu.md")):
        body = table.read_text(encoding="utf-8").split("\n\n", 3)[3]
        assert body.strip() in written, f"{table} is older than the page"
