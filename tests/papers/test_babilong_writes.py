"""What an ARMT writes: of noise in a text and with an empty memory, and of single facts."""

import pytest
import torch

from tessera.papers.babilong import run as module
from tessera.papers.babilong.run import BUDGETS, written_facts, written_noise
from tessera.papers.babilong.sample import hide
from tessera.tasks.question_answering import question_task
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedQuestions


@pytest.fixture
def model_and_task(short_books):
    settings = BUDGETS["smoke"].run("armt_mosaic_shut", "qa1", 0).configuration
    recipe = settings.read_recipe()
    task = question_task(recipe.data.task)
    tokenizer = StagedQuestions(recipe, settings.context, task).tokenizer
    return starting_model(recipe, tokenizer, context=512).eval(), task


def gates(model, bias):
    """Let every gate of the first layer open, or none, whatever it sees; the others stay shut."""
    for index, memory in enumerate(model.memories):
        torch.nn.init.zeros_(memory.strength.weight)
        torch.nn.init.constant_(memory.strength.bias, bias if index == 0 else -20.0)
        torch.nn.init.normal_(memory.value.weight)


@pytest.mark.parametrize(("bias", "share"), [(20.0, 1.0), (-20.0, 0.0)])
def test_open_gates_write_everything_and_shut_ones_nothing(model_and_task, bias, share):
    model, task = model_and_task
    gates(model, bias)
    written = written_noise(model, task, 0, texts=2, segments=3)
    assert (written["in_text"], written["alone"]) == (share, share)
    assert list(written["normaliser"]) == ["1", "2"]
    assert all((size > 0) == (share > 0) for size in written["normaliser"].values())


def test_gates_that_the_memory_shuts_write_once_in_a_text_but_always_with_an_empty_memory(model_and_task, monkeypatch):
    model, task = model_and_task
    gates(model, 20.0)
    first = model.memories[0]
    write = first.write

    def unless_something_is_stored(tokens, state, openings):
        return write(tokens, state) if state.empty.all() else state

    monkeypatch.setattr(first, "write", unless_something_is_stored)
    written = written_noise(model, task, 0, texts=2, segments=4)
    assert (written["in_text"], written["alone"]) == (1 / 4, 1.0)


def write_only(model, monkeypatch, is_allowed):
    """Let the first layer write where `is_allowed` says so of the number of the call, from 1 on."""
    gates(model, 20.0)
    first = model.memories[0]
    write, done = first.write, []

    def some(tokens, state, openings):
        done.append(True)
        return write(tokens, state) if is_allowed(len(done)) else state

    monkeypatch.setattr(first, "write", some)


def test_what_the_text_has_written_does_not_count_for_segments_read_alone(model_and_task, monkeypatch):
    model, task = model_and_task
    write_only(model, monkeypatch, lambda call: call == 1)
    written = written_noise(model, task, 0, texts=2, segments=4)
    assert (written["in_text"], written["alone"]) == (1 / 4, 0.0)


def test_facts_are_written_by_open_gates_and_not_by_shut_ones(model_and_task):
    model, task = model_and_task
    for bias, share in ((20.0, 1.0), (-20.0, 0.0)):
        gates(model, bias)
        parts = written_facts(model, task, 0, texts=64)
        assert parts == {"whole": share, "first_part": share, "second_part": share}


def test_parts_of_facts_count_for_their_own_segment(model_and_task, monkeypatch):
    model, task = model_and_task
    write_only(model, monkeypatch, lambda call: call % 2 == 0)  # second segments
    parts = written_facts(model, task, 0, texts=256)
    assert (parts["first_part"], parts["second_part"]) == (0.0, 1.0)
    assert 0.3 < parts["whole"] < 0.7, "half of the whole facts lie in the second segment"


def test_facts_lie_across_the_border_far_oftener_than_by_chance(model_and_task, monkeypatch):
    model, task = model_and_task
    contexts = []

    def kept(*args, **kwargs):
        contexts.append(hide(*args, **kwargs))
        return contexts[-1]

    monkeypatch.setattr(module, "hide", kept)
    written_facts(model, task, 0, texts=512)
    segment = model.config.segment_size
    assert len(contexts) == 512
    across = sum(context.is_fact()[[segment - 1, segment]].all() for context in contexts) / len(contexts)
    assert across > 0.08, "by chance 0.03"
