"""`--overwrite` replaces runs of ours only, when nothing can be refused any more, and a kill leaves one of the two."""

import json
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
import yaml

from tessera.base.errors import TesseraError
from tessera.models.saving.loading import load_model
from tessera.recipes.recipe import read_recipe
from tessera.training.folder import move_aside, recover
from tessera.training.run import train
from tests.refusals import refused, refused_in_a_line
from tests.reliability.faults import count_operations, in_child, kill_at

REPLACED = "replaced-run"


@pytest.fixture
def go(go):
    return partial(go, "training.steps=2")


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SIZES = "hidden_size: 16, num_heads: 2, num_layers: 1"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("data.source=nowhere.txt", "'nowhere.txt': no such text file"),
        ("data.context=100000", "the training text must hold at least one context of 100000 tokens; got"),
        ("data.context=900", "the validation text must hold at least one context of 900"),
        ("data.split=test", "data: split must be left out for"),
        ("data.validation_split=test", "data: validation_split must be left out for"),
        ("model.vocab_size=200", "model.vocab_size must be at least the tokenizer's"),
        ("model={type: gpt2, n_embd: 16, n_head: 2, n_layer: 1, n_positions: 8}", "at least data.context (16); got 8"),
        ("training.initialize_from=nowhere", "nowhere: no such folder"),
        ("training.initialize_from=RUN", "training.initialize_from must lie outside the run"),
        ("tokenizer={type: pretrained, path: RUN}", "tokenizer.path must lie outside the run"),
        ("tokenizer={type: pretrained, path: no/such/model}", "'no/such/model', which does not exist"),
        (f"model={{type: transformer, {SIZES}}} data.document_ids=true", "must be false for model type transformer"),
        ("model={type: lstm, hidden_size: 16} training.gradient_checkpointing=true", "be false for model type lstm"),
        ("training.scalar_learning_rate_scales={foo: 1.0}", "'foo' must name a scalar of this model"),
    ],
)
def test_a_refused_command_names_the_culprit_and_deletes_nothing(go, run_folder, tmp_path, overrides, message):
    shutil.copytree(run_folder, tmp_path / "run")
    before = contents(tmp_path / "run")
    words = re.split(r" (?=data\.|training\.)", overrides.replace("RUN", str(tmp_path / "run")))
    refused_in_a_line(message, go, *words, overwrite=True)
    assert contents(tmp_path / "run") == before


def test_a_refused_new_run_leaves_nothing(go, tmp_path):
    before = sorted(tmp_path.iterdir())
    for override in ("data.source=/typo", "training.initialize_from=nowhere", "training.shards=true"):
        with pytest.raises(TesseraError):
            go(override, folder="a/b/run")
        assert sorted(tmp_path.iterdir()) == before
    go(folder="a/b/run")


@pytest.mark.parametrize("has_recipe", [True, False])
def test_a_persons_project_is_not_a_run(recipe_file, tmp_path, has_recipe):
    project = tmp_path / "project"
    project.mkdir()
    if has_recipe:
        (project / "recipe.yaml").write_text(recipe_file.read_text() + "seed: 0\n")
    (project / "thesis.tex").write_text("years of work")
    before = contents(project)
    for options in ({"overwrite": True}, {"resume": True}, {}):
        with pytest.raises(TesseraError, match="a folder with other files"):
            train(read_recipe(recipe_file, ["seed=0"]), project, progress=False, **options)
        assert contents(project) == before


def test_a_recipe_that_a_person_edited_is_not_replaced(go, tmp_path):
    go()
    path = tmp_path / "run" / "recipe.yaml"
    path.write_text("# the run of my thesis\n" + path.read_text())
    before = contents(tmp_path / "run")
    refused("a person has written or changed", go, overwrite=True)
    assert contents(tmp_path / "run") == before


def test_files_of_others_in_a_run_survive(go, tmp_path):
    go()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "plots").mkdir()
    go("training.learning_rate=0.5", overwrite=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "run" / "plots").is_dir()
    assert not (tmp_path / "run" / REPLACED).exists()
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())["training"]["learning_rate"] == 0.5


@pytest.mark.parametrize("name", ["../victim", "a/b", "..", "", "a\\b", "x" * 300])
def test_names_are_names_not_paths(recipe_file, name):
    refused("name must be a name, not a path", read_recipe, recipe_file, [f"name={json.dumps(name)}"])


def test_the_old_run_is_kept_until_the_new_one_has_a_checkpoint(go, tmp_path, change_losses):
    go()
    old = contents(tmp_path / "run")

    def killed(step, loss):
        raise KeyboardInterrupt  # as a kill: nothing in the library catches it

    mend = change_losses(killed)
    for _ in range(2):  # a second attempt must not take the first one's rest for the old run
        with pytest.raises(KeyboardInterrupt):
            go("seed=3", overwrite=True)
    mend()
    kept = contents(tmp_path / "run" / REPLACED)
    assert kept == {path: content for path, content in old.items() if path.name != "run.lock"}
    load_model(tmp_path / "run" / REPLACED)
    refused(r"another recipe; seed is 3 there and 0 here.*is kept in .*replaced-run", go, resume=True)
    go("seed=3", resume=True)
    assert not (tmp_path / "run" / REPLACED).exists()


def test_a_kill_at_any_file_operation_of_replacing_leaves_one_run(go, tmp_path):
    """The next command finds the old run or the new one."""
    go("training.steps=1", "training.warmup_steps=0")
    run, kept = tmp_path / "run", tmp_path / "kept"
    (run / "run.lock").unlink()
    old = contents(shutil.copytree(run, kept))

    def replace():
        move_aside(run)
        (run / "recipe.yaml").write_bytes(old[Path("recipe.yaml")])
        return 0

    operations = count_operations(replace, run)
    assert operations > 8
    assert contents(run / REPLACED).keys() == old.keys()
    for place in range(1, operations + 1):
        shutil.rmtree(run)
        shutil.copytree(kept, run)
        assert in_child(replace, kill_at(place, run)) == (-signal.SIGKILL, "")
        recover(run)
        assert contents(run) == old
