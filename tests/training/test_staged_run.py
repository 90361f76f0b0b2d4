"""Recipes with a curriculum: questions and text, stages handed on, resumed inside any stage, what is refused."""

import json
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tessera.base.checkpoints import FOLDER, verify
from tessera.base.errors import TrainingInterrupted
from tessera.evaluation.loss import evaluate_text
from tessera.memory_files.certainty import Certainty
from tessera.models.recurrence import SegmentedForCausalLM
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recipes.recipe import read_recipe
from tessera.training import run as run_module
from tessera.training import staged_data
from tessera.training.run import Interruption, train
from tessera.training.run_data import evaluation_text
from tessera.training.run_log import MetricsFile
from tests.covering import some
from tests.refusals import refused
from tests.training.processes import metrics, same_weights

pytestmark = pytest.mark.usefixtures("short_books")

BASE = {"type": "memory_mosaic", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 8}
STRETCH = "model.strength_stretch=0.1"
QUESTIONS = {
    "model": {"type": "armt", "segment_size": 32, "num_memory_tokens": 2, "memory_dim": 4, "base": BASE},
    "data": {"task": {"name": "babilong", "kind": "qa1", "vocab_size": 250, "facts_share": 0.6}, "questions": 2},
    "training": {
        "batch_size": 2,
        "evaluate_every": 3,
        "evaluate_sequences": 3,
        "checkpoint_every": 2,
        "precision": "fp32",
        "curriculum": [
            {"length": 2, "min_length": 2, "steps": 4, "learning_rate": 5e-3},
            {"length": 3, "min_length": 2, "steps": 5},
        ],
    },
}


LOSSES = staged_data.StagedQuestions.losses


def stage(more):
    return f"training.curriculum=[{{length: 2, min_length: 2, steps: 1, {more}}}]"


def prediction_loss(data, model, stage, number, step):
    """Without what the model charges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staged_data, "recorded_penalties", lambda model: nullcontext([]))
        return sum(LOSSES(data, model, stage, number, step))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, short_books):
    """The folder and the summary of a run on questions that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "staged.yaml").write_text(yaml.safe_dump(QUESTIONS))
    return folder / "run", train(read_recipe(folder / "staged.yaml"), folder / "run", progress=False)


def test_a_run_on_questions(whole, recipe_of, monkeypatch):
    run, summary = whole
    assert summary.steps == 9
    assert 0 <= summary.validation_exact_match <= 1
    assert summary.validation_bits_per_byte is None
    recipe, read = recipe_of(QUESTIONS), []
    data = staged_data.StagedQuestions(recipe, 32, staged_data.question_task(recipe.data.task))
    with monkeypatch.context() as patch:
        patch.setattr(staged_data, "count_answers", lambda model, batch: torch.ones(()))
        patch.setattr(staged_data, "answer_loss", lambda model, batch: read.append(batch.contexts.numel()) or [1.0])
        for number, stage in enumerate(recipe.training.curriculum):
            for step in range(stage.steps):
                list(data.losses(torch.nn.Identity(), stage, number, step))
    assert summary.tokens == sum(read)  # whole segments were counted
    assert 4 * 2 * 32 + 5 * 2 * 32 < summary.tokens < 4 * 2 * 64 + 5 * 2 * 96
    records = MetricsFile(run / "metrics.jsonl").read()
    assert [r["tokens"] for r in records if "tokens" in r][-1] == summary.tokens
    validations = [(r["step"], r["stage"], r["length"]) for r in records if "validation_exact_match" in r]
    assert validations == [(3, 1, 2), (4, 1, 2), (7, 2, 3), (9, 2, 3)]
    assert json.loads((run / "run.json").read_text())["result"]["validation_loss"] == summary.validation_loss
    tokenizer, model = AutoTokenizer.from_pretrained(run), AutoModelForCausalLM.from_pretrained(run)
    tokens = tokenizer("Mary went to the kitchen. Where is Mary?", return_tensors="pt").input_ids
    assert tokenizer.decode(tokens[0, -2:]).split() == ["mary", "?"]
    assert model(input_ids=tokens).logits.shape[-1] == len(tokenizer)


