"""Sentences hidden in a text that is read: what a model finds of them can be checked."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tessera.data.encoding import PIECE
from tessera.data.text_files import text_of_files
from tessera.memory_files.document import text_of_document
from tessera.memory_files.memory import Memory

# With the white space behind it, which Chinese and Japanese sentences do not have.
SENTENCE_END = re.compile(r"(?<=[.!?])[\"”’')_]*\s+|[。！？]+[”’）」』]*\s*")


class PlantedText:
    """The pieces of a text, with `facts` in their order between its sentences, at random places.

    Attributes:
        places: where each fact was planted so far, as a share of the text.
    """

    def __init__(self, texts: Iterable[str], size: int, facts: Sequence[str], seed: int = 0) -> None:
        """`size`: bytes of the text. The same seed gives the same places."""
        random = Random(seed)
        self.texts, self.size = texts, max(1, size)
        self.places: list[float] = []
        self._pending = list(zip(sorted(random.random() for _ in facts), facts))

    def __iter__(self) -> Iterator[str]:
        position = 0
        for piece in self.texts:
            data = piece.encode()
            parts, begin = [], 0
            while self._pending and self._pending[0][0] * self.size <= position + len(data):
                place, fact = self._pending[0]
                before = data[: max(0, int(place * self.size) - position)].decode(errors="ignore")
                end = SENTENCE_END.search(piece, max(begin, len(before)))
                if end is None:  # the sentence goes on in the next piece
                    break
                parts += [piece[begin : end.end()], f"{fact} "]
                begin = end.end()
                self.places.append((position + len(piece[:begin].encode())) / self.size)
                del self._pending[0]
            position += len(data)
            yield "".join([*parts, piece[begin:]])
        for _, fact in self._pending:
            self.places.append(1.0)
            yield f" {fact}"


def read_planted(
    memory: Memory, paths: Sequence[Path], facts: Sequence[str], seed: int, where: str = "ask: --text"
) -> list[float]:
    """Read the texts with the facts planted in them, as one document; says on standard error what was read.

    Texts without facts are documents of their own where documents are kept apart. Returns where each fact stands, as a
    share of the text. Errors begin with `where`.
    """
    options: dict[str, Any] = {"progress": sys.stderr.isatty(), "precision": "auto"}
    names = ", ".join(path.name for path in paths)
    places: list[float] = []
    if memory.is_of_pairs and not facts:
        for path in paths:
            memory.read(path, where=where, **options)
    else:
        size = sum(len(text.encode()) for text in text_of_files(paths, read=text_of_document)) if facts else 0
        text = PlantedText(text_of_files(paths, PIECE, text_of_document), size, facts, seed)
        memory.read(text, names, where=where, **options)
        places = text.places
        for fact, place in zip(facts, places):
            print(f"planted after {100 * place:.0f} % of the text: {fact}", file=sys.stderr)
    print(f"{names}: {memory.described().replace('tokens', 'tokens read', 1)}", file=sys.stderr)
    return places
