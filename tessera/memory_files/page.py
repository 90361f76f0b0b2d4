"""The documents of a memory as one HTML file, with the passages marked that carried the answers."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tessera.base.files import is_marked, write_text_atomically, writing
from tessera.inspection.page import content_hash
from tessera.inspection.text import TokenTexts
from tessera.memory_files.answering import Answer

if TYPE_CHECKING:
    from tessera.memory_files.memory import Memory

HEAD = "<title>Answers: "
STYLE = """
body { font: 16px/1.5 Georgia, serif; max-width: 44em; margin: 2em auto; padding: 0 1em; }
pre { white-space: pre-wrap; font: inherit; }
mark { background: #ffe08a; }
small { color: #555; }
"""


def is_page(path: Path) -> bool:
    """Whether `path` is a file that `write_page` wrote."""
    return is_marked(path, HEAD)


def write_page(path: Path, memory: "Memory", answers: Sequence[tuple[str, Answer]]) -> None:
    """Write questions and answers with links to their passages, and the documents below. The page runs no code.

    Raises `TesseraError`: the file cannot be written.
    """
    cited = {(c.document, c.first, c.end) for _, answer in answers for c in answer.citations or ()}
    numbers = {passage: number for number, passage in enumerate(sorted(cited), 1)}
    body = []
    for question, answer in answers:
        body.append(f"<h2>{html.escape(question)}</h2><p>{html.escape(answer.text)}</p><ol>")
        for citation in answer.citations or ():
            number = numbers[citation.document, citation.first, citation.end]
            link = f'<a href="#p{number}">{html.escape(citation.text)}</a>'
            source = f"{citation.document}, bytes {citation.first:,}-{citation.end:,}"
            what = f"{source}; weight {citation.weight:.3f}, drop {citation.drop:.3f}"
            body.append(f"<li>{link}<br><small>{html.escape(what)}</small></li>")
        body.append("</ol>" + ("" if answer.is_in_text else "<p>Not in this text: no passage carries the answer.</p>"))
    texts = TokenTexts(memory.tokenizer)
    for document in memory.documents:
        opening, starts = document.opening(memory.tokenizer), document.starts()
        shown = ("",) * opening + texts.of_text(document.tokens[opening:].tolist())
        parts, done = [], 0
        for (name, first, end), number in numbers.items():
            if name == document.name:  # passages of different questions may overlap
                begin, stop = torch.searchsorted(starts, torch.tensor([first, end])).clamp_min(done).tolist()
                parts.append(html.escape("".join(shown[done:begin])))
                parts.append(f'<mark id="p{number}">{html.escape("".join(shown[begin:stop]))}</mark>')
                done = stop
        parts.append(html.escape("".join(shown[done:])))
        body.append(f"<h2>{html.escape(document.name)}</h2><pre>{''.join(parts)}</pre>")
    policy = f"default-src 'none'; style-src '{content_hash(STYLE)}'"
    title = html.escape(", ".join(question for question, _ in answers))
    page = (
        f'<!doctype html><html><head><meta charset="utf-8">{HEAD}{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )
    with writing(path):
        write_text_atomically(path, page.encode("utf-8", "replace").decode("utf-8"))