def test_segments_end_at_sentences_once_a_model_is_trained(whole, recipe_of, tmp_path, monkeypatch):
    """Not while it is: early questions are asked behind segments of one length."""
    measured_with = []

    def measured(model, *others):
        measured_with.append(model.config.segment_end_ids)

    monkeypatch.setattr(staged_data, "measured", measured)
    train(recipe_of(QUESTIONS, "data.task.sentence_ends=. ?"), tmp_path / "ends", progress=False)
    tokenizer, model = AutoTokenizer.from_pretrained(tmp_path / "ends"), load_model(tmp_path / "ends")
    ends = tokenizer.convert_tokens_to_ids([".", "?"])
    assert model.config.segment_end_ids == ends
    assert measured_with == [ends]
    same_weights(tmp_path / "ends", whole[0])
    assert load_model(whole[0]).config.segment_end_ids is None


def test_only_models_of_segments_end_them_at_sentences(recipe_of, tmp_path):
    recipe = recipe_of({**QUESTIONS, "model": BASE}, "data.task.sentence_ends=.")
    message = "data.task.sentence_ends: segment_end_ids must be a setting that a built memory_mosaic can change; got "
    refused(message, train, recipe, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_validation_counts_each_context_once(recipe_of, monkeypatch):
    """Also in a last batch of fewer; a share over questions would end stages elsewhere than the stored results did."""
    recipe = recipe_of(QUESTIONS, "data.questions=4", "training.evaluate_sequences=9", "data.task.facts_share=0.4")
    data = staged_data.StagedQuestions(recipe, 32, staged_data.question_task(recipe.data.task))
    batches = []

    def scored(model, batch):
        batches.append(batch)
        tokens = (batch.labels >= 0).sum()
        return tokens * len(batches), tokens, (batch.counts.sum(1) == 3).double()

    monkeypatch.setattr(staged_data, "score_answers", scored)
    numbers = data.predictions(None, recipe.training.curriculum[0])
    counts = torch.cat([batch.counts.sum(1) for batch in batches]).double()
    right = counts == 3
    assert [len(batch.contexts) for batch in batches] == [2, 2, 2, 2, 1]
    assert numbers["validation_exact_match"] == right.double().mean()
    assert abs(right.double().mean() - (right * counts).sum() / counts.sum()) > 0.01, "both means are the same here"
    assert numbers["validation_loss"] == pytest.approx((2 * (1 + 2 + 3 + 4) + 5) / 9)


def test_certainty_is_measured_in_micro_batches(whole, recipe_of, monkeypatch):
    """32 rows were read at once, behind trainings that had memory for one."""
    monkeypatch.setattr("tessera.memory_files.certainty.CONTEXTS", 32)
    model, measured = load_model(whole[0]), []
    rows: list[int] = []
    model.register_forward_pre_hook(lambda _, __, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True)
    for micro in (1, 3, 6):
        recipe = recipe_of(QUESTIONS, "training.batch_size=6", f"training.micro_batch_size={micro}")
        staged_data.StagedQuestions(recipe, 32, staged_data.question_task(recipe.data.task)).finish(model)
        assert max(rows) == 4 * micro  # four questions about each context
        measured.append(Certainty.of(model))
        rows.clear()
    assert measured[0].questions == measured[1].questions == measured[2].questions
    for other in measured[1:]:
        assert other.weights == pytest.approx(measured[0].weights, rel=1e-3)
        assert other.told == measured[0].told


def test_validations_that_end_stages_stay_where_they_are(whole, recipe_of):
    """They choose the weights that the next stage begins with: the run would end with others."""
    recipe = recipe_of(QUESTIONS, "training.evaluate_every=1")
    refused("training.evaluate_every is 3 there and 1 here", train, recipe, whole[0], resume=True)


@some(("stage", "step"), [(0, 3), (1, 0), (1, 4)], by_default=[(1, 4)])
def test_a_run_that_dies_in_any_stage_goes_on_to_the_same_weights(recipe_of, tmp_path, whole, monkeypatch, stage, step):
    recipe = recipe_of(QUESTIONS)

    def dying(self, model, of_stage, number, at):
        if (number, at) == (stage, step):
            raise RuntimeError("killed")
        return LOSSES(self, model, of_stage, number, at)

    monkeypatch.setattr(staged_data.StagedQuestions, "losses", dying)
    with pytest.raises(RuntimeError, match="killed"):
        train(recipe, tmp_path / "killed", progress=False)
    monkeypatch.undo()
    train(recipe, tmp_path / "killed", resume=True, progress=False)
    same_weights(tmp_path / "killed", whole[0])
    for name in ("step", "validation_loss"):
        assert metrics(tmp_path / "killed", name) == metrics(whole[0], name)


def test_a_stop_inside_a_stage_names_the_run_and_the_step(recipe_of, tmp_path, monkeypatch):
    class Requested(Interruption):
        def __init__(self):
            super().__init__()
            self.is_requested = True  # as a Ctrl-C during the first step does

    monkeypatch.setattr(run_module, "Interruption", Requested)
    with pytest.raises(TrainingInterrupted, match=r"run: stage 1: stopped after step 1 of 4; a checkpoint holds it\.$"):
        train(recipe_of(QUESTIONS), tmp_path / "run", progress=False)
    assert verify(tmp_path / "run" / FOLDER / "checkpoint-1") is None


def test_a_curriculum_on_text_around_a_frozen_base(recipe_of, tmp_path, recipe_file):
    train(read_recipe(recipe_file, ["training.steps=2"]), tmp_path / "base", progress=False)
    text = {
        "model": {"type": "rmt", "segment_size": 8, "num_memory_tokens": 2, "base": str(tmp_path / "base")},
        "data": {"source": str(tmp_path / "text.txt"), "context": 16, "validation_fraction": 0.2},
        "tokenizer": {"type": "byte"},
        "training": {
            "batch_size": 2,
            "evaluate_sequences": 2,
            "precision": "fp32",
            "freeze_base": True,
            "curriculum": [{"length": 1, "steps": 2}, {"length": 4, "min_length": 2, "steps": 2}],
        },
    }
    summary = train(recipe_of(text), tmp_path / "run", progress=False)
    assert summary.validation_bits_per_byte == pytest.approx(summary.validation_loss / 0.6931, rel=0.02)
    model, tokenizer = load_model(tmp_path / "run"), load_tokenizer(tmp_path / "run")
    measured = evaluate_text(model, tokenizer, evaluation_text(tmp_path / "run"), sequences=2)
    assert measured["context"] == 32, "other texts than those of the last stage"
    assert measured["loss"] == pytest.approx(summary.validation_loss)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("base", "run"))
    kept = {name: tensor for name, tensor in after.items() if name.startswith("base.")}
    assert len(kept) >= len(before)
    plain = {name.replace("layers.0.layer.", "layers.0."): tensor for name, tensor in kept.items()}
    assert all(torch.equal(tensor, plain[f"base.{name}"]) for name, tensor in before.items())
    torch.manual_seed(0)
    of_one_step = recipe_of(text, "training.curriculum=[{length: 1, steps: 1, learning_rate: 1e-12}]")
    untrained = train(of_one_step, tmp_path / "0", progress=False)
    fresh = load_file(f"{untrained.folder}/model.safetensors")
    assert any(not torch.allclose(tensor, fresh[name]) for name, tensor in after.items() if name not in kept)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.curriculum=[]", "training.curriculum must name the stages of a task's training"),
        ("training.curriculum=[{length: 1, steps: 0}]", r"training.curriculum\[0\].steps must be at least 1"),
        ("training.curriculum=[{length: 0, steps: 3}]", r"training.curriculum\[0\].length must be at least 1; got 0"),
        ("training.curriculum=[{length: 2, min_length: 3, steps: 3}]", r"min_length must be at most length \(2\)"),
        (stage("target: 0"), "target must be positive; got 0"),
        ("training.steps=7", "training.steps must be left out beside a curriculum; got 7"),
        ("training.shard=true", "training.shard must be false with data.task; got true"),
        ("data.task.name=three_moons", "must be a task of questions; got 'three_moons'. Known: babilong"),
        ("data.task.kin=qa1", "data.task.kin is not a known key; got 'qa1'. Did you mean 'kind'"),
        ("data.task.kind=qa9", "kind must be one of qa1"),
        ("data.task.facts_share=0.1", "length must be at least 120 tokens; got 52"),
        ("tokenizer={type: gpt2}", "tokenizer must be left out with data.task"),
        ("data.source=my.txt", "data.source must be left out beside data.task; got 'my.txt'"),
        ("data.document_ids=true", "data.document_ids must be left out beside data.task; got True"),
        ("data.questions=0", "data.questions must be a positive integer"),
        ("data.early_questions=-1", "data.early_questions must not be negative"),
        ("model.gate_penalty=0.5", "gate_penalty must be 0 without a strength_stretch above 0"),
        ("training.patience=0", "training.patience must be a positive integer"),
        (stage("settings: {facts_share: 0.21}"), "length must be at least 58 tokens; got 52"),
        (stage("settings: {early: 2}"), "training.curriculum: settings.early is not a known key; got 2"),
        (stage("settings: {kind: [qa1]}"), "training.curriculum: settings.kind must be"),
        (stage("settings: {name: three_moons}"), "settings.name must be a task of questions; got 'three_moons'"),
        (stage("settings: {vocab_size: 300}"), "stage must leave the vocabulary as it is; got vocab_size"),
        (
            stage("model: {strength_threshold: 1.0}"),
            r"curriculum\[0\].model: strength_threshold must be a number of at least 0 and below 1; got 1.0",
        ),
        (stage("model: {backprop_segments: 0}"), r"\[0\].model: backprop_segments must be a positive integer; got 0"),
        (
            stage("model: {gate_penalty: 0.5}"),
            "gate_penalty must be 0 without a strength_stretch above 0, by which gates can close; got 0.5",
        ),
        (
            stage("model: {gate_penality: 0.5}"),
            "gate_penality must be a setting that a built armt can change; got 0.5. Did you mean 'gate_penalty'. "
            "Known: backprop_segments, gate_penalty, segment_end_ids, segment_end_window, strength_threshold",
        ),
        (stage("settings: {sentence_ends: quark}"), "data.task: sentence_ends must be tokens of the task; got 'quark'"),
        ("data.task.sentence_ends=. quark", "data.task: sentence_ends must be tokens of the task; got 'quark'"),
        (stage("write_cost: 0.5"), r"training.curriculum\[0\].write_cost is not a known key; got 0.5"),
    ],
)
def test_refusals(recipe_of, tmp_path, override, message):
    refused(message, lambda: train(recipe_of(QUESTIONS, override), tmp_path / "run", progress=False))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.segment_end_ids=[1]", "model"),
        (stage("model: {segment_end_ids: [1]}"), r"training.curriculum\[0\].model"),
    ],
)
def test_questions_after_every_segment_need_segments_of_one_length(recipe_of, override, key):
    recipe_of(QUESTIONS, override)
    needed = rf"{key}.segment_end_ids must be left out beside data.early_questions.*; got \[1\]"
    refused(needed, recipe_of, QUESTIONS, override, "data.early_questions=2")


