"""Stories of bAbI's tasks 1 to 5: their rules, a small grammar that writes them, and files of the published format."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from random import Random

from tessera.base.errors import TesseraError
from tessera.data.sources import text_files
from tessera.data.text_files import text_of_file

MOVE = re.compile(r"(\w+) (?:went|travelled|journeyed|moved|went back) to the (\w+)")
TAKE = re.compile(r"(\w+) (?:got|grabbed|took|picked up) the (\w+)")
DROP = re.compile(r"(\w+) (?:dropped|put down|let go of|discarded|left) the (\w+)")
GIVE = re.compile(r"(\w+) (?:gave|handed|passed) (?:the (\w+) to (\w+)|(\w+) the (\w+))")
SIDE = re.compile(r"the (\w+) is (north|south|east|west) of the (\w+)")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
GIFT = ("giver", "receiver", "thing")
PEOPLE = ("Mary", "John", "Sandra", "Daniel")
GIVERS = ("Mary", "Fred", "Bill", "Jeff")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("football", "apple", "milk")
MOVES = ("went to", "travelled to", "journeyed to", "moved to")
TAKES = ("got", "grabbed", "took")
DROPS = ("dropped", "put down", "let go of")
# Facts of a generated story, from and to: what bAbI's own generator makes up to a question.
LENGTHS = {"qa1": (2, 10), "qa2": (3, 77), "qa3": (3, 96), "qa4": (2, 2), "qa5": (3, 84)}
# Of 10,000 questions that it made, every twentieth by the number of facts; QA1's are spread evenly.
TWENTIETHS = {
    "qa2": (3, 6, 8, 10, 11, 13, 15, 16, 17, 19, 20, 22, 23, 25, 26, 28, 30, 32, 36, 41, 77),
    "qa3": (3, 8, 11, 13, 14, 16, 17, 18, 20, 21, 22, 24, 25, 27, 28, 30, 33, 36, 40, 48, 96),
    "qa5": (3, 8, 10, 12, 13, 15, 17, 19, 20, 22, 24, 25, 27, 29, 31, 33, 35, 37, 40, 44, 84),
}
FEWEST = {"qa1": 1, "qa2": 2, "qa3": 3, "qa4": 2, "qa5": 2}  # facts that answer a question
MANY = 200  # stories, which hold nearly all facts that there are
# Tokens of the shortest fact there is, and of a plain one (a move, or what lies beside what).
SHORTEST_FACT = {"qa1": 6, "qa2": 5, "qa3": 5, "qa4": 8, "qa5": 5}
PLAIN_FACT = {"qa1": 6, "qa2": 6, "qa3": 6, "qa4": 8, "qa5": 6}
_NAMES = {
    "<person>": {name.lower() for name in (*PEOPLE, *GIVERS)},
    "<place>": set(PLACES),
    "<thing>": set(THINGS),
    "<side>": set(OPPOSITE),
}


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
    return places[len(places) - 2 - places[::-1].index(place)] if place in places[1:] else None


def _beside(world: World, place: str, side: str = "", opposite: str = "") -> str | None:
    return world.sides.get((side or OPPOSITE[opposite], place))


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


@dataclass(frozen=True)
class Question:
    """A question, and its answer in one lower-case word."""

    text: str
    answer: str


@dataclass(frozen=True)
class Story:
    """Facts in their order, and questions about what holds after the last of them."""

    facts: tuple[str, ...]
    questions: tuple[Question, ...]


def labels(kind: str) -> tuple[str, ...]:
    """The answers that questions of a task can have."""
    return tuple(sorted(name.lower() for name in (*GIVERS, *THINGS))) if kind == "qa5" else PLACES


def generate(kind: str, random: Random, most_facts: int | None = None, fewest_facts: int | None = None) -> Story:
    """A story of task `kind` ("qa1" ... "qa5") with all questions that its facts answer, at least one.

    Numbers of facts are as frequent as in bAbI (`TWENTIETHS`), from `fewest_facts` on where given and up to
    `most_facts` where that is less.
    """
    fewest, most = LENGTHS[kind]
    fewest = fewest if fewest_facts is None else fewest_facts
    most = most if most_facts is None else max(fewest, min(most, most_facts))
    numbers = range(fewest, most + 1)
    is_even = kind not in TWENTIETHS  # drawn once: short stories often answer no question
    count = random.choice(numbers) if is_even else random.choices(numbers, _frequencies(kind)[fewest : most + 1])[0]
    while True:
        facts = tuple(_WRITERS[kind](random, count))
        if questions := questions_after(kind, facts):
            return Story(facts, questions)


@lru_cache
def _frequencies(kind: str) -> tuple[float, ...]:
    """How frequent each number of facts is, from 0 on, even within a twentieth; fewer than there are as the fewest."""
    fewest, most = LENGTHS[kind]
    frequencies = [0.0] * (most + 1)
    for first, last in pairwise((fewest - 1, *TWENTIETHS[kind][1:])):
        frequencies[first + 1 : last + 1] = [1 / (last - first)] * (last - first)
    return (*([frequencies[fewest]] * fewest), *frequencies[fewest:])


@lru_cache
def facts_of(kind: str) -> tuple[str, ...]:
    """Facts of many stories of a task, each once."""
    stories = (generate(kind, Random(seed)) for seed in range(MANY))
    return tuple(sorted({fact for story in stories for fact in story.facts}))


@lru_cache
def examples_of(kind: str) -> tuple[str, ...]:
    """Questions about many stories of a task, each once."""
    stories = (generate(kind, Random(seed)) for seed in range(MANY))
    return tuple(sorted({question.text for story in stories for question in story.questions}))


def understood(kind: str, answers: Sequence[str]) -> str:
    """For people: what a model of a task can be asked, of which sentences, and what it answers."""
    facts, questions = facts_of(kind), examples_of(kind)
    people = [name for name in dict.fromkeys((*PEOPLE, *GIVERS)) if any(name in fact for fact in facts)]
    about = f" of {', '.join(people)}" if people else ""
    return (
        f'questions such as "{questions[0]}", answered in one word ({", ".join(answers)}), about sentences such as '
        f'"{facts[0]}" or "{facts[-1]}"{about} anywhere in a text; of other names and verbs it knows nothing, and may '
        'take what they say ("left", "did not go to") for such a sentence'
    )


def is_like(sentence: str, examples: Iterable[str]) -> bool:
    """Whether one of `examples` is such a sentence, with other names in it perhaps."""
    return _shape(sentence) in {_shape(text) for text in examples}


def _shape(sentence: str) -> str:
    """A sentence with a mark for each name: two of one shape say the same of other people, places and things."""
    words = sentence.lower().rstrip(" ?.").split()
    return " ".join(next((kind for kind, names in _NAMES.items() if word in names), word) for word in words)


def questions_after(kind: str, facts: Sequence[str]) -> tuple[Question, ...]:
    """All questions of task `kind` that these facts answer."""
    world = world_after(facts)
    answers = ((text, answer(world, text)) for text in _QUESTIONS[kind](world))
    return tuple(Question(text, word) for text, word in answers if word)


def read_stories(path: Path) -> list[Story]:
    """The stories of a file of bAbI, one for each question: the facts up to it, earlier questions dropped.

    Raises `TesseraError`: no text, or a line that is neither `ID fact` nor `ID question<tab>answer<tab>IDs`.
    """
    stories: list[Story] = []
    facts: list[str] = []
    for number, line in enumerate("".join(text_of_file(path)).splitlines(), 1):
        identifier, space, text = line.partition(" ")
        if not (space and identifier.isdigit()):
            raise TesseraError(f"{path}: line {number} must be `ID text` as in bAbI; got {line[:60]!r}.")
        if identifier == "1":
            facts = []
        question, tab, rest = text.partition("\t")
        if tab:
            stories.append(Story(tuple(facts), (Question(question.strip(), rest.split("\t")[0].strip().lower()),)))
        else:
            facts.append(text.strip())
    if not stories:
        raise TesseraError(f"{path}: must hold stories with questions; got none.")
    return stories


@lru_cache(maxsize=16)
def stories_of(folder: str, kind: str, split: str, contents: str) -> tuple[Story, ...]:
    """Those of a split that lie in a folder of bAbI's files; of the training stories a ninth is for validation.

    `contents`: a checksum of the files, by which they are read again when they are others.
    """
    files = text_files(str(Path(folder) / f"{kind}_*_{'test' if split == 'test' else 'train'}.txt"))
    stories = [story for file in files for story in read_stories(file)]
    if split == "test":
        return tuple(stories)
    validation = {story.facts[0:2] for story in stories if Random(" ".join(story.facts[:2])).randrange(9) == 0}
    return tuple(story for story in stories if (story.facts[:2] in validation) == (split == "validation"))


def _move(random: Random) -> str:
    return f"{random.choice(PEOPLE)} {random.choice(MOVES)} the {random.choice(PLACES)}."


def _errands(random: Random, count: int) -> Iterator[str]:
    """Moves, and things taken and put down: only free things are taken, where their place does not forbid it."""
    world = World()
    for _ in range(count):
        if random.random() < 0.5:
            fact = _move(random)
        else:
            person, thing = random.choice(PEOPLE), random.choice(THINGS)
            holder, lies = world.holder.get(thing), world.object_places.get(thing)
            if holder is not None:
                fact = f"{holder.capitalize()} {random.choice(DROPS)} the {thing}."
            elif lies and world.place.get(person.lower()) != lies[-1]:
                fact = f"{person} {random.choice(MOVES)} the {lies[-1]}."
            else:
                fact = f"{person} {random.choice(TAKES)} the {thing}."
        world.read(fact)
        yield fact


def _sides(random: Random, count: int) -> Iterator[str]:
    """Two statements about three places, with the middle one in both."""
    first, middle, last = random.sample(PLACES, 3)
    for place, side in zip((first, last), random.sample(sorted(OPPOSITE), 2)):
        if random.random() < 0.5:
            yield f"The {place} is {side} of the {middle}."
        else:
            yield f"The {middle} is {OPPOSITE[side]} of the {place}."


def _gifts(random: Random, count: int) -> Iterator[str]:
    """Things are taken and given on, among moves; the last statement is a gift."""
    world = World()
    for index in range(count):
        held = sorted(world.holder)
        if held and (random.random() < 0.4 or index == count - 1):
            thing = random.choice(held)
            giver = world.holder[thing].capitalize()
            receiver = random.choice([name for name in GIVERS if name != giver])
            order = f"{receiver} the {thing}" if random.random() < 0.5 else f"the {thing} to {receiver}"
            fact = f"{giver} gave {order}."
        elif not held or random.random() < 0.3:
            free = [thing for thing in THINGS if thing not in world.holder] or list(THINGS)
            fact = f"{random.choice(GIVERS)} {random.choice(TAKES)} the {random.choice(free)}."
        else:
            fact = f"{random.choice(GIVERS)} {random.choice(MOVES)} the {random.choice(PLACES)}."
        world.read(fact)
        yield fact


def _ask_gifts(world: World) -> list[str]:
    gifts = [(giver.capitalize(), receiver.capitalize(), thing) for giver, receiver, thing in world.gifts]
    forms = ("What did {0} give to {1}?", "Who did {0} give the {2} to?", "Who gave the {2} to {1}?",
             "Who received the {2}?", "Who gave the {2}?")  # fmt: skip
    return list(dict.fromkeys(form.format(*gift) for gift in gifts for form in forms))


_WRITERS: dict[str, Callable[[Random, int], Iterator[str]]] = {
    "qa1": lambda random, count: (_move(random) for _ in range(count)),
    "qa2": _errands,
    "qa3": _errands,
    "qa4": _sides,
    "qa5": _gifts,
}
_QUESTIONS: dict[str, Callable[[World], list[str]]] = {
    "qa1": lambda world: [f"Where is {name}?" for name in PEOPLE],
    "qa2": lambda world: [f"Where is the {thing}?" for thing in THINGS],
    "qa3": lambda world: [f"Where was the {thing} before the {place}?" for thing in THINGS for place in PLACES],
    "qa4": lambda world: [
        form.format(side=side, place=place)
        for form in ("What is {side} of the {place}?", "What is the {place} {side} of?")
        for side in OPPOSITE
        for place in PLACES
    ],
    "qa5": _ask_gifts,
}
