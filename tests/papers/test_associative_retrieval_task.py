"""Samples and capacity of associative retrieval (the contract of tasks is tested elsewhere)."""

import pytest
import torch

from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.associative_retrieval.task import AssociativeRetrieval, capacity, capacity_error
from tessera.tasks.task import TokenExamples
from tests.refusals import refused
from tests.tasks.cases import case_of


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rule", ["remember", "rewrite"])
@pytest.mark.parametrize("key_size", [1, 2])
def test_samples_are_what_the_paper_says(rule, key_size):
    task = AssociativeRetrieval(rule, 9, key_size)
    examples = task.sample(200, seed=0)
    assert examples.tokens.shape == (200, 9 * task.segment_size + key_size + 2)
    assert torch.equal(
        (examples.labels != IGNORED).nonzero()[:, 1].unique(), torch.tensor([examples.tokens.shape[1] - 1])
    )
    for row in examples.tokens.tolist():
        rest, question, answer = row[: 9 * task.segment_size], row[9 * task.segment_size : -2], row[-1]
        pairs = [rest[i : i + task.segment_size] for i in range(0, len(rest), task.segment_size)]
        latest = {}
        for pair in pairs:
            assert pair[key_size] == 16  # ":"
            assert pair[-1] == 17  # ","
            assert rule == "rewrite" or tuple(pair[:key_size]) not in latest
            latest[tuple(pair[:key_size])] = pair[key_size + 1]
        assert latest[tuple(question)] == answer < 16
        assert row[-2] == 18  # "-"


def test_the_asked_key_is_uniform_over_the_distinct_ones():
    keys = torch.tensor([[0, 0, 0, 0, 1, 2]]).expand(6000, -1)
    places = AssociativeRetrieval._pick_distinct(keys, 1, generator()).squeeze(1)
    counts = torch.bincount(keys[0][places], minlength=3)
    # 6000 draws of probability 1/3: standard deviation 37.
    assert (counts - 2000).abs().max() < 5 * 37


def test_questions_to_one_context_are_the_samples_questions():
    task = AssociativeRetrieval("rewrite", 7, key_size=2)
    batch = task.sample_questions(20, 5, generator())
    for i in range(5):
        examples = TokenExamples(tokens := torch.cat([batch.contexts, batch.questions[:, i]], 1), tokens)
        assert task.scores(case_of(task).oracle(examples), examples)["exact_match"].mean() == 1.0


def test_capacity_inverts_the_mixture_of_knowing_and_guessing():
    for known in (0, 3, 10):
        share = known / 10 + (1 - known / 10) / 16
        assert capacity(share, 10, 16) == pytest.approx(known)
    assert capacity_error(0.01, 10, 16) == pytest.approx(capacity(0.51, 10, 16) - capacity(0.5, 10, 16))


def test_impossible_tasks_are_refused():
    refused("rule must be one of remember, rewrite", AssociativeRetrieval, "recall")
    refused(r"at most the number of keys \(16, key_size 1\); got 17", AssociativeRetrieval, "remember", 17)
    refused("num_pairs must be at least 1; got 0", AssociativeRetrieval, "rewrite", 0)
