"""Facts planted in a text, asked of a small mosaic that has learned to recall such: which sentence is cited.

`python -m benchmarks.citations` asks 1,000 questions, and as many in long books.
"""

from random import Random

import pytest

from benchmarks.citations import BATCHES, Facts, measured, trained

QUESTIONS = 60


@pytest.mark.slow
def test_the_first_citation_is_the_planted_sentence():
    facts = Facts()
    model = trained(facts, 400, BATCHES[:1])
    *_, came = measured(model, facts, facts.sentences, QUESTIONS, 6, 12, 1, Random(0))
    assert came["right"] >= 0.95 * QUESTIONS
    assert came["first_citation_is_the_fact"] >= 0.99 * QUESTIONS
    assert came["absent_yet_in_text"] <= 0.1 * QUESTIONS
