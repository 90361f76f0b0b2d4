"""What each BABILong run trains and reads, and what an ARMT writes; the smoke budget is in test_contract.py."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tessera.models.adjusting import adjusted_config
from tessera.models.sizes import count_parameters
from tessera.papers.babilong import run as module
from tessera.papers.babilong.run import BUDGETS, MODELS, RECIPES, SHUT, THRESHOLD, UNSEEN, LastSegment, read_as_tested
from tessera.papers.babilong.sample import RESERVED, hide
from tessera.papers.results import ResultsFile
from tessera.recipes.model_section import model_config
from tessera.recipes.recipe import read_recipe
from tessera.recipes.sections import Stage
from tessera.tasks.question_answering import question_task
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedQuestions

CPU = BUDGETS["cpu"]
pytestmark = pytest.mark.usefixtures("short_books")


def data_of(settings, kind=StagedQuestions):
    """The questions that a run of these settings is trained and tested on."""
    recipe = settings.read_recipe()
    return kind(recipe, settings.context, question_task(recipe.data.task))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_is_one_that_tessera_train_takes(path):
    recipe = read_recipe(path)
    data = StagedQuestions(recipe, recipe.data.context, question_task(recipe.data.task))
    config = model_config(recipe.model, vocab_size=1510, max_positions=1024)
    for stage in recipe.training.curriculum:
        data.require(stage)
        batch = data.batch(stage, 2, data.lengths(stage, stage.min_length)[0], 0, "train")
        assert batch.counts.any(1).all(), "every context has a question"
        config = adjusted_config(config, stage.model)
        assert {name: getattr(config, name) for name in stage.model} == stage.model
    lengths = [stage.length for stage in recipe.training.curriculum]
    assert lengths[0] == 1 < max(lengths) == 16, "from one segment to many"


def test_every_stored_run_is_one_of_a_recipe():
    stored = ResultsFile(Path(__file__).parents[2] / "results", "babilong", "cpu").read()
    for record in stored.values():
        settings = record.configuration
        assert CPU.run(settings.model, settings.kind, settings.seed).configuration == settings


def test_the_recipe_for_users_is_the_experiments_and_ends_segments_as_its_tests_do():
    recipe = read_recipe("armt-babilong-qa1-uncut")
    data = StagedQuestions(recipe, recipe.data.context, question_task(recipe.data.task))
    assert data.sentence_ends == data.tokenizer.encode(MODELS["armt_mosaic_uncut"].sentence_ends)
    trained = CPU.run("armt_mosaic_uncut", "qa1", recipe.seed).configuration.read_recipe()
    without_ends = {name: value for name, value in recipe.data.task.items() if name != "sentence_ends"}
    assert replace(recipe.data, task=without_ends) == trained.data
    assert recipe.model == trained.model
    assert replace(recipe.training, steps=trained.training.steps) == trained.training  # the sum over the stages


def test_trainings_on_unseen_books_differ_in_the_gate_of_the_normaliser():
    gated, ungated = (CPU.run(name, "qa2", 3).configuration.recipe for name in (SHUT, UNSEEN))
    assert gated["model"] == {**ungated["model"], "gate_normalizer": True}
    assert not ungated["model"]["gate_normalizer"]
    assert {**gated, "name": "", "model": None} == {**ungated, "name": "", "model": None}


def test_segments_end_at_sentences_in_the_tests_of_two_models_alone(model_and_task):
    names = ("sentences", "longer", "uncut")
    cut, plain, uncut = (CPU.run(f"armt_mosaic_{name}", "qa1", 27).configuration for name in names)
    assert {**cut.recipe, "name": ""} == {**plain.recipe, "name": ""}, "it is the same training"
    model, data = model_and_task[0], data_of(cut)
    for settings, ends in ((plain, None), (cut, ["."]), (uncut, [".", "!", "?"])):
        read_as_tested(model, settings.model, data)
        ids = model.config.segment_end_ids
        assert ends == (ids and data.tokenizer.decode(ids).split())


def test_the_tested_stories_are_as_long_as_babis(monkeypatch):
    settings = replace(CPU.run(THRESHOLD, "qa3", 0).configuration, test_contexts=2, fewest_contexts=2)
    fewest_facts = []

    class Seen(StagedQuestions):
        def batch(self, stage, *arguments):
            fewest_facts.append(self.task_of(stage).fewest_facts)
            return super().batch(stage, *arguments)

    data = data_of(settings, Seen)
    assert data.task.fewest_facts == 4
    monkeypatch.setattr(module, "right_answers", lambda model, batch: torch.ones(2))
    module._measure(torch.nn.Identity(), data, settings, 4)
    assert fewest_facts == [None]


def test_the_models_are_of_about_one_size():
    sizes = {}
    for name in MODELS:
        section = CPU.run(name, "qa1", 0).configuration.recipe["model"]
        sizes[name] = count_parameters(model_config(section, vocab_size=1510, max_positions=1024))
    bases = [sizes[name] for name in ("armt_mosaic", "armt", "armt_mosaic_v2")]
    assert max(bases) < 1.04 * min(bases), sizes
    assert max(sizes.values()) < 2.4 * min(sizes.values()), sizes


def test_all_models_are_tested_on_the_same_texts_however_many_they_read_at_once(monkeypatch):
    monkeypatch.setattr(module, "WHOLE_AT_ONCE", 2 * 3 * 128)  # three texts of 128 tokens with two questions
    seen = {}
    for name in ("armt_mosaic", "mosaic"):
        settings = replace(BUDGETS["smoke"].run(name, "qa1", 0).configuration, test_tokens=1024, test_contexts=8)
        parts = []

        def answered(model, batch, parts=parts):
            parts.append(batch)
            return torch.ones(len(batch.contexts), dtype=torch.float64)

        monkeypatch.setattr(module, "right_answers", answered)
        estimate, _ = module._measure(None, data_of(settings), settings, 2)
        assert estimate == (1.0, 0.0, 8)
        seen[name] = parts
    assert [len(part.contexts) for part in seen["armt_mosaic"]] == [8]
    assert [len(part.contexts) for part in seen["mosaic"]] == [3, 3, 2]
    for name in ("contexts", "questions", "labels"):
        (whole,) = (getattr(part, name) for part in seen["armt_mosaic"])
        assert torch.equal(whole, torch.cat([getattr(part, name) for part in seen["mosaic"]]))


def test_the_last_segment_is_what_stands_behind_the_last_border():
    settings = BUDGETS["smoke"].run("last_segment", "qa1", 0).configuration
    all_segments, last_segment = (data_of(settings, kind) for kind in (StagedQuestions, LastSegment))
    for tokens, expected in ((3 * 64 - RESERVED, 64 - RESERVED), (2 * 64, 64), (2 * 64 + 5, 5)):
        batch, cut = (one.batch(Stage(3, 1), 2, tokens, 0, "test") for one in (all_segments, last_segment))
        assert cut.contexts.shape[1] == expected
        assert torch.equal(cut.contexts, batch.contexts[:, -expected:])
        assert torch.equal(cut.questions, batch.questions)


@pytest.fixture
def model_and_task(short_books):
    settings = BUDGETS["smoke"].run("armt_mosaic_shut", "qa1", 0).configuration
    data = data_of(settings)
    return starting_model(settings.read_recipe(), data.tokenizer, context=512).eval(), data.task


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
    written = module.written_noise(model, task, 0, texts=2, segments=3)
    assert written["in_text"] == share
    assert list(written["normaliser"]) == ["1", "2"]
    assert all((size > 0) == (share > 0) for size in written["normaliser"].values())
    facts = module.written_facts(model, task, 0, texts=64)
    assert facts == {"whole": share, "first_part": share, "second_part": share}


def write_only(model, monkeypatch, is_allowed):
    """Let the first layer write where `is_allowed` says so of the number of the call, from 1 on, and the state."""
    gates(model, 20.0)
    first = model.memories[0]
    write, done = first.write, []

    def some(tokens, state, openings):
        done.append(True)
        return write(tokens, state) if is_allowed(len(done), state) else state

    monkeypatch.setattr(first, "write", some)


def test_of_segments_of_noise_those_that_write_count(model_and_task, monkeypatch):
    model, task = model_and_task
    write_only(model, monkeypatch, lambda call, state: call == 1)
    assert module.written_noise(model, task, 0, texts=2, segments=4)["in_text"] == 1 / 4


def test_parts_of_facts_count_for_their_own_segment(model_and_task, monkeypatch):
    model, task = model_and_task
    write_only(model, monkeypatch, lambda call, state: call % 2 == 0)  # second segments
    parts = module.written_facts(model, task, 0, texts=256)
    assert (parts["first_part"], parts["second_part"]) == (0.0, 1.0)
    assert 0.3 < parts["whole"] < 0.7, "half of the whole facts lie in the second segment"


def test_facts_lie_across_the_border_far_oftener_than_by_chance(model_and_task, monkeypatch):
    model, task = model_and_task
    contexts = []

    def kept(*args, **kwargs):
        contexts.append(hide(*args, **kwargs))
        return contexts[-1]

    monkeypatch.setattr(module, "hide", kept)
    module.written_facts(model, task, 0, texts=512)
    segment = model.config.segment_size
    assert len(contexts) == 512
    across = sum(context.is_fact()[[segment - 1, segment]].all() for context in contexts) / len(contexts)
    assert across > 0.08, "by chance 0.03"