def test_stages_from_memory_end_with_a_segment(recipe_of, tmp_path, monkeypatch):
    lengths = []

    def seen(original):
        def noted(model, batch, *options):
            lengths.append(batch.contexts.shape[1])
            return original(model, batch, *options)

        return noted

    for name in ("answer_loss", "score_answers"):
        monkeypatch.setattr(staged_data, name, seen(getattr(staged_data, name)))
    stages = "{length: 2, steps: 2}, {length: 2, min_length: 2, steps: 2, settings: {from_memory: true}}"
    train(recipe_of(QUESTIONS, f"training.curriculum=[{stages}]"), tmp_path / "run", progress=False)
    assert set(lengths[-3:]) == {64}  # a step, and a validation of two batches
    assert 64 - 20 in lengths


def test_a_book_that_changed_is_noticed_on_resume(recipe_of, tmp_path):
    """Also where none of the samples that are compared is of its last pages."""
    noise = tmp_path / "noise"
    noise.mkdir()
    for name in ("a", "b", "c", "d"):
        (noise / f"{name}.txt").write_text(f"The book {name} is read by nobody who lives in this house. " * 400)
    task = {**QUESTIONS["data"]["task"], "noise": str(noise)}
    recipe = recipe_of({**QUESTIONS, "data": {**QUESTIONS["data"], "task": task}}, stage("settings: {}"))
    train(recipe, tmp_path / "run", progress=False)
    with (noise / "a.txt").open("a") as file:
        file.write("The end of the book is another one now.")
    changed = partial(train, recipe, tmp_path / "run", resume=True, progress=False)
    refused("the training text must be the one the run began with", changed)


