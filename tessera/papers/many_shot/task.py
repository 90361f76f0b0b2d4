"""Many-shot classification: labelled texts of public files, prompts, and the task for models that are trained here.

Memory Mosaics v2 prints the templates in its appendix G; the files are those of Banking77 and GoEmotions. The task's
texts are short, and its labels anonymous, one token each.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tessera.base.errors import TesseraError, expect
from tessera.data.text_files import text_of_file
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.babilong.vocabulary import token_of
from tessera.tasks.task import TASKS, Task, TokenExamples, expect_split

BANKING77 = Path(__file__).parents[2] / "data" / "banking77"
DELIMITERS = {"newline": "\n", "space": " "}
ANONYMOUS = "class {number}"
ORDERS = ("fixed", "shuffled", "mixed")
# Delimiter and order: the best of them counts at each number of shots.
STRATEGIES = tuple(f"{delimiter}, {order}" for delimiter in DELIMITERS for order in ("fixed", "shuffled"))
# Of the 77 classes, in an order of chance.
SPLIT_CLASSES = {"train": slice(0, 52), "validation": slice(52, 60), "test": slice(60, 77)}
MOST_CLASSES = 8
PAD, UNKNOWN, LINE_BREAK = "<pad>", "<unk>", "\n"


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
TEMPLATE = TEMPLATES["banking77"]  # of the task


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


@TASKS.register("many_shot")
@dataclass(frozen=True)
class ManyShot(Task):
    """`shots` examples of each of some Banking77 classes with the labels "class 1", ..., then a query.

    A class gets another label in each context, so its label can only be learned from the examples. Splits share no
    class; in the test split the examples are of the published training file and the queries of the test file.
    The prompt is the published one (Memory Mosaics v2, appendix G) without its instruction, which never changes.

    Attributes:
        num_classes, fewest_classes: a context has from the second to the first number of classes, or always the first.
        order: "fixed", "shuffled" (inside each shot) or "mixed" (all examples). delimiter: "newline" or "space".
        dense: whether the labels of the examples are to be predicted too, from the second shot on.
        max_characters: longer texts are left out.
        distinct: easier contexts, see `draw_episode`; None: the task itself.
    """

    shots: int = 4
    num_classes: int = 8
    fewest_classes: int | None = None
    order: str = "mixed"
    delimiter: str = "space"
    dense: bool = False
    max_characters: int = 70
    vocab_size: int = 1024
    # Not in the representation, which contexts are drawn by: the task itself stays what it was before this field.
    distinct: int | None = field(default=None, repr=False)

    summary = "new classes of customers' questions, from examples in the context (Banking77, anonymous labels)"
    source = "Memory Mosaics at scale (v2), section 5.3 and appendix G; Banking77, Casanueva et al. 2020"
    main_score = "exact_match"
    length_setting = "shots"

    def __post_init__(self) -> None:
        self._require("shots", self.shots >= 1, "be at least 1")
        self._require("num_classes", 2 <= self.num_classes <= MOST_CLASSES, f"be between 2 and {MOST_CLASSES}")
        are_fewest = 2 <= self._fewest_classes <= self.num_classes
        self._require("fewest_classes", are_fewest, f"be between 2 and num_classes ({self.num_classes})")
        self._require("order", self.order in ORDERS, "be one of " + ", ".join(ORDERS))
        self._require("delimiter", self.delimiter in DELIMITERS, "be newline or space")
        is_possible = self.distinct is None or 1 <= self.distinct <= self.shots
        self._require("distinct", is_possible, f"be between 1 and shots ({self.shots})")

    @property
    def vocabulary(self) -> Tokenizer:
        """Texts to tokens."""
        return _vocabulary(self.max_characters, self.vocab_size)

    def episodes(self, count: int, seed: int, split: str = "train", num_queries: int = 1) -> list[Episode]:
        """`count` contexts with so many queries each; the same seed and split give the same ones."""
        expect_split(self, split)
        random, names = Random(f"{self} {seed} {split}"), _class_names()[SPLIT_CLASSES[split]]
        shown, asked = (_texts(file, self.max_characters) for file in ("train", "test" if split == "test" else "train"))
        draw = partial(
            draw_episode, shown, asked, shots=self.shots, order=self.order, anonymous=True, random=random,
            num_queries=num_queries, distinct=self.distinct,
        )  # fmt: skip
        fewest, most = self._fewest_classes, self.num_classes
        return [draw(random.sample(names, random.randint(fewest, most))) for _ in range(count)]

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """`count` contexts in a row each, the query's label last, then padding."""
        episodes = self.episodes(count, seed, split)
        rows = [[*self.prompt(e, e.queries[0]), self.label(e.queries[0].label)] for e in episodes]
        label_tokens = {self.label(ANONYMOUS.format(number=n)) for n in range(1, self.num_classes + 1)}
        tokens = pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
        labels = torch.full_like(tokens, IGNORED)
        for row, (ids, episode) in enumerate(zip(rows, episodes)):
            columns = [column for column, token in enumerate(ids) if token in label_tokens]
            columns = columns[len(episode.classes) :] if self.dense else columns[-1:]
            labels[row, columns] = tokens[row, columns]
        return TokenExamples(tokens, labels, tuple(episodes))

    def label(self, label: str) -> int:
        """The token of a label."""
        return token_of(self.vocabulary, label)

    def prompt(self, episode: Episode, query: Example) -> list[int]:
        """The tokens of one context with one of its queries, up to the query's label."""
        full_prompt = TEMPLATE.prompt(episode.demonstrations, query, self.delimiter)
        text = full_prompt.removeprefix(TEMPLATE.instruction).lstrip() + DELIMITERS[self.delimiter]
        return self.vocabulary.encode(text).ids

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """`exact_match` (B,): the likeliest token is the query's label; `likeliest_label`: of the context's labels."""
        rows, places = torch.arange(len(examples)), self._query_places(examples)
        logits, target = predictions[rows, places - 1].cpu(), examples.tokens[rows, places]
        shown = torch.full_like(logits, -torch.inf)
        for row, episode in enumerate(examples.details):
            tokens = [self.label(label) for label in episode.labels]
            shown[row, tokens] = logits[row, tokens]
        return {
            "exact_match": (logits.argmax(-1) == target).double(),
            "likeliest_label": (shown.argmax(-1) == target).double(),
        }

    @property
    def _fewest_classes(self) -> int:
        return self.num_classes if self.fewest_classes is None else self.fewest_classes

    def _query_places(self, examples: TokenExamples) -> Tensor:
        return examples.labels.shape[1] - 1 - (examples.labels != IGNORED).flip(1).int().argmax(1)


