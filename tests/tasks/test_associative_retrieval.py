"""Samples, metrics and curriculum of associative retrieval."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tessera.armt as armt
from tessera.errors import TesseraError
from tessera.tasks.associative_retrieval import RetrievalTask, capacity, chance, exact_match, oracle_answers
from tessera.tasks.associative_retrieval.curriculum import Stage, TrainingOptions, answer_loss, train
from tessera.tasks.associative_retrieval.metrics import standard_error
from tessera.tasks.associative_retrieval.plot import draw
from tests.models.armt.bases import GPT2


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("task", ["remember", "rewrite"])
@pytest.mark.parametrize("key_size", [1, 2])
def test_samples_are_what_the_paper_says(task, key_size):
    spec = RetrievalTask(task, key_size)
    tokens, mask = spec.sample(9, 200, generator())
    assert tokens.shape == (200, 9 * spec.segment_size + key_size + 2)
    assert torch.equal(mask.nonzero()[:, 1].unique(), torch.tensor([tokens.shape[1] - 2]))
    for row in tokens.tolist():
        *rest, asked, answer = row[: 9 * spec.segment_size], row[9 * spec.segment_size : -2], row[-1]
        pairs = [rest[0][i : i + spec.segment_size] for i in range(0, len(rest[0]), spec.segment_size)]
        latest = {}
        for pair in pairs:
            assert pair[key_size] == 16  # ":"
            assert pair[-1] == 17  # ","
            assert task == "rewrite" or tuple(pair[:key_size]) not in latest
            latest[tuple(pair[:key_size])] = pair[key_size + 1]
        assert latest[tuple(asked)] == answer < 16
        assert row[-2] == 18  # "-"


def test_the_asked_key_is_uniform_over_the_distinct_ones():
    spec = RetrievalTask("rewrite", num_symbols=3)
    keys = torch.tensor([[0, 0, 0, 0, 1, 2]]).expand(6000, -1)
    places = spec._pick_distinct(keys, 1, generator()).squeeze(1)
    counts = torch.bincount(keys[0][places], minlength=3)
    # 6000 draws of probability 1/3: standard deviation 37.
    assert (counts - 2000).abs().max() < 5 * 37


@pytest.mark.parametrize("task", ["remember", "rewrite"])
def test_oracle_and_chance(task):
    spec = RetrievalTask(task)
    assert exact_match(oracle_answers(spec), spec, 12, 300) == 1.0
    guess = exact_match(lambda prompts: torch.randint(16, (len(prompts),)), spec, 12, 2000)
    assert abs(guess - chance(spec)) < 5 * standard_error(chance(spec), 2000)


def test_questions_to_one_context_are_the_samples_questions():
    spec = RetrievalTask("rewrite", 2)
    context, questions = spec.sample_questions(7, 20, 5, generator())
    for i in range(5):
        prompts = torch.cat([context, questions[:, i, :-1]], 1)
        assert torch.equal(oracle_answers(spec)(prompts), questions[:, i, -1])


def test_capacity_inverts_the_mixture_of_knowing_and_guessing():
    for known in (0, 3, 10):
        share = known / 10 + (1 - known / 10) / 16
        assert capacity(share, 10, 16) == pytest.approx(known)


def test_impossible_tasks_are_refused():
    with pytest.raises(TesseraError, match="task must be one of remember, rewrite"):
        RetrievalTask("recall")
    with pytest.raises(TesseraError, match=r"at most the number of keys \(16, key_size 1\); got 17"):
        RetrievalTask("remember").sample(17, 1, generator())


def small():
    sizes = {**GPT2, "vocab_size": 19, "n_layer": 1, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    base = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=None, eos_token_id=None))
    return armt.wrap(base, 4, 2, memory_dim=4)


def test_the_loss_is_that_of_the_whole_samples():
    model, spec = small(), RetrievalTask("rewrite")
    with torch.no_grad():
        model.memories[0].value.weight.normal_()
    context, questions = spec.sample_questions(3, 4, 2, generator())
    whole = torch.cat([context.repeat_interleave(2, 0), questions.flatten(0, 1)], 1)
    mask = torch.zeros_like(whole, dtype=torch.bool)
    mask[:, -2] = True
    expected = model(whole, labels=whole, labels_mask=mask).loss
    torch.testing.assert_close(answer_loss(model, context, questions), expected)


def test_a_curriculum_learns_and_carries_on_from_stage_to_stage():
    model, records = small(), []
    stages = [Stage(1, target=0.9, lr=1e-2), Stage(2, target=2.0)]  # the second never ends by its target
    options = TrainingOptions(batch=16, questions=1, check_every=20, check_samples=100)
    train(model, "rewrite", stages, options, 5.0, records.append)
    assert records[0]["exact_match"] >= 0.9
    assert records[0]["max_pairs"] == 1
    assert records[1]["exact_match"] > 3 / 16  # far above the guess from its first check on


def test_the_figure_is_drawn_from_partial_results(tmp_path):
    run = {"stages": [{"max_pairs": 2}], "exact_match": {"1": 1.0, "4": 0.5}, "standard_error": {"1": 0.0, "4": 0.1}}
    runs = {f"{name}/{task}": {**run, "capacity": {"1": 1.0, "4": 1.9}} for name, task in [("armt", "remember")]}
    draw({"runs": runs, "chance": 1 / 16}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
