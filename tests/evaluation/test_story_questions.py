"""The benchmark's questions about stories: what the right answers do not give away."""

from collections import Counter
from random import Random

from benchmarks.story_questions import last_words, names


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
