"""The passwords hidden in books, and the demo that asks for them."""

import pytest
import torch

from tessera.data.tokenizers import byte_tokenizer
from tessera.memory_files import Memory
from tessera.memory_files.answering import Answer
from tessera.papers.passwords import demo, task
from tessera.papers.passwords.demo import AnsweredQuestion, Hidden, hidden_passwords, read_with_passwords
from tessera.papers.passwords.task import Passwords
from tests.memory_files.models import make


def test_people_and_words_are_single_tokens():
    for word in (*task.PEOPLE, *task.WORDS):
        assert len(task._texts().encoded(f" {word}")) == 1, word
    for person in task.PEOPLE:
        assert len(task._texts().encoded(" " + task.FACT.format(person=person, word="water"))) <= task.FACT_TOKENS
        assert len(task.question_tokens(person)) + len(task.answer_tokens("water")) <= task.QUESTION_TOKENS


def test_questions_are_as_ask_gives_them_and_are_known():
    for person in task.PEOPLE:
        question = task.QUESTION.format(person=person)
        assert Passwords().is_known(question)
        tokens = task.question_tokens(person)
        assert task._texts().vocabulary.decode(tokens.tolist(), skip_special_tokens=False) == f"{question}<answer>"
    assert not Passwords().is_known("What is the password of the moon?")
    assert Passwords().is_stated(task.FACT.format(person="fox", word="river"))
    assert not Passwords().is_stated("The password of the fox was river.")
    assert not Passwords().is_stated("The password of the fox is moon.")


def test_the_demo_hides_eight_of_ten_in_both_books():
    hidden = list(hidden_passwords(["one", "two"], 0))
    assert len({one.person for one in hidden}) == demo.QUESTIONS
    assert sum(one.word is None for one in hidden) == demo.WITHOUT
    assert {one.book for one in hidden if one.word} == {"one", "two"}
    assert hidden == list(hidden_passwords(["one", "two"], 0)) != list(hidden_passwords(["one", "two"], 1))


@pytest.mark.parametrize(
    ("word", "said", "certainty", "is_right"),
    [
        ("river", "river", 0.9, True),
        ("river", "stone", 0.9, False),
        ("river", "river", 0.1, False),  # "not in this text", with the right guess
        (None, "river", 0.9, False),
        (None, "river", 0.1, True),
        (None, "not in this text", 0.9, True),
        ("river", "not in this text", 0.9, False),
    ],
)
def test_what_counts_as_right_in_the_demo(word, said, certainty, is_right):
    nothing = torch.zeros(0, dtype=torch.long)
    answer = Answer(said, 0.9, nothing, nothing, certainty=certainty)
    assert AnsweredQuestion(Hidden("fox", word), answer, {}).is_right is is_right


def test_the_demo_knows_where_it_hid_what(tmp_path):
    book, memory = tmp_path / "one.txt", Memory(make("v1"), byte_tokenizer())
    book.write_text("There was a king. He had three daughters. " * 20)
    hidden = [Hidden("fox", "river", "one.txt"), Hidden("cat", None), Hidden("dog", "stone", "one.txt")]
    fox, cat, dog = read_with_passwords(memory, book, hidden, 1)
    text = byte_tokenizer().decode(memory.documents[0].tokens)
    assert cat == hidden[1]
    for one in (fox, dog):
        assert text.index(one.fact) / len(text) == pytest.approx(one.place, abs=0.1)
    assert 0 < fox.place < dog.place < 1
