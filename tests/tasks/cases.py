"""What the laws of tasks need to know of each: who knows its rule, who guesses, and what no two splits may share."""

import math
import re
from collections import Counter
from random import Random

import torch
from torch.nn.functional import one_hot, pad

from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.associative_retrieval.task import AssociativeRetrieval
from tessera.papers.babilong import stories as babi
from tessera.papers.babilong.own_questions import OwnQuestions
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.vocabulary import decode
from tessera.papers.document_qa import task as documents
from tessera.papers.document_qa.task import DocumentQA
from tessera.papers.induction.task import Induction
from tessera.papers.length_generalization.task import PAIR_SEPARATOR, QUERY_SEPARATOR, MultiQueryRecall, Reverse, Sort
from tessera.papers.many_shot.task import ManyShot, _classes_by_text
from tessera.papers.passwords import task as passwords
from tessera.papers.passwords.task import Passwords
from tessera.papers.regbench.task import RegBench
from tessera.papers.three_moons.task import ThreeMoons, positions_of
from tessera.tasks.question_answering import NOT_IN_TEXT
from tessera.testing import TaskCase

_RETRIEVAL = [("remember", 8), ("rewrite", 12), ("remember", 20, 2), ("rewrite", 6, 2, 3)]
_SHOTS = {"num_classes": 4, "vocab_size": 400}
_SMALL_AUTOMATA = {"states": (3, 6), "alphabet": (3, 6), "num_symbols": 8, "max_edges": 2, "strings": (2, 4)}
# Small settings that cover what each task can be.
VARIANTS = {
    "associative_retrieval": [AssociativeRetrieval(*settings) for settings in _RETRIEVAL],
    "babilong": [
        BABILong(kind, length=128 if kind in ("qa1", "qa4") else 300, vocab_size=250) for kind in babi.LENGTHS
    ],
    "questions": [OwnQuestions(length=128, vocab_size=250)],
    "document_qa": [
        DocumentQA(questions=1, num_names=100),
        DocumentQA(length=160, people=2, moves=2, num_names=100),
        *(
            DocumentQA(length=64, num_names=100, known_names=40, wording=wording)
            for wording in range(documents.FULL_WORDING)
        ),
    ],
    "induction": [Induction(), Induction(64, 3, "drawn")],
    "mqmtar": [MultiQueryRecall(), MultiQueryRecall(length=20, spread=5, num_symbols=4, num_words=5, num_queries=2)],
    "reverse": [Reverse(), Reverse(length=3, spread=1, num_symbols=2)],
    "sort": [Sort(), Sort(length=3, spread=1, num_symbols=2)],
    "many_shot": [
        ManyShot(shots=2, **_SHOTS),
        ManyShot(shots=1, order="fixed", delimiter="newline", **_SHOTS),
        ManyShot(shots=2, order="shuffled", fewest_classes=2, dense=True, **_SHOTS),
        ManyShot(shots=3, distinct=2, **_SHOTS),
    ],
    "passwords": [Passwords(), Passwords(length=128, facts_share=0.5, absent=0.6)],
    "regbench": [RegBench(), RegBench(**_SMALL_AUTOMATA, length=(2, 8))],
    "three_moons": [ThreeMoons(context=150), ThreeMoons(context=1, horizon=1)],
}


def case_of(task):
    """The case of any task of the papers."""
    return next(case(task) for kind, case in CASES.items() if isinstance(task, kind))


def any_token(examples, count, seed):
    """Logits (B, T, count) of any of so many tokens, at every position anew."""
    return torch.rand(*examples.tokens.shape, count, generator=torch.Generator().manual_seed(seed))


def answer_place(examples, row):
    """Where the answer begins."""
    return int((examples.labels[row] != IGNORED).nonzero()[0])


class AnsweringCase(TaskCase):
    """Answers are words, whose tokens `answer_tokens` gives."""

    def answering(self, examples, words):
        """Logits that answer a word each."""
        logits = torch.zeros(*examples.tokens.shape, self.task.vocabulary.get_vocab_size())
        for row, word in enumerate(words):
            for column, token in enumerate(self.answer_tokens(word), answer_place(examples, row)):
                logits[row, column - 1, int(token)] = 1.0
        return logits


