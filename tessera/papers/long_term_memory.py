"""What v2 loses when its long-term memories are switched off after training: one table over all experiments.

The paper's table 6 names tasks that lose much, table 2 tasks that lose nothing, table 7 questions about documents.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from tessera.papers.document_qa import report as document_qa
from tessera.papers.many_shot import report as many_shot
from tessera.papers.records import Curve
from tessera.papers.results import ResultsFile
from tessera.papers.tables import markdown, percent, with_error
from tessera.tasks.task import estimate

STORIES = Path("v2") / "stories.json"
GUESSING = {"forms of words": 50, "last words": 25, "names": 25}
# Table 6: six benchmarks, then with the long-term memories off. Table 2: the other thirteen.
BENCHMARKS = {"squad": (78.2, 69.4), "bbh": (47.8, 24.6), "math": (8.8, 5.4), "mbpp": (9.6, 6.8),
              "race middle": (61.6, 59.5), "race high": (46.5, 43.6), "13 others, mean": (56.8, 56.6)}  # fmt: skip


def tables(results: Path, budget: str) -> dict[str, str]:
    """The table of what is stored under `results`, and the paper's."""
    documents, episodes = (ResultsFile(results, name, budget).read() for name in ("document_qa", "many_shot"))
    rows = []
    for stage, title in document_qa.STAGES.items():
        rows += _rows(document_qa.curves(documents, stage), f"document questions, {title.lower()}, {{:,}} tokens")
    rows += _rows(many_shot.best(episodes, "exact_match"), "new classes, {} shots") if episodes else []
    headings = ["task", "with, %", "without, %", "difference, points"]
    parts = {"Ours": markdown(headings, rows)}
    if (results / STORIES).exists():
        stories = json.loads((results / STORIES).read_text(encoding="utf-8"))
        parts |= {"Ours, language": _losses(stories), "Ours, choices between words": _choices(stories)}
    paper = {f"benchmark: {name}": pair for name, pair in BENCHMARKS.items()}
    lengths = zip(document_qa.LENGTHS, document_qa.TUNED_V2, document_qa.TUNED_V2_OFF)
    paper |= {f"documents, {length} tokens": (on, off) for length, on, off in lengths}
    cells = [[name, f"{on:.1f}", f"{off:.1f}", f"{off - on:+.1f}"] for name, (on, off) in paper.items()]
    return parts | {"Paper": markdown(headings, cells)}


def _rows(curves: Iterable[Curve], task: str) -> list[list[str]]:
    """A row for each length: with the long-term memories, without them, and the difference."""
    by_name = {curve.label: curve.points for curve in curves}
    on, off = (by_name.get(name, {}) for name in (document_qa.NAMES["mosaic_v2"], document_qa.OFF["mosaic_v2"]))
    return [
        [task.format(n), percent(on[n]), percent(off[n]), f"{100 * (off[n].mean - on[n].mean):+.1f}"]
        for n in sorted(on.keys() & off.keys())
    ]


def _losses(stories: dict[str, Any]) -> str:
    """Loss of the small v2 language models, within their trained context and up to eight times as far."""
    names = {"stories, trained context": "loss", "stories, eight times the trained context": "loss_at_longest"}
    rows = []
    for name, key in names.items():
        on, off = (torch.tensor([row[state][key] for row in stories["v2"]["seeds"]]) for state in ("on", "off"))
        rows.append([name, *(with_error(estimate(part), ".3f") for part in (on, off, off - on))])
    return markdown(["task", "with, nats per token", "without", "difference"], rows)


def _choices(stories: dict[str, Any]) -> str:
    """Right answers of the same models to `benchmarks.story_questions`, in the mean over seeds; errors over books."""
    rows = []
    for task, books in stories["books"].items():
        states = ("on", "off")
        on, off = (torch.tensor([row[state]["right"][task] for row in stories["v2"]["seeds"]]) for state in states)
        cells = [percent(estimate(part.mean(0), torch.tensor(books))) for part in (on, off, off - on)]
        rows.append([task, f"{GUESSING[task]}", *cells])
    return markdown(["task", "guessing, %", "with, %", "without, %", "difference, points"], rows)
