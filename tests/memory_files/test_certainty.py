"""How sure one can be that a text answers: measured, kept, read, and right where what is measured says enough."""

import re
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig, GPT2Config

from tessera.memory_files import certainty
from tessera.memory_files.answering import Answer
from tessera.memory_files.certainty import Certainty, features, fitted, measured
from tessera.memory_files.citations import Citation
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.babilong.task import BABILong
from tests.refusals import refused


def example(separation, questions=64):
    """Features of answers by their log odds, and whether they were in the text: more often so where these are high."""
    generator = torch.Generator().manual_seed(0)
    rows, answered = [], []
    for _ in range(40):
        log_odds = 3 * torch.randn(questions, generator=generator, dtype=torch.double)
        true = torch.sigmoid(separation * log_odds - 1)
        answered.append(torch.rand(questions, generator=generator, dtype=torch.double) < true)
        nothing = torch.zeros_like(log_odds)
        rows.append(torch.stack([nothing + 1, log_odds, nothing, nothing - 15], 1))
    return rows, answered


def test_probabilities_are_those_with_which_the_text_answers():
    rows, answered = example(0.7)
    measure = fitted(rows, answered, tokens=100)
    chances = torch.sigmoid(torch.cat(rows) @ torch.tensor(measure.weights, dtype=torch.double))
    is_there = torch.cat(answered).double()
    for low in (0.0, 0.2, 0.4, 0.6, 0.8):
        chosen = (chances >= low) & (chances < low + 0.2)
        assert abs(float(is_there[chosen].mean() - chances[chosen].mean())) < 0.05
    assert measure.questions == 20 * 64
    assert measure.told == pytest.approx(float(((chances >= 0.5) == is_there.bool()).double().mean()), abs=0.03)
    right = torch.cat(answered[1::2])
    told = torch.sigmoid(torch.cat(rows[1::2]) @ torch.tensor(measure.weights).double())
    missed, false_answers = (told[right] < 0.5).double().mean(), (told[~right] >= 0.5).double().mean()
    assert (measure.missed, measure.false_answers) == pytest.approx((float(missed), float(false_answers)), abs=1e-3)
    assert 0.05 < measure.missed < 0.5 > measure.false_answers > 0.02
    share = f"of those that the texts answer {100 * measure.missed:.0f} % were called not in the text, of the others "
    assert f"{share}{100 * measure.false_answers:.0f} % were answered" in measure.described()
    of_nothing = [part.clone() for part in rows]
    for part in of_nothing:
        part[:, 3] = part[:, 1]  # the model says "not in this text" itself, of everything
    own = fitted(of_nothing, answered, tokens=100)
    assert (own.missed, own.false_answers) == (1.0, 0.0)
    spoiled = [~part if index % 2 else part for index, part in enumerate(answered)]  # of the half that tests
    other = fitted(rows, spoiled, tokens=100)
    assert other.weights == measure.weights
    assert other.told == pytest.approx(1 - measure.told)


def test_answers_that_lie_apart_are_told_apart():
    """As those of a trained model do: log odds, distance, log odds of "not in this text", which say much the same."""
    generator, rows, answered = torch.Generator().manual_seed(0), [], []
    means = torch.tensor([[-0.95, 0.29, -11.1], [3.7, 0.8, -13.5]], dtype=torch.double)
    spreads = torch.tensor([[0.15, 0.05, 0.3], [0.8, 0.1, 0.6]], dtype=torch.double)
    for _ in range(6):
        answered.append(torch.rand(25, generator=generator) < 0.5)
        of = answered[-1].int()
        noise = torch.randn(25, 3, generator=generator, dtype=torch.double)
        rows.append(torch.cat([torch.ones(25, 1).double(), means[of] + spreads[of] * noise], 1))
    measure = fitted(rows, answered, tokens=1024)
    assert measure.told > 0.97
    assert measure.missed < 0.05 > measure.false_answers


