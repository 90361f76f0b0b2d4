"""The rules of bAbI's tasks 1 to 5: what follows from the facts of a story, read as text."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

MOVE = re.compile(r"(\w+) (?:went|travelled|journeyed|moved|went back) to the (\w+)")
TAKE = re.compile(r"(\w+) (?:got|grabbed|took|picked up) the (\w+)")
DROP = re.compile(r"(\w+) (?:dropped|put down|let go of|discarded|left) the (\w+)")
GIVE = re.compile(r"(\w+) (?:gave|handed|passed) (?:the (\w+) to (\w+)|(\w+) the (\w+))")
SIDE = re.compile(r"the (\w+) is (north|south|east|west) of the (\w+)")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


@dataclass
class World:
    """What is known after some facts. Names are lower case.

    Attributes:
        place: of each person. holder: who has each object. object_places: where each object has been, in order,
            without repetition. gifts: (giver, receiver, object), oldest first. sides: (side, place) -> the place that
            lies on that side of it.
    """

    place: dict[str, str] = field(default_factory=dict)
    holder: dict[str, str] = field(default_factory=dict)
    object_places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    gifts: list[tuple[str, str, str]] = field(default_factory=list)
    sides: dict[tuple[str, str], str] = field(default_factory=dict)

    def read(self, fact: str) -> None:
        """Take one sentence in; a sentence that is no fact changes nothing."""
        fact = fact.lower()
        if match := MOVE.match(fact):
            person, place = match.groups()
            self.place[person] = place
            for thing, holder in self.holder.items():
                if holder == person:
                    self._brought(thing, place)
        elif match := TAKE.match(fact):
            self._hand(*match.groups())
        elif match := DROP.match(fact):
            self.holder.pop(match[2], None)
        elif match := GIVE.match(fact):
            thing, receiver = match[2] or match[5], match[3] or match[4]
            self.gifts.append((match[1], receiver, thing))
            self._hand(receiver, thing)
        elif match := SIDE.match(fact):
            first, side, other = match.groups()
            self.sides[side, other], self.sides[OPPOSITE[side], first] = first, other

    def _hand(self, person: str, thing: str) -> None:
        self.holder[thing] = person
        if person in self.place:
            self._brought(thing, self.place[person])

    def _brought(self, thing: str, place: str) -> None:
        if not self.object_places[thing] or self.object_places[thing][-1] != place:
            self.object_places[thing].append(place)


def _where_is(world: World, name: str) -> str | None:
    places = world.object_places.get(name)
    return world.place.get(name) or (places[-1] if places else None)


def _where_before(world: World, thing: str, place: str) -> str | None:
    places = world.object_places.get(thing, [])
    if place not in places[1:]:
        return None
    return places[len(places) - 2 - places[::-1].index(place)]


def _beside(world: World, place: str, side: str = "", opposite: str = "") -> str | None:
    return world.sides.get((side or OPPOSITE[opposite], place))


GIFT = ("giver", "receiver", "thing")


def _last_gift(role: str, world: World, **known: str) -> str | None:
    """Who or what has this `role` (one of `GIFT`) in the newest gift that agrees with what is known."""
    gifts = (dict(zip(GIFT, gift)) for gift in reversed(world.gifts))
    return next((gift[role] for gift in gifts if known.items() <= gift.items()), None)


# Each kind of question, and what its parts, by name, have to do with the world.
QUESTIONS = (
    (re.compile(r"where is (?:the )?(?P<name>\w+)$"), _where_is),
    (re.compile(r"where was the (?P<thing>\w+) before the (?P<place>\w+)$"), _where_before),
    (re.compile(r"what is (?P<side>\w+) of the (?P<place>\w+)$"), _beside),
    (re.compile(r"what is the (?P<place>\w+) (?P<opposite>\w+) of$"), _beside),
    (re.compile(r"what did (?P<giver>\w+) give to (?P<receiver>\w+)$"), partial(_last_gift, "thing")),
    (re.compile(r"who did (?P<giver>\w+) give the (?P<thing>\w+) to$"), partial(_last_gift, "receiver")),
    (re.compile(r"who gave the (?P<thing>\w+) to (?P<receiver>\w+)$"), partial(_last_gift, "giver")),
    (re.compile(r"who received the (?P<thing>\w+)$"), partial(_last_gift, "receiver")),
    (re.compile(r"who gave the (?P<thing>\w+)$"), partial(_last_gift, "giver")),
)


def world_after(facts: Iterable[str]) -> World:
    """What is known after `facts`."""
    world = World()
    for fact in facts:
        world.read(fact)
    return world


def answer(world: World, question: str) -> str | None:
    """The answer in one lower-case word; None where the facts do not say, or the question is of no known kind."""
    text = question.lower().strip().removesuffix("?").strip().removesuffix(" last")
    for pattern, answer_from in QUESTIONS:
        if match := pattern.match(text):
            return answer_from(world, **match.groupdict())
    return None


def answer_to_text(text: str) -> str | None:
    """The answer to the question that ends a text in lower case, by the facts among its sentences; None: none."""
    sentences = re.sub("[.?]", " . ", text).split(" . ")
    *context, question = [sentence for sentence in map(str.strip, sentences) if sentence]
    world = world_after(_suffixes(context))
    return next(filter(None, (answer(world, suffix) for suffix in _suffixes([question]))), None)


def _suffixes(sentences: Sequence[str]) -> Iterator[str]:
    """Each sentence from every word on: the noise before a fact or a question may have been cut without a stop."""
    for sentence in sentences:
        words = sentence.split()
        yield from (" ".join(words[begin:]) for begin in range(len(words)))
