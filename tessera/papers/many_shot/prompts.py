"""What many-shot prompts are made of: labelled texts of public files, templates, and contexts drawn from them.

Memory Mosaics v2 prints the templates in its appendix G; the files are those of Banking77 and GoEmotions.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from tessera.base.errors import TesseraError, expect
from tessera.data.text_files import text_of_file

BANKING77 = Path(__file__).parents[2] / "data" / "banking77"
DELIMITERS = {"newline": "\n", "space": " "}
ANONYMOUS = "class {number}"
ORDERS = ("fixed", "shuffled", "mixed")
# Delimiter and order: the best of them counts at each number of shots.
STRATEGIES = tuple(f"{delimiter}, {order}" for delimiter in DELIMITERS for order in ("fixed", "shuffled"))


class Example(NamedTuple):
    """A text and its label."""

    text: str
    label: str


def read_examples(kind: str, path: Path) -> list[Example]:
    """The examples of a file of one of `READERS`. Raises `TesseraError` if it is missing, or not of this form."""
    examples = READERS[kind](path, "".join(text_of_file(path)))
    if not examples:
        raise TesseraError(f"{path}: must hold labelled texts; got none.")
    return examples


def _banking77(path: Path, text: str) -> list[Example]:
    """`train.csv` or `test.csv`: CSV with the header `text,category`."""
    rows, examples = csv.DictReader(io.StringIO(text)), []
    needed = "be CSV with the header text,category"
    expect(rows.fieldnames == ["text", "category"], str(path), "it", needed, rows.fieldnames)
    try:
        for row in rows:
            is_whole = bool(row["text"] and row["category"])
            expect(is_whole, str(path), f"line {rows.line_num}", "hold a text and a category", row)
            examples.append(Example(" ".join(row["text"].split()), row["category"]))
    except csv.Error as error:
        raise TesseraError(f"{path}: cannot be read as CSV ({error}).") from None
    return examples


def _goemotions(path: Path, text: str) -> list[Example]:
    """The examples with a single label: text, numbers of labels and id, separated by tabs, perhaps under a header.

    The names of the labels are the lines of `labels.txt` beside the file (the original files call it `emotions.txt`).
    """
    paths = [path.parent / name for name in ("labels.txt", "emotions.txt")]
    found = [labels for labels in paths if labels.exists()]
    expect(bool(found), str(path), "labels.txt or emotions.txt", "lie beside it, a label in each line", "neither")
    names = "".join(text_of_file(found[0])).split()
    numbered, examples = {str(number): name for number, name in enumerate(names)}, []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        fields = line.split("\t")
        if fields == ["text", "label", "id"]:
            continue
        labels = fields[1].split(",") if len(fields) == 3 else []
        is_whole = bool(labels) and all(label in numbered for label in labels)
        needed = f"be text, labels below {len(names)} and id, separated by tabs"
        expect(is_whole, str(path), f"line {number}", needed, repr(line[:60]))
        if len(labels) == 1:
            examples.append(Example(fields[0].strip(), numbered[labels[0]]))
    return examples


READERS: dict[str, Callable[[Path, str], list[Example]]] = {"banking77": _banking77, "goemotions": _goemotions}


def by_label(examples: list[Example]) -> dict[str, list[Example]]:
    """The examples of each label, labels in alphabetical order."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.label, []).append(example)
    return dict(sorted(groups.items()))


@dataclass(frozen=True)
class Template:
    """How examples of one data set are written."""

    instruction: str
    text_name: str
    label_name: str

    def prompt(self, demonstrations: Sequence[Example], query: Example, delimiter: str) -> str:
        """Instruction, demonstrations with their labels, and the query up to its label's name.

        As printed, the first demonstration follows the instruction after a space where the delimiter between a name and
        what it names is a newline, and after a newline where it is a space.
        """
        expect(delimiter in DELIMITERS, "many_shot", "delimiter", "be newline or space", repr(delimiter))
        between = DELIMITERS[delimiter]
        lines = [f"{self.question(example, delimiter)}{between}{example.label}" for example in demonstrations]
        first = " " if delimiter == "newline" else "\n"
        return self.instruction + first + "\n".join([*lines, self.question(query, delimiter)])

    def question(self, example: Example, delimiter: str) -> str:
        """One text with the names before it and behind it, without its label."""
        return f"{self.text_name}:{DELIMITERS[delimiter]}{example.text}\n{self.label_name}:"


_FORMAT = (
    "The predict answer must come from the demonstration examples with the exact format. The examples are as follows:"
)
TEMPLATES = {
    "banking77": Template(
        f"Given a customer service query, please predict the intent of the query. {_FORMAT}",
        "service query", "intent category",
    ),
    "goemotions": Template(
        f"Given a comment, please predict the emotion category of this comment. {_FORMAT}",
        "comment", "emotion category",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Episode:
    """Demonstrations, queries that are each read right behind them, and the label that is shown for each class."""

    demonstrations: tuple[Example, ...]
    queries: tuple[Example, ...]
    classes: tuple[str, ...]
    labels: tuple[str, ...]


def draw_episode(
    demonstrations: Mapping[str, Sequence[Example]],
    queries: Mapping[str, Sequence[Example]],
    classes: Sequence[str],
    shots: int,
    order: str,
    anonymous: bool,
    random: Random,
    num_queries: int = 1,
    distinct: int | None = None,
) -> Episode:
    """`shots` examples of each of `classes`, and queries of random ones of them that are not among the examples.

    A shot is one example of every class. `order`: "fixed", the classes stand in the same order in each shot;
    "shuffled", in another order in each shot; "mixed", the examples of all shots are shuffled together. Anonymous
    labels are given to the classes at random. With `distinct`, a class has so many different examples, which take turns
    in the shots, and the queries are among them. Raises `TesseraError` if a class has too few examples.
    """
    names = random.sample(list(classes), len(classes))
    labels = [ANONYMOUS.format(number=number) for number in range(1, len(names) + 1)] if anonymous else names
    shown = dict(zip(names, labels))
    if distinct is None:
        chosen_queries = [random.choice(queries[random.choice(names)]) for _ in range(num_queries)]
        query_texts = {query.text for query in chosen_queries}
        drawn = {name: _some(name, demonstrations.get(name, ()), shots, query_texts, random) for name in names}
    else:
        repeated = {name: _some(name, demonstrations[name], distinct, set(), random) for name in names}
        drawn = {name: [several[shot % distinct] for shot in range(shots)] for name, several in repeated.items()}
        chosen_queries = [random.choice(repeated[random.choice(names)]) for _ in range(num_queries)]
    examples = []
    for shot in range(shots):
        order_of_shot = names if order == "fixed" else random.sample(names, len(names))
        examples += [drawn[name][shot] for name in order_of_shot]
    if order == "mixed":
        random.shuffle(examples)
    demonstrated, queried = (
        tuple(example._replace(label=shown[example.label]) for example in group) for group in (examples, chosen_queries)
    )
    return Episode(demonstrated, queried, tuple(names), tuple(labels))


def _some(name: str, examples: Sequence[Example], count: int, without: Set[str], random: Random) -> list[Example]:
    """`count` of a class's examples, none with a text in `without`."""
    others = [example for example in examples if example.text not in without]
    needed = f"be at most the examples of the class {name!r} ({len(others)})"
    expect(len(others) >= count, "many_shot", "shots", needed, count)
    return random.sample(others, count)
