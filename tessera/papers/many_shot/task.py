"""Many-shot classification for models that are trained here: short texts, anonymous labels, one token each."""

from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random

import torch
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tessera.base.errors import expect
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.babilong.vocabulary import token_of
from tessera.papers.many_shot import prompts
from tessera.tasks.task import SPLITS, TASKS, Task, TokenExamples

# Of the 77 classes, in an order of chance.
SPLIT_CLASSES = {"train": slice(0, 52), "validation": slice(52, 60), "test": slice(60, 77)}
TEMPLATE = prompts.TEMPLATES["banking77"]
MOST_CLASSES = 8
PAD, UNKNOWN, LINE_BREAK = "<pad>", "<unk>", "\n"


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
        where = type(self).__name__
        expect(self.shots >= 1, where, "shots", "be at least 1", self.shots)
        needed = f"be between 2 and {MOST_CLASSES}"
        expect(2 <= self.num_classes <= MOST_CLASSES, where, "num_classes", needed, self.num_classes)
        needed = f"be between 2 and num_classes ({self.num_classes})"
        expect(2 <= self._fewest_classes <= self.num_classes, where, "fewest_classes", needed, self.fewest_classes)
        expect(self.order in prompts.ORDERS, where, "order", "be one of " + ", ".join(prompts.ORDERS), repr(self.order))
        expect(self.delimiter in prompts.DELIMITERS, where, "delimiter", "be newline or space", repr(self.delimiter))
        needed = f"be between 1 and shots ({self.shots})"
        expect(self.distinct is None or 1 <= self.distinct <= self.shots, where, "distinct", needed, self.distinct)

    @property
    def vocabulary(self) -> Tokenizer:
        """Texts to tokens."""
        return _vocabulary(self.max_characters, self.vocab_size)

    def episodes(self, count: int, seed: int, split: str = "train", num_queries: int = 1) -> list[prompts.Episode]:
        """`count` contexts with so many queries each; the same seed and split give the same ones."""
        expect(split in SPLITS, type(self).__name__, "split", "be one of " + ", ".join(SPLITS), repr(split))
        random, names = Random(f"{self} {seed} {split}"), _class_names()[SPLIT_CLASSES[split]]
        shown, asked = (_texts(file, self.max_characters) for file in ("train", "test" if split == "test" else "train"))
        draw = partial(
            prompts.draw_episode, shown, asked, shots=self.shots, order=self.order, anonymous=True, random=random,
            num_queries=num_queries, distinct=self.distinct,
        )  # fmt: skip
        fewest, most = self._fewest_classes, self.num_classes
        return [draw(random.sample(names, random.randint(fewest, most))) for _ in range(count)]

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """`count` contexts in a row each, the query's label last, then padding."""
        episodes = self.episodes(count, seed, split)
        rows = [[*self.prompt(e, e.queries[0]), self.label(e.queries[0].label)] for e in episodes]
        label_tokens = {self.label(prompts.ANONYMOUS.format(number=n)) for n in range(1, self.num_classes + 1)}
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

    def prompt(self, episode: prompts.Episode, query: prompts.Example) -> list[int]:
        """The tokens of one context with one of its queries, up to the query's label."""
        full_prompt = TEMPLATE.prompt(episode.demonstrations, query, self.delimiter)
        text = full_prompt.removeprefix(TEMPLATE.instruction).lstrip() + prompts.DELIMITERS[self.delimiter]
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
        length = examples.labels.shape[1]
        return length - 1 - (examples.labels != IGNORED).flip(1).int().argmax(1)


@lru_cache(maxsize=4)
def _texts(file: str, max_characters: int) -> dict[str, list[prompts.Example]]:
    """Texts by class that are short enough; a text that stands in two classes has no right answer and is left out."""
    examples = prompts.read_examples("banking77", prompts.BANKING77 / f"{file}.csv")
    return prompts.by_label([e for e in examples if len(e.text) <= max_characters and e.text in _classes_by_text()])


@lru_cache(maxsize=1)
def _classes_by_text() -> dict[str, str]:
    classes: dict[str, set[str]] = {}
    for file in ("train", "test"):
        for example in prompts.read_examples("banking77", prompts.BANKING77 / f"{file}.csv"):
            classes.setdefault(example.text, set()).add(example.label)
    return {text: names.pop() for text, names in classes.items() if len(names) == 1}


@lru_cache(maxsize=1)
def _class_names() -> list[str]:
    names = sorted({example.label for example in prompts.read_examples("banking77", prompts.BANKING77 / "test.csv")})
    Random("banking77").shuffle(names)
    return names


@lru_cache(maxsize=4)
def _vocabulary(max_characters: int, vocab_size: int) -> Tokenizer:
    """Lower-case byte-pair pieces of the training classes' texts; labels and the names of text and label are one token.

    Tokens 0 and 1 are padding and what is unknown.
    """
    texts = _texts("train", max_characters)
    fixed = [LINE_BREAK, f"{TEMPLATE.text_name}:", f"{TEMPLATE.label_name}:"]
    fixed += [prompts.ANONYMOUS.format(number=number) for number in range(1, MOST_CLASSES + 1)]
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
