"""One classification task in a context: so many shots of so many classes, then a query."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from random import Random

from tessera.base.errors import expect
from tessera.papers.many_shot.files import Example
from tessera.papers.many_shot.prompts import ANONYMOUS

ORDERS = ("fixed", "shuffled", "mixed")


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
        tuple(replace(one, label=shown[one.label]) for one in group) for group in (examples, chosen_queries)
    )
    return Episode(demonstrated, queried, tuple(names), tuple(labels))


def _some(name: str, examples: Sequence[Example], count: int, without: Set[str], random: Random) -> list[Example]:
    """`count` of a class's examples, none with a text in `without`."""
    others = [example for example in examples if example.text not in without]
    expect(len(others) >= count, "many_shot", "shots", f"be at most the examples of the class {name!r} ({len(others)})",
           count)  # fmt: skip
    return random.sample(others, count)
