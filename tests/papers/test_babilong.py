"""What each BABILong run trains and reads; the smoke budget from end to end is in test_contract.py."""

from dataclasses import replace

import pytest
import torch

from tessera.models.sizes import count_parameters
from tessera.papers.babilong import run as module
from tessera.papers.babilong.models import GATED, NAMES, THRESHOLD, WHOLE_TEXT
from tessera.papers.babilong.run import EXPERIMENT, LastSegment
from tessera.papers.babilong.sample import RESERVED
from tessera.papers.babilong.settings import BUDGETS, CPU, SPLIT_FACTS, SPLIT_QA2, GatedStage
from tessera.papers.experiment import RunSelection
from tessera.recipes.model_section import model_config, model_problems
from tessera.recipes.recipe import read_recipe
from tessera.training.curriculum import Stage
from tessera.training.staged_data import StagedQuestions, question_task


@pytest.mark.parametrize("budget", BUDGETS)
def test_every_recipe_is_one_that_tessera_train_takes(budget):
    for kind in BUDGETS[budget].kinds:
        for name in NAMES:
            settings = BUDGETS[budget].run(name, kind, 0).configuration
            recipe = settings.plan()
            assert model_problems(recipe.model) == [], name
            data = StagedQuestions(recipe, settings.segment, question_task(recipe.data.task))
            if budget != "full" and name in (GATED, THRESHOLD, "armt_mosaic"):
                for stage in recipe.training.curriculum:
                    data.require(stage)


@pytest.mark.parametrize(
    ("recipe", "model"), [("armt-babilong-qa1", "armt_mosaic"), ("armt-babilong-qa1-long", THRESHOLD)]
)
def test_the_recipes_that_ship_are_the_runs_of_qa1(recipe, model):
    shipped, plan = read_recipe(recipe), CPU.run(model, "qa1", 0).configuration.plan()
    training = replace(plan.training, steps=plan.training.curriculum_steps)  # as a recipe file's section has it
    assert replace(plan, name=recipe, training=training) == shipped


def test_other_kinds_are_read_by_the_model_with_a_threshold_and_qa4_learns_longer_first():
    runs = EXPERIMENT.runs(RunSelection("cpu", seeds=1))
    others = [run for run in runs if run.configuration.kind != "qa1"]
    assert {run.configuration.model for run in others} == {THRESHOLD}
    steps = {
        run.configuration.kind: [one["steps"] for one in run.configuration.recipe["training"]["curriculum"]][:2]
        for run in runs
        if run.configuration.model == THRESHOLD
    }
    assert steps["qa1"] == [CPU.stages[0][1], CPU.memory_steps]
    assert steps["qa4"] == [1000, 600]
    assert steps["qa5"] == [600, 600]


def test_questions_that_chain_facts_have_deeper_bases_and_the_questions_about_one_fact():
    plans = {kind: CPU.run(THRESHOLD, kind, 0).configuration.plan() for kind in CPU.kinds}
    assert {kind: plan.model["base"]["num_layers"] for kind, plan in plans.items()} == {
        "qa1": 2,
        "qa2": 4,
        "qa3": 4,
        "qa4": 2,
        "qa5": 2,
    }
    also = {kind: plan.data.task.get("also_asked", []) for kind, plan in plans.items()}
    assert {kind: others for kind, others in also.items() if others} == {"qa2": ["qa1"], "qa3": ["qa1", "qa2"]}
    first, memory, second = plans["qa2"].training.curriculum[:3]
    assert (first.length, memory.from_memory, second.length) == (1, True, 2)
    assert first.settings == memory.settings == {"facts_share": 0.7}, "a segment does not hold a story with less"
    assert not second.settings
    for kind in ("qa2", "qa3"):
        longer = [stage for stage in plans[kind].training.curriculum if stage.length >= 4]
        assert [stage.settings["also_asked"] for stage in longer] == 6 * [[]], "the kind itself alone"
    fewest = {kind: plan.data.task.get("fewest_facts") for kind, plan in plans.items()}
    assert fewest == {"qa1": None, "qa2": 3, "qa3": 4, "qa4": None, "qa5": 3}, "a segment holds at most seven facts"
    for kind, plan in plans.items():
        lengths = [stage.length for stage in plan.training.curriculum[:3]]
        assert lengths == ([1, 1, 3] if kind == "qa3" else [1, 1, 2])


def test_gates_close_in_further_stages_of_rising_cost():
    published, gated = (
        CPU.run(name, "qa1", 0).configuration.recipe["training"]["curriculum"] for name in ("armt_mosaic", GATED)
    )
    assert gated[: len(published)] == published
    further = gated[len(published) :]
    assert [(stage["length"], stage["steps"], stage["write_cost"]) for stage in further] == [
        (one.segments, one.steps, one.cost) for one in CPU.gated_stages
    ]
    assert {(stage["min_length"], stage["backprop_segments"], stage["target"]) for stage in further} == {(8, 8, 2.0)}
    assert all(stage["settings"] == CPU.gated_noise for stage in further)
    assert not any("strength_threshold" in stage for stage in gated)


def test_a_stage_with_a_threshold_follows_the_gated_ones_and_differs_in_what_it_says():
    gated = CPU.run(GATED, "qa1", 0).configuration.recipe["training"]["curriculum"]
    own = replace(CPU, harder={}, threshold_stages=(GatedStage(32, 100, 5.0, 0.6, rate=0.125),))
    threshold = own.run(THRESHOLD, "qa1", 0).configuration.recipe["training"]["curriculum"]
    assert threshold[: len(gated)] == gated
    last = {"steps": 100, "write_cost": 5.0, "strength_threshold": 0.6, "learning_rate": CPU.rate / 8}
    assert threshold[len(gated) :] == [{**gated[-1], **last}]


