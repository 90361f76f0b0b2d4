"""One classification task in a context: so many shots of so many classes, then a query."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from tessera.errors import expect
from tessera.tasks.many_shot.files import Example
from tessera.tasks.many_shot.prompts import ANONYMOUS

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
) -> Episode:
    """`shots` examples of each of `classes`, and queries of random ones of them that are not among the examples.

    A shot is one example of every class. `order`: "fixed", the classes stand in the same order in each shot;
    "shuffled", in another order in each shot; "mixed", the examples of all shots are shuffled together. Anonymous
    labels are "class 1", "class 2", ..., given to the classes at random.

    Raises:
        TesseraError: an unknown order, or a class with too few examples.
    """
    expect(order in ORDERS, "many_shot", "order", "be one of " + ", ".join(ORDERS), repr(order))
    names = random.sample(list(classes), len(classes))
    labels = [ANONYMOUS.format(number=number) for number in range(1, len(names) + 1)] if anonymous else names
    shown = dict(zip(names, labels))
    chosen_queries = [random.choice(queries[random.choice(names)]) for _ in range(num_queries)]
    texts = {query.text for query in chosen_queries}
    drawn = {}
    for name in names:
        others = [example for example in demonstrations[name] if example.text not in texts]
        enough = f"be at most the examples of the class {name!r} ({len(others)})"
        expect(len(others) >= shots, "many_shot", "shots", enough, shots)
        drawn[name] = random.sample(others, shots)
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
