"""What v2 loses when its long-term memories are switched off after training: one table over all experiments.

The paper's table 6 names tasks that lose much, table 2 tasks that lose nothing, table 7 questions about documents.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tessera.papers.document_qa import published
from tessera.papers.document_qa import report as document_qa
from tessera.papers.many_shot import report as many_shot
from tessera.papers.many_shot.published import NAMES as MANY_SHOT_NAMES
from tessera.papers.many_shot.published import WITHOUT_LONG_TERM
from tessera.papers.results import ResultsFile
from tessera.papers.tables import markdown
from tessera.tasks.task import Estimate

STORIES = Path("v2") / "stories.json"


def tables(results: Path, budget: str) -> dict[str, str]:
    """The table of what is stored under `results`, and the paper's."""
    rows = [*_documents(results, budget), *_many_shot(results, budget)]
    headings = ["task", "with, %", "without, %", "difference, points"]
    parts = {"Ours": markdown(headings, rows)}
    if (results / STORIES).exists():
        parts["Ours, language"] = _stories(results / STORIES)
    paper = [[f"benchmark: {name}", *_numbers(*pair)] for name, pair in published.BENCHMARKS.items()]
    lengths = zip(("4k", "8k", "16k", "32k"), published.TUNED["large"]["mosaic_v2"], published.TUNED_WITHOUT_LONG_TERM)
    paper += [[f"documents, {length} tokens", *_numbers(on, off)] for length, on, off in lengths if on is not None]
    return parts | {"Paper": markdown(headings, paper)}


def _documents(results: Path, budget: str) -> Iterator[list[str]]:
    curves = document_qa.curves(ResultsFile(results, "document_qa", budget).read())
    for stage, title in document_qa.STAGES.items():
        of_stage = {one.has_long_term: one.points for one in curves if (one.stage, one.model) == (stage, "mosaic_v2")}
        for length, on in of_stage.get(True, {}).items():
            yield [f"document questions, {title.lower()}, {length:,} tokens", *_cells(on, of_stage[False][length])]


def _many_shot(results: Path, budget: str) -> Iterator[list[str]]:
    curves = many_shot.curves(ResultsFile(results, "many_shot", budget).read())
    best = {one.name: one.points for one in curves if one.strategy is None and one.score == "exact_match"}
    for shots, on in best.get(MANY_SHOT_NAMES["mosaic_v2"], {}).items():
        yield [f"new classes, {shots} shots", *_cells(on, best[WITHOUT_LONG_TERM][shots])]


def _cells(on: Estimate, off: Estimate) -> list[str]:
    return [document_qa.percent(on), document_qa.percent(off), f"{100 * (off.mean - on.mean):+.1f}"]


def _numbers(on: float, off: float) -> list[str]:
    return [f"{on:.1f}", f"{off:.1f}", f"{off - on:+.1f}"]


def _stories(path: Path) -> str:
    """Loss of the small v2 language model on stories, within its trained context and up to eight times as far."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    on, off = stored["v2"], stored["v2 without long-term memory"]
    rows = [
        [name, f"{on[key]:.3f}", f"{off[key]:.3f}", f"{off[key] - on[key]:+.3f}"]
        for name, key in (
            ("stories, trained context", "loss"),
            ("stories, eight times the trained context", "loss_at_longest"),
        )
    ]
    return markdown(["task", "with, nats per token", "without", "difference"], rows)