def test_settings_of_the_task_are_refused_of_text(recipe_of, tmp_path):
    plain = {**QUESTIONS, "data": {"source": "novels"}, "tokenizer": {"type": "byte"}}
    of_text = stage("settings: {facts_share: 0.3}")
    refused("settings is of questions", lambda: train(recipe_of(plain, of_text), tmp_path / "run"))


def test_a_stage_ends_halfway_down_a_linear_schedule(recipe_of, tmp_path):
    run = tmp_path / "run"
    stages = "training.curriculum=[{length: 2, min_length: 2, steps: 10, learning_rate: 0.01}]"
    train(recipe_of(QUESTIONS, stages, "training.evaluate_every=10"), run, progress=False)
    assert metrics(run, "learning_rate")[-1] == pytest.approx(0.01 * (1 - (9 - 1) / (20 - 1)), rel=0.02)


TEXT = {"data": {"source": "novels"}, "tokenizer": {"type": "byte"}}
TWO_STEPS_EACH = (
    "training.curriculum=[{length: 2, min_length: 2, steps: 2, learning_rate: 5e-3}, {length: 3, steps: 2}]",
    "training.evaluate_every=1",
    "training.log_every=1",
)


@some("section", [{}, TEXT], by_default=[{}], ids=["questions", "text"])
def test_accumulation_in_stages_changes_rounding_only(recipe_of, tmp_path, section, monkeypatch):
    """And no forward pass reads more rows than `micro_batch_size`, of training or validation."""
    rows, forward = [], SegmentedForCausalLM.forward

    def counted(self, input_ids=None, **options):
        rows.append(len(input_ids))
        return forward(self, input_ids, **options)

    monkeypatch.setattr(SegmentedForCausalLM, "forward", counted)
    monkeypatch.setattr(staged_data, "measured", lambda *_: None)  # how sure its answers are, behind the training
    for size in ("null", "1"):
        options = (STRETCH, "model.gate_penalty=0.5", "data.early_questions=1") if not section else ()
        recipe = recipe_of({**QUESTIONS, **section}, f"training.micro_batch_size={size}", *options, *TWO_STEPS_EACH)
        rows.clear()
        train(recipe, tmp_path / size, progress=False)
    for name in ("loss", "validation_loss", "gradient_norm"):
        whole, parts = (metrics(tmp_path / size, name) for size in ("null", "1"))
        assert parts == pytest.approx(whole, rel=1e-4), name
        assert len(whole) >= 4
    assert parts != whole, "nothing was accumulated"
    assert max(rows) == (2 if not section else 1)  # two questions about a context are read at once


def test_stages_take_the_options_of_plain_runs(recipe_of, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)

    def broken(self, model, stage, number, step):
        for loss in LOSSES(self, model, stage, number, step):
            yield loss * torch.nan if (number, step) == (1, 0) else loss

    monkeypatch.setattr(staged_data.StagedQuestions, "losses", broken)
    options = ("gradient_checkpointing=true", "keep_checkpoints=1", "report_to=[tensorboard]", "on_nonfinite=skip")
    scales = "training.scalar_learning_rate_scales={mix: 2.0}"
    recipe = recipe_of(QUESTIONS, scales, *(f"training.{option}" for option in options), TWO_STEPS_EACH[0])
    assert train(recipe, tmp_path / "run", progress=False).skipped_steps == 1
    assert [path.name for path in (tmp_path / "run" / FOLDER).iterdir()] == ["checkpoint-4"]
    assert list((tmp_path / "run" / "tensorboard").iterdir())