@pytest.mark.parametrize("kind", CPU.kinds)
def test_gradients_reach_every_write_that_the_model_with_a_threshold_pays_for(kind):
    stages = CPU.run(THRESHOLD, kind, 0).configuration.recipe["training"]["curriculum"]
    charged = [stage for stage in stages if "write_cost" in stage]
    assert {(stage["min_length"], stage["length"], stage["backprop_segments"]) for stage in charged} == {(2, 8, 8)}


@pytest.mark.parametrize("kind", CPU.kinds)
def test_the_model_with_a_threshold_learns_with_facts_that_borders_split(kind):
    stages = CPU.run(THRESHOLD, kind, 0).configuration.recipe["training"]["curriculum"]
    own = SPLIT_QA2 if kind in ("qa2", "qa3") else SPLIT_FACTS
    expected = [(one.cost, one.threshold, one.rate) for one in (*own.gated_stages, *own.threshold_stages)]
    charged = [stage for stage in stages if "write_cost" in stage]
    assert [
        (stage["write_cost"], stage.get("strength_threshold"), stage["learning_rate"] / CPU.rate) for stage in charged
    ] == expected
    assert stages[-len(charged) :] == charged
    assert all(stage["settings"]["split_facts"] == 0.5 for stage in charged)
    *before, last = [stage.get("settings", {}) for stage in stages[: -len(charged)]]
    assert last["split_facts"] == 0.5, "what halves are for is learned before gates shut"
    assert not any("split_facts" in settings for settings in before)


def test_the_tested_stories_are_as_long_as_babis(monkeypatch):
    settings = replace(CPU.run(THRESHOLD, "qa3", 0).configuration, test_contexts=2, fewest_contexts=2)
    fewest_facts = []

    class Seen(StagedQuestions):
        def batch(self, stage, *arguments):
            fewest_facts.append(self.task_of(stage).fewest_facts)
            return super().batch(stage, *arguments)

    recipe = settings.plan()
    data = Seen(recipe, settings.segment, question_task(recipe.data.task))
    assert data.task.fewest_facts == 4
    monkeypatch.setattr(module, "right_answers", lambda model, batch: torch.ones(2))
    module._measure(torch.nn.Identity(), data, settings, 4)
    assert fewest_facts == [None]


def test_the_models_are_of_about_one_size():
    sizes = {}
    for name in NAMES:
        section = CPU.run(name, "qa1", 0).configuration.recipe["model"]
        sizes[name] = count_parameters(model_config(section, vocab_size=CPU.vocab_size, max_positions=1024))
    bases = [sizes[name] for name in ("armt_mosaic", "armt", "armt_mosaic_v2")]
    assert max(bases) < 1.04 * min(bases), sizes
    assert max(sizes.values()) < 2.4 * min(sizes.values()), sizes


def test_tests_reach_a_million_tokens_but_for_models_that_read_the_whole_text():
    for name in NAMES:
        settings = CPU.run(name, "qa1", 0).configuration
        longest = max(settings.measured) * settings.segment
        assert (longest == 1_000_000) == (name not in WHOLE_TEXT)
        assert settings.contexts(2) == 128
        assert settings.contexts(15_625) == (16 if name in (GATED, THRESHOLD) else 4)


def test_all_models_are_tested_on_the_same_texts_however_many_they_read_at_once(monkeypatch):
    monkeypatch.setattr(module, "WHOLE_AT_ONCE", 2 * 3 * 128)  # three texts of 128 tokens with two questions
    seen = {}
    for name in ("armt_mosaic", "mosaic"):
        settings = replace(BUDGETS["smoke"].run(name, "qa1", 0).configuration, test_tokens=1024, test_contexts=8)
        recipe, parts = settings.plan(), []

        def answered(model, batch, parts=parts):
            parts.append(batch)
            return torch.ones(len(batch.contexts), dtype=torch.float64)

        monkeypatch.setattr(module, "right_answers", answered)
        data = StagedQuestions(recipe, settings.segment, question_task(recipe.data.task))
        estimate, _ = module._measure(None, data, settings, 2)
        assert estimate == (1.0, 0.0, 8)
        seen[name] = parts
    assert [len(part.contexts) for part in seen["armt_mosaic"]] == [8]
    assert [len(part.contexts) for part in seen["mosaic"]] == [3, 3, 2]
    for name in ("contexts", "questions", "labels"):
        (whole,) = (getattr(part, name) for part in seen["armt_mosaic"])
        assert torch.equal(whole, torch.cat([getattr(part, name) for part in seen["mosaic"]]))


def test_the_last_segment_is_what_stands_behind_the_last_border():
    settings = BUDGETS["smoke"].run("last_segment", "qa1", 0).configuration
    recipe = settings.plan()
    task = question_task(recipe.data.task)
    all_segments, last_segment = (kind(recipe, settings.segment, task) for kind in (StagedQuestions, LastSegment))
    for tokens, expected in ((3 * 64, 64 - RESERVED), (2 * 64 + RESERVED, 64), (2 * 64 + RESERVED + 5, 5)):
        batch, cut = (one.batch(Stage(3, 1), 2, tokens, 0, "test") for one in (all_segments, last_segment))
        assert cut.contexts.shape[1] == expected
        assert torch.equal(cut.contexts, batch.contexts[:, -expected:])
        assert torch.equal(cut.questions, batch.questions)
