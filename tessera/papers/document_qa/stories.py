"""Documents written for this task: short stories of bAbI's first kind, each about people of its own."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from random import Random

from tessera.papers.babilong.stories import MOVES, PLACES

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
NUM_NAMES = 4900


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """All names there are: two syllables of a consonant and a vowel each, in an order of chance."""
    syllables = ["".join(pair) for pair in product(_CONSONANTS, _VOWELS)]
    written = ["".join(pair) for pair in product(syllables, repeat=2)]
    Random("names").shuffle(written)
    return tuple(written)


@dataclass(frozen=True)
class StoryDocument:
    """Facts about people, and where each of them is at the end: (person, place) pairs."""

    facts: tuple[str, ...]
    places: tuple[tuple[str, str], ...]


def write_document(people: tuple[str, ...], moves: int, random: Random) -> StoryDocument:
    """A story in which each of `people` goes `moves` times to another place, in an order of chance."""
    order = [person for person in people for _ in range(moves)]
    random.shuffle(order)
    where: dict[str, str] = {}
    facts = []
    for person in order:
        where[person] = random.choice([place for place in PLACES if place != where.get(person)])
        facts.append(f"{person} {random.choice(MOVES)} the {where[person]}")
    return StoryDocument(tuple(facts), tuple((person, where[person]) for person in people))
