"""The prompts of many-shot classification, as Memory Mosaics v2 prints them (appendix G), and what stands in them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from random import Random

from tessera.base.errors import expect
from tessera.papers.many_shot.files import Example

DELIMITERS = {"newline": "\n", "space": " "}
ANONYMOUS = "class {number}"
ORDERS = ("fixed", "shuffled", "mixed")
# Delimiter and order: the best of them counts at each number of shots.
STRATEGIES = tuple(f"{delimiter}, {order}" for delimiter in DELIMITERS for order in ("fixed", "shuffled"))


@dataclass(frozen=True)
class Template:
    """How examples of one data set are written.

    Attributes:
        instruction: comes first. text_name, label_name: stand before a text and before its label; `label_name` may
            name the fields of an example's `details`.
    """

    instruction: str
    text_name: str
    label_name: str

    def prompt(self, demonstrations: Sequence[Example], query: Example, delimiter: str) -> str:
        """Instruction, demonstrations with their labels, and the query up to its label's name.

        `delimiter` ("newline" or "space") stands between a name and what it names; as printed, the first
        demonstration follows the instruction after a space where the delimiter is a newline, and after a newline where
        it is a space. The label is expected behind `DELIMITERS[delimiter]`.
        """
        expect(delimiter in DELIMITERS, "many_shot", "delimiter", "be newline or space", repr(delimiter))
        between = DELIMITERS[delimiter]
        lines = [f"{self.question(example, delimiter)}{between}{example.label}" for example in demonstrations]
        first = " " if delimiter == "newline" else "\n"
        return self.instruction + first + "\n".join([*lines, self.question(query, delimiter)])

    def question(self, example: Example, delimiter: str) -> str:
        """One text with the names before it and behind it, without its label."""
        between, label_name = DELIMITERS[delimiter], self.label_name.format(**dict(example.details))
        return f"{self.text_name}:{between}{example.text}\n{label_name}:"


_FORMAT = (
    "The predict answer must come from the demonstration examples with the exact format. The examples are as follows:"
)
TEMPLATES = {
    "banking77": Template(
        f"Given a customer service query, please predict the intent of the query. {_FORMAT}",
        "service query",
        "intent category",
    ),
    "goemotions": Template(
        f"Given a comment, please predict the emotion category of this comment. {_FORMAT}",
        "comment",
        "emotion category",
    ),
    "tacred": Template(
        "Given a sentence and a pair of subject and object entities within the sentence, please predict the relation"
        " between the given entities. The examples are as follows:",
        "sentence",
        "the relation between {subject} and {object} is",
    ),
}


@dataclass(frozen=True)
class Episode:
    """Demonstrations and queries, each query to be read right behind the demonstrations.

    Attributes:
        classes: the real classes. labels: what is shown for each of them, in the same order.
    """

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
    labels are "class 1", "class 2", ..., given to the classes at random. With `distinct`, a class has so many different
    examples, which take turns in the shots, and the queries are among them.

    Raises:
        TesseraError: an unknown order, or a class with too few examples.
    """
    expect(order in ORDERS, "many_shot", "order", "be one of " + ", ".join(ORDERS), repr(order))
    names = random.sample(list(classes), len(classes))
    labels = [ANONYMOUS.format(number=number) for number in range(1, len(names) + 1)] if anonymous else names
    shown = dict(zip(names, labels))
    if distinct is None:
        chosen_queries = [random.choice(queries[random.choice(names)]) for _ in range(num_queries)]
        asked = {query.text for query in chosen_queries}
        drawn = {name: _some(name, demonstrations[name], shots, asked, random) for name in names}
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
    expect(len(others) >= count, "many_shot", "shots", f"be at most the examples of the class {name!r} ({len(others)})",
           count)  # fmt: skip
    return random.sample(others, count)
