"""What `benchmarks.story_questions` asks is what it says, and the right answer is that of the book."""

from collections import Counter
from random import Random
from types import SimpleNamespace

import pytest
import torch

from benchmarks import story_questions
from benchmarks.story_questions import FORMS, PAGE, SILENT, TASKS, Choice, last_words, names, right_answers
from tessera.papers.long_term_memory import GUESSING

# Names come back after two others had five sentences of their own each, first three of them, then three more.
TALE = "".join(
    f"The old king was glad to see {name} again. They were all very happy in the green garden. When {name} has a "
    f"house of red stone near the river, he may stay. It was an evening when the men were tired of work. " * 5
    for trio in (("Marian", "Oswald", "Gertrude"), ("Wilfred", "Rosalind", "Humphrey"))
    for name in trio * 3
)


@pytest.mark.parametrize("task", TASKS)
def test_the_right_answer_goes_on_in_the_book(task):
    found = TASKS[task](TALE, 3, 8, Random(0))
    assert len(found) >= 2
    assert all(choice.book == 3 for choice in found)
    for context, (right, *others), _ in found:
        assert context + right in TALE
        assert 100 / (1 + len(others)) == GUESSING[task]


def test_each_of_two_forms_is_right_equally_often():
    firsts = [choice.answers[0].split()[0] for choice in TASKS["forms of words"](TALE, 0, 28, Random(0))]
    for first, second in FORMS:
        assert firsts.count(first) == firsts.count(second)


def test_of_names_only_the_right_one_stands_on_the_page_and_not_in_its_last_lines():
    for context, answers, _ in TASKS["names"](TALE, 0, 8, Random(0)):
        words = [word.rstrip(".") for word in context.split()]
        assert len(words) == PAGE
        first, *others = (name.strip() for name in answers)
        assert first in words[:-SILENT]
        assert not {first, *others} & set(words[-SILENT:])
        assert not set(others) & set(words)


def test_right_is_what_the_model_finds_likeliest(monkeypatch):
    likelihoods = {"b": -1.0, "c": -2.0, "d": -3.0}

    def likelihoods_of(model, requests, progress):
        return [SimpleNamespace(log_likelihood=likelihoods[chr(request.continuation[0])]) for request in requests]

    monkeypatch.setattr(story_questions, "continuation_likelihoods", likelihoods_of)

    def tokenizer(text):
        return {"input_ids": [ord(letter) for letter in text]}

    choices = [Choice("a", ("b", "c", "d"), 0), Choice("a", ("c", "b", "d"), 0), Choice("a", ("c", "d"), 1)]
    assert torch.equal(right_answers(None, tokenizer, choices), torch.tensor([1.0, 0.0, 1.0]))


def test_frequent_words_are_as_often_wrong_as_right():
    """A right answer is found by its place in the text, so that frequent words are: they would be right too often."""
    frequent = [f"{letter}aaa" for letter in "bcdfghjklm"] * 20
    rare = [f"{first}{second}ooo" for first in "bcdfghjklm" for second in "aeiouvwxyz"] * 2
    times = Counter(frequent + rare)
    text = " ".join(f"Then all of them went to the {word}." for word in frequent + rare)
    shares = []
    for choice in last_words(text, 0, 400, Random(0)):
        numbers = [times[answer.strip(" .")] for answer in choice.answers]
        shares.append((numbers[0] == max(numbers)) / numbers.count(max(numbers)))
        assert len(set(choice.answers)) == 4
    assert len(shares) == 400
    assert abs(sum(shares) / 400 - 0.25) < 0.05


def test_texts_of_few_words_give_no_questions():
    assert last_words("Then all of them went back home. " * 9, 0, 5, Random(0)) == []
    assert names("then all of them went back to Mary " * 200, 0, 5, Random(0)) == []
