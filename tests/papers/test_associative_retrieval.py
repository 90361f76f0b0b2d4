"""Samples and capacity of associative retrieval (the contract of tasks is tested elsewhere)."""

import pytest
import torch

from tessera.models.small_models import ModelSize
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.associative_retrieval.report import (
    BUDGETS,
    BY_GRADIENT,
    CONTEXTS_AT_ONCE,
    EXPERIMENT,
    KEY_SIZE,
    NAMES,
    VOCABULARY,
    build,
    exact_match,
    mean_loss,
    memory_norms,
    numbers_kept,
    stage,
)
from tessera.papers.associative_retrieval.task import AssociativeRetrieval, capacity, capacity_error
from tessera.papers.experiment import RunSelection
from tessera.recipes.sections import Curriculum
from tessera.tasks.task import TokenExamples, generator_of
from tessera.training.fit import FitOptions, train_curriculum
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


SIZES = ModelSize(
    VOCABULARY, num_layers=1, hidden_size=16, num_heads=2, num_memory_tokens=2, memory_dim=4, max_positions=64
)
TASK = AssociativeRetrieval("rewrite", 3)


def small(name, sizes=SIZES):
    model = build(name, sizes, seed=0)
    for memory in getattr(model, "memories", []):
        torch.nn.init.normal_(memory.value.weight, generator=generator())  # a memory that says something
    return model


@pytest.mark.parametrize("name", ["armt", "mosaic"])
def test_the_loss_is_that_of_the_answers_in_whole_samples(name):
    model = small(name).eval()
    batch = TASK.sample_questions(4, 1, generator())
    row = torch.cat([batch.contexts, batch.questions.flatten(1)], 1)
    measured = mean_loss(model, TASK, 4, 1, generator())
    log_probabilities = torch.log_softmax(model(input_ids=row).logits[:, -2], -1)
    torch.testing.assert_close(measured, -log_probabilities.gather(1, row[:, -1:]).mean())


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BY_GRADIENT])
def test_exact_match_is_that_of_each_question_alone(name):
    model = small(name).eval()
    measured = exact_match(model, TASK, 4, 3, 0, "test")
    batch = TASK.sample_questions(4, 3, generator_of(TASK, 0, "test"))
    right = []
    for i in range(3):
        prompts = torch.cat([batch.contexts, batch.questions[:, i, :-1]], 1)
        right.append(model(input_ids=prompts).logits[:, -1].argmax(-1) == batch.questions[:, i, -1])
    torch.testing.assert_close(measured, torch.stack(right).double().mean(0))


@pytest.mark.parametrize("name", BY_GRADIENT)
def test_a_memory_written_by_gradient_is_asked_as_any_other(name):
    """Contexts are written whole, and every question is asked alone behind what was written."""
    writer, batch = small(name).eval(), TASK.sample_questions(4, 3, generator_of(TASK, 0, "test"))
    with torch.no_grad():
        memory = writer.write(batch.contexts)
        rows = [batch.questions[:, i] for i in range(3)]
        logits = [writer.model(input_ids=row, memory_state=memory, use_cache=True).logits for row in rows]
    right = [(scores[:, -2].argmax(-1) == row[:, -1]).double() for scores, row in zip(logits, rows)]
    torch.testing.assert_close(exact_match(writer, TASK, 4, 3, 0, "test"), torch.stack(right).mean(0))


def test_models_of_a_budget_have_about_half_a_million_parameters():
    for name in NAMES:
        sizes = BUDGETS["cpu"]["rewrite"].run(name, 0).configuration.sizes
        count = sum(p.numel() for p in build(name, sizes, 0).parameters())
        assert 400_000 < count < 520_000, name


@pytest.mark.grid
def test_armt_learns_one_pair(tmp_path):
    model = build("armt", SIZES, 0)
    curriculum = Curriculum((stage(1, 300, 0.9, 1e-2),))
    options = FitOptions(steps=1, learning_rate=1.0, evaluate_every=20)

    def loss_at(stage, number, step):
        return mean_loss(model, AssociativeRetrieval("rewrite", 1), 16, 1, generator(step))

    def score(stage):
        task = AssociativeRetrieval("rewrite", stage.length, stage.settings[KEY_SIZE])
        return exact_match(model, task, 64, 1, 0, "validation").mean().item()

    (record,) = train_curriculum(model, curriculum, options, tmp_path, loss_at, score)
    assert record["best"] >= 0.9  # a guess: 0.06
    assert record["steps_done"] < 300


def test_the_norms_are_those_of_reading_each_length_from_the_start():
    model, task = small("armt").eval(), AssociativeRetrieval("rewrite", 6)
    measured = memory_norms(model, task, [2, 6, 9], seed=0)
    context = task.sample_questions(CONTEXTS_AT_ONCE, 1, generator_of(task, 0, "test")).contexts
    for n in (2, 6):
        memory = model(input_ids=context[:, : 4 * n]).memory_state
        assert measured["normaliser"][str(n)] == pytest.approx(memory.z.norm(dim=-1).mean().item())
        assert measured["matrix"][str(n)] == pytest.approx(memory.A.square().sum((2, 3)).sqrt().mean().item())
    assert "9" not in measured["matrix"]
    assert memory_norms(small("rmt"), task, [2], 0) == {}


@pytest.mark.parametrize(
    ("name", "kept"), [("armt", 99_072), ("mamba", 36_864), ("prmt", 2048), ("rmt", 512), ("gradmem", 512)]
)
def test_models_of_published_sizes_keep_as_many_numbers_however_much_they_read(name, kept):
    settings = BUDGETS["cpu"]["rewrite"].run(name, 0).configuration
    model = build(name, settings.sizes, 0).eval()
    for pairs in (1, 10):
        assert numbers_kept(model, settings, pairs) == kept


def test_a_model_that_reads_the_whole_text_keeps_more_of_more():
    model = small("mosaic").eval()
    one, two, three = (numbers_kept(model, BUDGETS["cpu"]["rewrite"], pairs) for pairs in (1, 2, 3))
    assert three - two == two - one == 4 * 2 * 18  # tokens of a pair, keys and values, width (9/8 of 16)


@pytest.mark.parametrize("budget", list(BUDGETS))
def test_every_measured_length_exists(budget):
    """Remembered keys are all different: a model that stops at short keys cannot be asked for more pairs than those."""
    for settings in [one.configuration for one in EXPERIMENT.runs(RunSelection(budget))]:
        assert settings.measured
        for pairs in settings.measured:
            assert settings.task(pairs).num_pairs == pairs