@lru_cache(maxsize=4)
def _texts(file: str, max_characters: int) -> dict[str, list[Example]]:
    """Texts by class that are short enough; a text that stands in two classes has no right answer and is left out."""
    examples = read_examples("banking77", BANKING77 / f"{file}.csv")
    return by_label([e for e in examples if len(e.text) <= max_characters and e.text in _classes_by_text()])


@lru_cache(maxsize=1)
def _classes_by_text() -> dict[str, str]:
    classes: dict[str, set[str]] = {}
    for file in ("train", "test"):
        for example in read_examples("banking77", BANKING77 / f"{file}.csv"):
            classes.setdefault(example.text, set()).add(example.label)
    return {text: names.pop() for text, names in classes.items() if len(names) == 1}


@lru_cache(maxsize=1)
def _class_names() -> list[str]:
    names = sorted({example.label for example in read_examples("banking77", BANKING77 / "test.csv")})
    Random("banking77").shuffle(names)
    return names


@lru_cache(maxsize=4)
def _vocabulary(max_characters: int, vocab_size: int) -> Tokenizer:
    """Lower-case byte-pair pieces of the training classes' texts; labels and the names of text and label are one token.

    Tokens 0 and 1 are padding and what is unknown.
    """
    texts = _texts("train", max_characters)
    fixed = [LINE_BREAK, f"{TEMPLATE.text_name}:", f"{TEMPLATE.label_name}:"]
    fixed += [ANONYMOUS.format(number=number) for number in range(1, MOST_CLASSES + 1)]
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(fixed), special_tokens=[PAD, UNKNOWN], show_progress=False
    )
    names = _class_names()[SPLIT_CLASSES["train"]]
    tokenizer.train_from_iterator((example.text for name in names for example in texts[name]), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return tokenizer
