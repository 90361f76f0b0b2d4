"""Questions of one's own: what is read, hidden, asked and refused; and questions that a text does not answer."""

import gzip
import json
import os

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tessera.base import checkpoints
from tessera.base.errors import TesseraError
from tessera.evaluation.task_scores import score_batches
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.babilong.benchmark import exact_match
from tessera.papers.babilong.own_questions import OwnQuestions
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.vocabulary import decode
from tessera.tasks.question_answering import NOT_IN_TEXT
from tessera.tasks.task import SPLITS
from tests.refusals import refused
from tests.tasks.cases import answer_to_text

pytestmark = pytest.mark.usefixtures("short_books")
COLOURS = ("red", "green", "blue", "black", "white", "grey", "pink", "brown", "gold", "silver")


def rows(count=10, colours=COLOURS):
    return [
        {"text": f"Box {n} is\ndark {colours[n]}.", "question": f"What is box {n}?", "answer": f"Dark {colours[n]}"}
        for n in range(count)
    ]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return path


def asked(task, batch):
    """(context, question, answer) of every question that counts, as text."""
    for context, questions, labels in zip(batch.contexts, batch.questions, batch.labels):
        for question, label in zip(questions, labels):
            if (answer := label[label != IGNORED]).numel():
                begin = int((label != IGNORED).int().argmax())
                yield tuple(decode(task.vocabulary, part) for part in (context, question[:begin], answer))


def test_a_file_of_the_same_size_and_time_is_another_one(file):
    before, written = OwnQuestions(file=str(file)).labels, file.stat()
    file.write_text(file.read_text().replace("Dark red", "Dark tan"))
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))
    assert set(before) ^ set(OwnQuestions(file=str(file)).labels) == {"Dark red", "Dark tan"}


def test_a_file_that_cannot_be_read_is_named(file, monkeypatch):
    def failing(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(checkpoints, "open", failing, raising=False)
    refused(r"mine\.jsonl: cannot be read \(Permission denied\)\.", lambda: OwnQuestions(file=str(file)).labels)


def test_a_text_in_two_spellings_is_one(file):
    """They are the same tokens: one for training and one for tests would be one text in both."""
    other = [
        {name: text.upper().replace(".", " .") if name == "text" else text for name, text in row.items()}
        for row in rows()
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows(), *other]))
    texts = [text for split in SPLITS for text in OwnQuestions(file=str(file))._own.splits[split]]
    assert sorted(texts) == sorted(" ".join(row["text"].split()) for row in rows())
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows(), {**other[0], "answer": "Moon"}]))
    refused("have one answer to 'What is box 0", lambda: OwnQuestions(file=str(file)).labels)


def test_a_text_is_hidden_whole_and_asked_its_own_questions(file):
    task = OwnQuestions(file=str(file), vocab_size=300, absent=0.0)
    seen = set()
    for context, question, answer in asked(task, task.question_batch(16, 2, 50, 0, "train")):
        (number,) = [n for n in range(10) if f"box {n} is dark {COLOURS[n]} ." in context]
        assert question == f"what is box {number} ? <generate>"
        assert answer == f"dark {COLOURS[number]} <end>"
        seen.add(number)
    assert 3 < len(seen) <= 8, "eight texts of ten are for training"
    assert task.longest_answer == 2
    assert task.reserved == 9
    assert task.labels == tuple(sorted(f"Dark {colour}" for colour in COLOURS))
    assert task.is_known("What is dark box?".replace("dark ", ""))
    assert not task.is_known("Where is box 1?")


def test_the_error_of_a_score_is_that_over_texts_of_the_file(file):
    """Sixty samples of eight texts are not sixty texts: here all samples of a text are right, or none."""
    task = OwnQuestions(file=str(file), vocab_size=300, absent=0.0, length=64)
    batches, right = [task.sample(6, seed) for seed in range(10)], {}

    def predictions(batch):
        said = torch.nn.functional.one_hot(batch.tokens.roll(-1, 1), 300).float()
        for row, sample in zip(said, batch.details):
            number = int(sample.question.text[len("What is box ")])
            right.setdefault(number, []).append(float(number % 3 == 0))
            row *= number % 3 == 0
        return said

    score = score_batches(task, batches, predictions)["exact_match"]
    mean = sum(map(sum, right.values())) / 60
    squares = sum((sum(of_text) - len(of_text) * mean) ** 2 for of_text in right.values())
    assert score.count == len(right) == 8
    assert score.mean == pytest.approx(mean)
    assert score.standard_error == pytest.approx((8 / 7 * squares) ** 0.5 / 60)
    assert score.standard_error > 2 * (mean * (1 - mean) / 59) ** 0.5, "as if all samples were of new texts"


ANSWERS = ("Rome, Italy", "half-past two", "Mr. Brown", "red", "dark red")


