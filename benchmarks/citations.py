"""Passwords hidden in novels, asked of a mosaic that has learned to find such: which sentence does it cite?

    tessera train book-reader
    python -m benchmarks.citations runs/book-reader --out results/memory_files/citations.json

Each text begins at a random place of a random novel of which neither training nor the demo's settings saw anything. It
is asked about people whose password is hidden in it and about some who have none. In long texts (60,000 letters) there
are 20 passwords, in short ones (3,000) 6. --split validation takes the fairy tales of the validation split instead, for
choices.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tessera.base.files import write_text_atomically
from tessera.data.sources import story_files, text_files
from tessera.data.text_files import text_of_files
from tessera.evaluation.provenance import provenance
from tessera.memory_files import Memory
from tessera.memory_files.planting import PlantedText
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.papers.babilong.sample import SENTENCE_END
from tessera.papers.passwords.demo import AnsweredQuestion, Hidden, bundled_books
from tessera.papers.passwords.task import PEOPLE, WORDS

LETTERS = {"long": 60_000, "short": 3_000}
PASSWORDS = {"long": 20, "short": 6}  # of a text
ASKED = {"long": (20, 10), "short": (1, 1)}  # of a text: people with a password, and without
SEEDS = {"validation": 1, "test": 2}


def novels(split: str) -> list[str]:
    """The texts of a split."""
    if split == "validation":
        return [path.read_text(encoding="utf-8") for path in story_files("validation")]
    seen = bundled_books()
    return ["".join(text_of_files([path])) for path in text_files("test_books") if path not in seen]


def answered(memory: Memory, hidden: list[Hidden]) -> Iterator[dict[str, Any]]:
    """What came of a question about each."""
    for one in hidden:
        answer = memory.ask(one.question, cite=1)
        row = AnsweredQuestion(one, answer, {})
        cited = [citation.text for citation in answer.citations or ()]
        yield {
            "present": one.word is not None,
            "right": row.is_right,
            "cited": one.fact is not None and cited[:1] == [one.fact],
            "in_text": answer.is_in_text,
        }


def measured(memory: Memory, books: list[str], kind: str, texts: int, random: Random) -> Iterator[dict[str, Any]]:
    """Counts after each text of a kind."""
    rows: list[dict[str, Any]] = []
    tokens = 0
    for number in range(1, texts + 1):
        book = random.choice(books)
        begin = book.index(" ", random.randrange(len(book) - LETTERS[kind] - 1000))
        text = book[begin : begin + LETTERS[kind]]
        *_, end = SENTENCE_END.finditer(text)
        text = text[: end.end()]  # what is hidden behind it is a sentence of its own, too
        people = random.sample(PEOPLE, len(PEOPLE))
        hidden = [Hidden(person, random.choice(WORDS)) for person in people[: PASSWORDS[kind]]]
        facts = [one.fact for one in hidden if one.fact is not None]
        planted = PlantedText([text], len(text.encode()), facts, random.getrandbits(32))
        memory.documents = ()
        memory.read(planted, "text", precision="auto")
        present, absent = ASKED[kind]
        nobody = [Hidden(person, None) for person in people[PASSWORDS[kind] :]]
        rows += answered(memory, random.sample(hidden, present) + random.sample(nobody, absent))
        tokens += len(memory.documents[0].tokens)
        yield {"texts": number, "tokens_of_a_text": tokens // number, **counts(rows)}


def counts(rows: list[dict[str, Any]]) -> dict[str, int]:
    """How many answers and citations are right, of people with a password and of others."""
    present, absent = ([row for row in rows if row["present"] is there] for there in (True, False))
    return {
        "present": len(present),
        "right": sum(row["right"] for row in present),
        "first_citation_is_the_fact": sum(row["cited"] for row in present),
        "present_yet_not_in_text": sum(not row["in_text"] for row in present),
        "absent": len(absent),
        "absent_yet_in_text": sum(row["in_text"] for row in absent),
    }


def main() -> None:
    """Read, ask, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run of book-reader")
    parser.add_argument("--split", choices=SEEDS, default="test")
    parser.add_argument("--long", type=int, default=50, help="long texts")
    parser.add_argument("--short", type=int, default=1000, help="short texts")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    began, books, random = time.perf_counter(), novels(arguments.split), Random(SEEDS[arguments.split])
    memory = Memory(load_model(arguments.run), load_tokenizer(arguments.run))
    record: dict[str, Any] = {"split": arguments.split}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("long", "short"):
        for counted in measured(memory, books, kind, getattr(arguments, kind), random):
            record[kind] = counted
            if kind == "long" or counted["texts"] % 50 == 0:
                print(kind, counted, flush=True)
                made = record | {"provenance": provenance(wall_seconds=time.perf_counter() - began)}
                write_text_atomically(arguments.out, json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
