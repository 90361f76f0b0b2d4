"""The demo: a mosaic learns to find passwords in books, reads two novels in which some are hidden, and is asked.

Every answer comes with the sentence that carried it, and a figure shows where in the books each memory looked.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.files import write_text_atomically, writing
from tessera.base.locks import held
from tessera.data.sources import text_files
from tessera.data.text_files import text_of_files
from tessera.evaluation.display import COLOURS
from tessera.evaluation.provenance import provenance
from tessera.memory_files.answering import Answer
from tessera.memory_files.citations import recalled_of_tokens
from tessera.memory_files.document import text_of_document
from tessera.memory_files.memory import Memory, memory_of
from tessera.memory_files.page import write_page
from tessera.memory_files.planting import read_planted
from tessera.papers.curves import panels
from tessera.papers.passwords.task import FACT, PEOPLE, QUESTION, WORDS
from tessera.recipes.recipe import read_recipe
from tessera.training.folder import is_unfinished_run_of
from tessera.training.run import train

RECIPE = "book-reader"
BOOKS = ("pollyanna_1450.txt.gz", "the_railway_children_1874.txt.gz")
QUESTIONS, WITHOUT = 10, 2  # asked, and how many of them no book answers
SEEN = 0.005  # the least share of what a memory recalled that the figure shows


def bundled_books() -> list[Path]:
    """The two novels that come with the library, of which training saw nothing."""
    return [path for path in text_files("test_books") if path.name in BOOKS]


@dataclass(frozen=True)
class Hidden:
    """A password, the book that it is hidden in, and after which share of it; None of a person without one."""

    person: str
    word: str | None
    book: str | None = None
    place: float | None = None

    @property
    def question(self) -> str:
        """What is asked."""
        return QUESTION.format(person=self.person)

    @property
    def fact(self) -> str | None:
        """The hidden sentence."""
        return None if self.word is None else FACT.format(person=self.person, word=self.word)


class AnsweredQuestion(NamedTuple):
    """A question, its answer, and memory -> the weights with which it recalled each token of the books."""

    hidden: Hidden
    answer: Answer
    recalled: dict[str, Tensor]

    @property
    def is_right(self) -> bool:
        """Whether the answer is the word, or that the books do not say it."""
        said = self.answer.text if self.answer.is_in_text else None
        return said == self.hidden.word

    @property
    def source(self) -> str | None:
        """The sentence that carried the answer."""
        if not self.answer.is_in_text or not self.answer.citations:
            return None
        return " ".join(self.answer.citations[0].text.split())


def demo(output: Path, overrides: list[str], books: list[Path], seed: int) -> None:
    """Train, read, ask; print the answers, and write the figure, the page and the memory into `output`.

    `overrides` change the recipe; `seed` decides which passwords are hidden where.
    Raises `TesseraError`: impossible overrides, books that cannot be read, or an output that cannot be written.
    """
    recipe, names = read_recipe(RECIPE, overrides), [book.name for book in books]
    expect(len(set(names)) == len(names), "demo", "--books", "have different names", ", ".join(names))
    for book in books:  # what cannot be read is said before anything is made
        text = "".join(text_of_files([book], read=text_of_document))
        expect(bool(text.strip()), "demo", "--books", "hold text", f"{str(book)!r}, which is empty")
    with writing(output, "output folder", "Use --output."):
        output.mkdir(parents=True, exist_ok=True)
    with held(output / "demo.lock", "Wait for it, or use another --output."):
        reader = output / "reader"
        print("A mosaic learns to find passwords between the sentences of fairy tales:", flush=True)
        started = time.perf_counter()
        goes_on = is_unfinished_run_of(reader, recipe)
        summary = train(recipe, reader, resume=goes_on, overwrite=not goes_on)
        memory = memory_of(reader)
        hidden, began = list(hidden_passwords(names, seed)), time.perf_counter()
        for book in books:
            hidden = read_with_passwords(memory, book, hidden, seed)
        reading = time.perf_counter() - began
        print(f"read in {reading:.0f} s: {memory.described()}\n", flush=True)
        memory.save(output / "books.memory")
        rows = list(answers(memory, hidden))
        print(f"\nright: {sum(row.is_right for row in rows)} of {len(rows)}")
        write_page(output / "answers.html", memory, [(row.hidden.question, row.answer) for row in rows])
        draw(output / "looked.png", memory, rows)
        results = {
            "provenance": provenance(wall_seconds=time.perf_counter() - started),
            "training": asdict(summary),
            "tokens": {document.name: len(document.tokens) for document in memory.documents},
            "seconds_of_reading": round(reading, 1),
            "answers": [
                {**asdict(row.hidden), "answer": row.answer.text, "probability": row.answer.probability}
                | {"in_text": row.answer.certainty, "source": row.source, "is_right": row.is_right}
                for row in rows
            ],
        }
        write_text_atomically(output / "demo.json", json.dumps(results, indent=1) + "\n")
    again = f"tessera ask {reader} {rows[0].hidden.question!r} --memory {output / 'books.memory'} --cite"
    print(f"{output / 'answers.html'}: the books with these sentences marked")
    print(f"{output / 'looked.png'}: where each memory looked\nAsk again: {again}")


def hidden_passwords(books: Sequence[str], seed: int) -> Iterator[Hidden]:
    """Ten people in random order; eight have a password, in the books in turn."""
    random = Random(seed)
    people = random.sample(PEOPLE, QUESTIONS)
    nobody = set(random.sample(range(QUESTIONS), WITHOUT))
    for number, person in enumerate(people):
        if number in nobody:
            yield Hidden(person, None)
        else:
            yield Hidden(person, random.choice(WORDS), books[number % len(books)])


def read_with_passwords(memory: Memory, book: Path, hidden: Sequence[Hidden], seed: int) -> list[Hidden]:
    """Read `book` with its passwords at random places; `hidden` with these places."""
    own = [question for question in hidden if question.book == book.name]
    facts = [question.fact for question in own if question.fact is not None]
    places = dict(zip(own, read_planted(memory, [book], facts, seed, "demo: --books")))
    return [replace(question, place=places.get(question, question.place)) for question in hidden]


def answers(memory: Memory, hidden: Sequence[Hidden]) -> Iterator[AnsweredQuestion]:
    """Ask for each password, and print the answer, what carried it, and what would have been right."""
    for password in hidden:
        answer = memory.ask(password.question, cite=1)
        row = AnsweredQuestion(password, answer, recalled_of_tokens(memory, memory.state, answer))
        print(f"{password.question}\n  {answer.said()}")
        if row.source is not None and answer.citations:
            print(f"  {answer.citations[0].document}: {row.source}")
        if not row.is_right:
            truth = "no book says it" if password.fact is None else f"{password.book} says: {password.fact}"
            print(f"  wrong: {truth}")
        sys.stdout.flush()
        yield row


def draw(path: Path, memory: Memory, rows: Sequence[AnsweredQuestion]) -> None:
    """For each memory a panel: a line for each question, dots where it recalled tokens of the books, a ring around the
    hidden sentence. The area of a dot is the share of what the memory recalled."""
    sizes = np.array([len(document.tokens) for document in memory.documents])
    ends = sizes.cumsum()
    names = list(rows[0].recalled)
    of_book = {document.name: number for number, document in enumerate(memory.documents)}
    title = "Where each memory looked while it answered (dots), and where the password is hidden (rings)"
    with panels(path, 9, 1.2 + 2.6 * len(names), len(names), title=title, legend="none") as axes:
        for layer, (axis, name) in enumerate(zip(axes, names), 1):
            for number, row in enumerate(rows):
                shares = (row.recalled[name] / row.recalled[name].sum().clamp_min(1e-30))[:-1].numpy()
                seen = np.flatnonzero(shares >= SEEN)
                axis.scatter(seen, np.full(len(seen), number), 120 * shares[seen], COLOURS[0 if row.is_right else 1])
                if row.hidden.book is not None and row.hidden.place is not None:
                    book = of_book[row.hidden.book]
                    place = ends[book] - sizes[book] * (1 - row.hidden.place)
                    axis.scatter([place], [number], 160, facecolors="none", edgecolors=COLOURS[4], linewidths=1.2)
            for end in ends[:-1]:
                axis.axvline(end, color="#94a3b8", linewidth=0.8, linestyle="dashed")
            axis.set_yticks(range(len(rows)), [f"the {row.hidden.person}" for row in rows], fontsize=8)
            axis.invert_yaxis()
            axis.set_xlim(0, ends[-1])
            axis.set_title(f"memory of layer {layer}", fontsize=10)
        axis.set_xlabel(", then ".join(f"{name} ({size:,} tokens)" for name, size in zip(of_book, sizes)))