@pytest.fixture
def marked(tmp_path):
    """A task whose answers have several words, and marks in them."""
    path = tmp_path / "marks.jsonl"
    several = [{**row, "answer": ANSWERS[number % 5]} for number, row in enumerate(rows(50, COLOURS * 5))]
    path.write_text("\n".join(map(json.dumps, several)), encoding="utf-8")
    return OwnQuestions(file=str(path), vocab_size=300, absent=0.0, length=64)


def test_an_exact_answer_is_right_by_the_benchmarks_rule_whatever_marks_it_has(marked):
    """The rule ends at a full stop, divides the target at commas, and finds "red" in "dark red"."""
    examples = marked.sample(40, 0)
    assert {sample.question.answer for sample in examples.details} == set(ANSWERS)
    scores = marked.scores(torch.nn.functional.one_hot(examples.tokens.roll(-1, 1), 300), examples)
    assert scores["exact_match"].all()
    assert scores["published_match"].all()


def test_the_blanks_that_a_model_of_words_says_around_marks_are_not_wrong(marked):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=marked.vocabulary, **marked.special_tokens)
    said = {answer: tokenizer.decode(marked.answer_tokens(answer)[:-1]) for answer in ANSWERS}
    assert said["half-past two"] == "half - past two"
    assert all(exact_match(text, answer) for answer, text in said.items())
    assert not exact_match("rome italy", "Rome, Italy")


def test_what_a_text_does_not_answer_is_said_not_to_be_in_it(file):
    task = OwnQuestions(file=str(file), vocab_size=300, absent=0.4)
    answers = []
    for context, question, answer in asked(task, task.question_batch(200, 1, 50, 0, "train")):
        number = question.split()[3]
        is_there = f"box {number} is" in context
        assert is_there == (answer != "<unk> <end>")
        answers.append(is_there)
    assert 0.54 < 1 - sum(answers) / len(answers) < 0.74, "0.4 of the contexts, and 0.4 of the others' questions"
    assert NOT_IN_TEXT in task.labels


@pytest.mark.parametrize("kind", ["qa1", "qa2", "qa5"])
def test_questions_of_babilong_that_its_rules_do_not_answer(kind):
    task = BABILong(kind, vocab_size=250, absent=0.5, facts_share=0.8)
    absent = total = 0
    for context, question, answer in asked(task, task.question_batch(24, 2, 200, 0, "validation")):
        ruled = answer_to_text(f"{context} . {question.removesuffix(' <generate>')}")
        assert answer == f"{ruled or '<unk>'} <end>"
        absent, total = absent + (ruled is None), total + 1
    assert 0.5 <= absent / total <= 0.95
    early = task.question_batch(8, 2, 128, 0, "train", early=2, segment=64)
    assert (early.early_labels != IGNORED).any()


def test_an_answer_may_say_so_in_the_file_and_files_may_be_packed_or_lists(tmp_path):
    own = rows()
    own[3]["answer"] = "Not in this text."
    own += own  # the same answers twice
    (tmp_path / "a.json").write_text(json.dumps(own[:6]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, own[6:])).encode()))
    task = OwnQuestions(file=str(tmp_path), vocab_size=300, absent=0.0)
    assert NOT_IN_TEXT in task.labels
    assert len(task.labels) == 10
    assert (task.question_batch(8, 2, 50, 0, "train").counts.sum(1) == 1).all(), "a question is asked twice"


def test_refusals(file, tmp_path):
    def refused(message, content=None, **settings):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl"
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            settings["file"] = str(path)
        with pytest.raises(TesseraError, match=message) as caught:
            OwnQuestions(**{"file": str(file), "vocab_size": 300, **settings}).question_batch(1, 1, 50, 0, "train")
        assert "\n" not in str(caught.value)

    refused("must hold at least 10 texts; got 9", "\n".join(map(json.dumps, rows(9))))
    refused("row 1 must hold the texts text, question, answer", '{"text": "a", "question": "b"}')
    again = {**rows()[3], "question": " what is  BOX 3?", "answer": "Red"}
    two = r"must have one answer to 'what is  BOX 3\?' of one text; got 'Dark black' and 'Red'. Leave one of them out."
    refused(two, "\n".join(map(json.dumps, [*rows(), again])))
    refused("must be a JSON list or JSON lines", "text,question,answer\n")
    refused("this is a PDF; pdftotext makes text of it", b"%PDF-1.7")
    refused("no such text file", file="nowhere.jsonl")
    refused(r"vocab_size must be at least \d+, for the words of", vocab_size=20)
    refused("near_facts must be left out", near_facts=0.1)
    refused(
        "length must have room for a text of the file; got 70",
        "\n".join(map(json.dumps, [{**row, "text": f"{n} " + row["text"] * 20} for n, row in enumerate(rows())])),
        vocab_size=400,
    )