class RetrievalCase(TaskCase):
    def oracle(self, examples):
        """Logits (B, T, V) of something that reads the tokens as a person would."""
        task, tokens, size = self.task, examples.tokens, self.task.segment_size
        pairs = tokens[:, : tokens.shape[1] // size * size].unflatten(1, (-1, size))[:, : task.num_pairs]
        queried = tokens[:, None, -task.key_size - 2 : -2]
        has_key = (pairs[..., : task.key_size] == queried).all(-1)
        latest = task.num_pairs - 1 - has_key.flip(1).int().argmax(1)
        answers = pairs[torch.arange(len(tokens)), latest, task.key_size + 1]
        logits = torch.zeros(*tokens.shape, task.vocab_size)
        logits[torch.arange(len(tokens)), -2, answers] = 1.0
        return logits

    def guess(self, examples, seed):
        """Any symbol."""
        separators = self.task.vocab_size - self.task.num_symbols
        return pad(any_token(examples, self.task.num_symbols, seed), (0, separators), value=-1.0)

    def chance(self, examples):
        return 1 / self.task.num_symbols


class BABILongCase(AnsweringCase):
    def oracle(self, examples):
        """Reads the tokens as words, finds the facts among the sentences, and follows the rules."""
        words = []
        for row in range(len(examples)):
            end = answer_place(examples, row) - 1
            text = decode(self.task.vocabulary, examples.tokens[row, :end]).lower().partition("\nanswer")[0]
            words.append(answer_to_text(text) or NOT_IN_TEXT)
        return self.answering(examples, words)

    def guess(self, examples, seed):
        """Any of the answers."""
        return self.answering(examples, Random(seed).choices(self.task.labels, k=len(examples)))

    def chance(self, examples):
        return 1 / len(self.task.labels)

    def held_apart(self, examples):
        """Stories and books."""
        stories = {sample.story.facts for sample in examples.details if sample.story.facts}
        return stories | {span.book.name for sample in examples.details for span in sample.context.spans}

    def answer_tokens(self, word):
        return self.task._tokens(word)


class PasswordsCase(AnsweringCase):
    def oracle(self, examples):
        """Reads the text, and the question, as a person would."""
        words = []
        for tokens in examples.tokens.tolist():
            text, _, _ = self.task.vocabulary.decode(tokens, skip_special_tokens=False).partition("<answer>")
            said = dict(re.findall(r"The password of the (\w+) is (\w+)\.", text))
            words.append(said.get(re.search(r"What is the password of the (\w+)\?", text)[1]))
        return self.answering(examples, words)

    def guess(self, examples, seed):
        """Any word, or that there is none."""
        return self.answering(examples, Random(seed).choices([*passwords.WORDS, None], k=len(examples)))

    def chance(self, examples):
        """One over the number of answers, whichever are more frequent."""
        return 1 / (len(passwords.WORDS) + 1)

    def held_apart(self, examples):
        """Whole sentences of the book."""
        texts = self.task.vocabulary.decode_batch(examples.tokens.tolist())
        sentences = {sentence for text in texts for sentence in text.split(".") if len(sentence) > 60}
        return {sentence for sentence in sentences if "password" not in sentence}

    def answer_tokens(self, word):
        return passwords.answer_tokens(word)[:1]


class OwnQuestionsCase(BABILongCase):
    def oracle(self, examples):
        """Has read the files."""
        return self.answering(examples, [sample.question.answer for sample in examples.details])


def answer_to_text(text):
    """The answer to the question that ends a text in lower case, by the facts among its sentences; None: none."""
    sentences = re.sub("[.?]", " . ", text).split(" . ")
    *context, question = [sentence for sentence in map(str.strip, sentences) if sentence]
    world = babi.world_after(suffixes(context))
    return next(filter(None, (babi.answer(world, suffix) for suffix in suffixes([question]))), None)


def suffixes(sentences):
    """Each sentence from every word on: the noise before a fact or a question may have been cut without a stop."""
    for sentence in sentences:
        words = sentence.split()
        yield from (" ".join(words[begin:]) for begin in range(len(words)))


class DocumentQACase(TaskCase):
    def oracle(self, examples):
        """Reads the tokens as words and follows everybody's moves."""
        task = self.task
        token_of = {word: token for token, word in enumerate(task.vocabulary)}
        logits = torch.zeros(*examples.tokens.shape, task.vocab_size)
        for row, ids in enumerate(examples.tokens.tolist()):
            words = [task.vocabulary[token] for token in ids]
            people, places = set(documents.names()[: task.num_names]), {}
            first_question = words.index(documents.QUESTION)
            for column, word in enumerate(words):
                if word in people:
                    person = word
                    if column > first_question:
                        answered = column + min(task.wording, documents.FULL_WORDING - 1)
                        logits[row, answered, token_of[places[person]]] = 1.0
                elif word in babi.PLACES:
                    places[person] = word
        return logits

    def guess(self, examples, seed):
        """Any of the places."""
        logits = torch.zeros(*examples.tokens.shape, self.task.vocab_size)
        places = torch.tensor([self.task.vocabulary.index(place) for place in babi.PLACES])
        drawn = torch.randint(len(places), examples.tokens.shape, generator=torch.Generator().manual_seed(seed))
        return logits.scatter(2, places[drawn].unsqueeze(2), 1.0)

    def chance(self, examples):
        return 1 / len(babi.PLACES)

    def held_apart(self, examples):
        return {document.facts for sample in examples.details for document in sample.documents}


class InductionCase(TaskCase):
    def oracle(self, examples):
        """One-hot: what followed the token last time, which for a trigger is its successor; nothing the first time."""
        tokens, step = examples.tokens, torch.arange(examples.tokens.shape[1])
        is_earlier = (tokens[:, :, None] == tokens[:, None, :]) & (step[:, None] > step)
        # What came after the latest earlier step with the same token; 0: there is none.
        follower = (is_earlier * (step + 1)).amax(-1)
        return one_hot(tokens.gather(1, follower), self.task.vocab_size) * (follower > 0)[..., None].float()

    def guess(self, examples, seed):
        """Any character."""
        return any_token(examples, self.task.vocab_size, seed)

    def chance(self, examples):
        return 1 / self.task.vocab_size


class SourceTargetCase(TaskCase):
    """The rule is `answer(source)`; `guess_answer(source, generator)` is right with probability `chance_of(source)`."""

    def oracle(self, examples):
        """Logits of the rule, applied to what stands before `<sep>`."""
        return self.logits(examples, self.answer)

    def guess(self, examples, seed):
        generator = torch.Generator().manual_seed(seed)
        return self.logits(examples, lambda source: self.guess_answer(source, generator))

    def chance(self, examples):
        sources = self.sources(examples)
        return sum(map(self.chance_of, sources)) / len(sources)

    def sources(self, examples):
        rows = examples.tokens.tolist()
        return [row[1 : row.index(self.task.special["sep"])] for row in rows]

    def logits(self, examples, answer):
        logits = torch.zeros(*examples.tokens.shape, self.task.vocab_size)
        for row, source in enumerate(self.sources(examples)):
            said = torch.tensor([*answer(source), self.task.special["eos"]])
            logits[row, len(source) + 1 + torch.arange(len(said)), said] = 1.0
        return logits


class ReverseCase(SourceTargetCase):
    """A guess is n uniform symbols: right with probability `num_symbols^-n`."""

    def answer(self, source):
        return source[::-1]

    def guess_answer(self, source, generator):
        return self.answer(torch.randint(self.task.num_symbols, (len(source),), generator=generator).tolist())

    def chance_of(self, source):
        return float(self.task.num_symbols) ** -len(source)


class SortCase(ReverseCase):
    """A guess is n uniform symbols in order: right with `n! / prod_s c_s! num_symbols^-n`, counts c_s."""

    def answer(self, source):
        return sorted(source)

    def chance_of(self, source):
        ways = math.lgamma(len(source) + 1) - sum(math.lgamma(count + 1) for count in Counter(source).values())
        return math.exp(ways - len(source) * math.log(self.task.num_symbols))


class RecallCase(SourceTargetCase):
    """A guess takes one of the P stored values for each query: right with probability `P^-num_queries`."""

    def answer(self, source):
        stored, queries = self.parse(source)
        return [token for query in queries for token in (QUERY_SEPARATOR, *stored[query])]

    def guess_answer(self, source, generator):
        stored, queries = self.parse(source)
        values = list(stored.values())
        picked = torch.randint(len(values), (len(queries),), generator=generator).tolist()
        return [token for pick in picked for token in (QUERY_SEPARATOR, *values[pick])]

    def chance_of(self, source):
        return float(len(self.parse(source)[0])) ** -self.task.num_queries

    def parse(self, source):
        """The stored values by key, and the queried keys."""
        context, queries = source[: -3 * self.task.num_queries], source[-3 * self.task.num_queries :]
        separators = [column for column, token in enumerate(context) if token == PAIR_SEPARATOR]
        stored = {tuple(context[i - 2 : i]): tuple(context[i + 1 : i + 3]) for i in separators}
        return stored, [tuple(queries[start + 1 : start + 3]) for start in range(0, len(queries), 3)]


class ManyShotCase(TaskCase):
    def oracle(self, examples):
        """Knows the class of every text, and reads its label off the examples."""
        class_of, shown = _classes_by_text(), []
        for episode in examples.details:
            labels = {class_of[example.text]: example.label for example in episode.demonstrations}
            shown.append(labels[class_of[episode.queries[0].text]])
        return self.logits(examples, shown)

    def guess(self, examples, seed):
        """Any of the context's labels."""
        random = Random(seed)
        return self.logits(examples, [random.choice(episode.labels) for episode in examples.details])

    def chance(self, examples):
        """The mean over contexts of one over the number of classes."""
        return sum(1 / len(episode.classes) for episode in examples.details) / len(examples)

    def held_apart(self, examples):
        """Classes and texts."""
        queries = {episode.queries[0].text for episode in examples.details}
        return queries | {name for episode in examples.details for name in episode.classes}

    def logits(self, examples, labels):
        logits = torch.zeros(*examples.tokens.shape, self.task.vocabulary.get_vocab_size())
        tokens = torch.tensor([self.task.label(label) for label in labels])
        logits[torch.arange(len(labels)), self.task._query_places(examples) - 1, tokens] = 1.0
        return logits


class RegBenchCase(TaskCase):
    def oracle(self, examples):
        """Log-probabilities: uniform over the allowed symbols."""
        return self.task._allowed(examples).double().log()

    def guess(self, examples, seed):
        """Any symbol."""
        logits = any_token(examples, self.task.vocab_size, seed)
        logits[..., self.task.num_symbols :] = -torch.inf
        return logits

    def chance(self, examples):
        """The share of symbols that are allowed, over the positions that count."""
        allowed = self.task._allowed(examples)[:, :-1].sum(-1) / self.task.num_symbols
        scored = examples.labels[:, 1:] >= 0
        return float(((allowed * scored).sum(1) / scored.sum(1)).mean())

    def held_apart(self, examples):
        return set(examples.details.automata)


class MoonsCase(TaskCase):
    holds_out_twice = False  # the paper holds a single triple out

    def oracle(self, examples):
        """Kepler: the periods and the first observation's place say everything."""
        return positions_of(examples.periods, examples.start + self.task.context, self.task.horizon)

    def guess(self, examples, seed):
        """The mean position."""
        return torch.zeros_like(examples.future)

    def chance(self, examples):
        """`1 - E|sin| / (2 / pi)` with a uniform angle."""
        return 0.0

    def held_apart(self, examples):
        return {tuple(periods) for periods in examples.periods.tolist()}


CASES = {
    AssociativeRetrieval: RetrievalCase,
    OwnQuestions: OwnQuestionsCase,
    BABILong: BABILongCase,
    DocumentQA: DocumentQACase,
    Induction: InductionCase,
    Reverse: ReverseCase,
    Sort: SortCase,
    MultiQueryRecall: RecallCase,
    ManyShot: ManyShotCase,
    Passwords: PasswordsCase,
    RegBench: RegBenchCase,
    ThreeMoons: MoonsCase,
}