@pytest.mark.parametrize(
    ("with_text", "without_text", "told"),
    [
        pytest.param((6.0, 6.0), (0.0, 0.0), (0.35, 0.8), id="knows nothing"),
        pytest.param((6.0, 3.0), (6.0, 3.0), (1.0, 1.0), id="less sure"),
        pytest.param((6.0, 6.0), (0.0, 6.0), (1.0, 1.0), id="said anyway"),
    ],
)
def test_a_model_that_knows_is_told_from_one_that_does_not(monkeypatch, with_text, without_text, told):
    """Where a text does not answer it is less sure, or says what it says without a text.

    `with_text`, `without_text`: logits of its answer, where the text answers and where it does not.
    """
    task = BABILong("qa1", vocab_size=250, facts_share=0.6)
    unknown = task.vocabulary.token_to_id("<unk>")

    def logits_of(tokens, answers, strength, of_unanswered):
        """Of the token before the answer: 30 is likelier by so much; everywhere else 31."""
        logits = torch.zeros(*tokens.shape, 250)
        logits[..., 31] = 9.0
        is_unanswered = (answers == unknown).any(-1)
        rows, before = torch.arange(len(tokens)), (answers != IGNORED).int().argmax(-1) - 1
        logits[rows, before, 31] = 0.0
        logits[rows, before, 30] = torch.where(is_unanswered, of_unanswered, strength)
        return logits

    asked = []

    def question_logits(model, batch):
        asked.append(batch)
        labels = batch.labels.flatten(0, 1)
        return logits_of(labels, labels, *with_text)

    def read_on(model, ids, state):
        labels = asked[-1].labels.flatten(0, 1)
        assert torch.equal(ids, asked[-1].questions.flatten(0, 1))
        return logits_of(ids, labels, *without_text), None

    monkeypatch.setattr(certainty, "question_logits", question_logits)
    monkeypatch.setattr(certainty, "read_on", read_on)
    measure = measured(SimpleNamespace(device="cpu"), task, 64, 32, 8)
    assert told[0] <= measure.told <= told[1]
    assert (measure.tokens, len(measure.weights)) == (64, 4)
    counted = [batch.labels.flatten(0, 1)[batch.counts.flatten()] for batch in asked]
    assert measure.questions == sum(map(len, counted[1::2]))
    nothing = [float((labels == unknown).any(-1).double().mean()) for labels in counted]
    assert 0.4 < sum(nothing) / len(nothing) < 0.65, "half of the questions"
    chances = [
        float(measure.probabilities(*(torch.tensor([[0.0] * 30 + [high] + [0.0] * 219]) for high in both), unknown))
        for both in zip(with_text, without_text)
    ]
    assert (chances[0] > 0.9 and chances[1] < 0.1) == (told == (1.0, 1.0))


def test_what_an_answer_looks_like():
    logits = torch.log(torch.tensor([[0.1, 0.7, 0.2], [0.0, 1.0, 0.0]]))
    rows = features(logits, torch.log(torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]])), unknown=0)
    expected = [[1, 0.8473, 0.5, -2.1972], [1, 15, 0, -15]]
    torch.testing.assert_close(rows, torch.tensor(expected, dtype=torch.double), rtol=0, atol=1e-4)


def test_it_is_kept_in_the_generation_config_and_spoiled_ones_are_refused(tmp_path):
    model = SimpleNamespace(generation_config=GenerationConfig.from_model_config(GPT2Config()))
    assert Certainty.of(model) is None
    stored = Certainty((0.5, 1.0, -2.0, 0.25), 512, 128, 0.9).store(model)
    model.generation_config.save_pretrained(tmp_path)
    model.generation_config = GenerationConfig.from_pretrained(tmp_path)
    assert Certainty.of(model) == stored
    for spoiled in ({}, [1], {**model.generation_config.certainty, "weights": ["a"]}):
        model.generation_config.certainty = spoiled
        refused("generation_config.json: certainty", Certainty.of, model)


def test_what_is_said():
    nothing = torch.zeros(0)

    def said(**known):
        return Answer("garden", 0.983, nothing, nothing, **known).said()

    assert said() == "garden (98.3 %)"
    unsaid = Answer("not in this text", 0.9, nothing, nothing, certainty=0.9)
    assert (unsaid.said(), unsaid.is_in_text) == ("not in this text (90.0 %)", False)
    assert said(certainty=0.96) == "garden (98.3 %; that the text says so: 96 %)"
    assert said(certainty=0.12) == "not in this text (88 %; its guess is garden (98.3 %))"


def test_sources_in_words_are_those_that_count():
    """A citation without which the answer is as probable says nothing, unless there is no other."""

    def shown(*drops, certainty=0.9):
        citations = tuple(Citation("a book", n, n + 1, f"S{n}.", 0.2, drop) for n, drop in enumerate(drops))
        nothing = torch.zeros(0)
        return Answer("garden", 0.9, nothing, nothing, citations, certainty).sources()

    two = shown(0.9, 0.0005, 0.0004, -0.1)
    assert re.findall(r"S\d", two) == ["S0", "S1"]
    assert re.findall(r"answer is (\S+) less", two) == ["0.900", "0.001"]
    none = shown(-0.0001, -0.2, certainty=0.1)
    assert re.findall(r"answer is (\S+) less", none) == ["0.000"]
    assert none.startswith("  not in this text: no passage carries the answer\n  a book, bytes 0-1: S0.")
    assert shown() == ""
