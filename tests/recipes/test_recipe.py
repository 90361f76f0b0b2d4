"""Recipes are found, read exactly, and described; everything wrong with one is said at once."""

from dataclasses import fields

import pytest
import yaml

from tessera.base.dataclass_io import MEANING
from tessera.base.errors import TesseraError
from tessera.data.tokenizers import TokenizerSpec
from tessera.models.registry import strict_configs
from tessera.recipes.recipe import read_recipe, recipe_help, recipe_to_dict
from tessera.recipes.recipe_files import SHIPPED, find_recipe
from tessera.recipes.sections import DataSection, Recipe, TrainingSection
from tests.refusals import refused

TRANSFORMER = {"type": "transformer", "hidden_size": 8, "num_heads": 2}
ARMT = {"type": "armt", "base": TRANSFORMER}
MINIMAL = {"model": {"type": "memory_mosaic", "hidden_size": 16, "num_layers": 1, "num_heads": 2}}


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe and read it."""

    def read(content, overrides=()):
        (tmp_path / "r.yaml").write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return read_recipe(tmp_path / "r.yaml", overrides)

    return read


def problems(recipe, content, overrides=()):
    with pytest.raises(TesseraError) as caught:
        recipe(content, overrides)
    return str(caught.value).splitlines()


def with_(**sections):
    return {**MINIMAL, **sections}


def test_values_defaults_and_name(recipe):
    actual = recipe(with_(seed=3, training={"learning_rate": "5e-3", "betas": [0.8, 0.9], "steps": 200}))
    assert (actual.name, actual.seed, actual.model) == ("r", 3, MINIMAL["model"])
    assert actual.training.learning_rate == 5e-3
    assert actual.training.betas == (0.8, 0.9)
    assert actual.data == Recipe("x", {}).data


def test_overrides_reach_every_depth(recipe):
    actual = recipe(
        MINIMAL, ["training.steps=300", "model.kernel={name: knn, k: 3}", "data.source=[a.txt, b.txt]", "seed=2"]
    )
    assert actual.training.steps == 300
    assert actual.model["kernel"] == {"name": "knn", "k": 3}
    assert actual.data.source == ["a.txt", "b.txt"]
    assert actual.seed == 2


@pytest.mark.parametrize("order", [1, -1])
def test_another_kind_on_the_command_line_keeps_of_the_file_section_the_sizes_alone(recipe, order):
    mosaic = {**MINIMAL["model"], "num_persistent_slots": 8, "kernel": {"name": "knn", "base": "gaussian", "k": 3}}
    content = {"model": mosaic, "tokenizer": {"type": "bpe", "vocab_size": 300}}
    actual = recipe(content, ["model.type=transformer", "model.num_layers=3", "tokenizer.type=byte"][::order])
    assert actual.model == {"type": "transformer", "hidden_size": 16, "num_layers": 3, "num_heads": 2}
    assert (actual.tokenizer.type, actual.tokenizer.vocab_size) == ("byte", None)
    of_task = [
        "data.task={name: babilong, qa: 1}",
        "data.task.name=passwords",
        "training.curriculum=[{length: 1, steps: 1}]",
    ]
    assert recipe(MINIMAL, of_task[::order]).data.task == {"name": "passwords"}
    assert recipe(content, ["model.kernel.name=relumax"]).model == mosaic | {"kernel": {"name": "relumax"}}
    armt = {"model": {"type": "armt", "base": TRANSFORMER, "segment_size": 16}}
    sizes = {key: TRANSFORMER[key] for key in ("hidden_size", "num_heads")}
    assert recipe(armt, ["model.base.type=memory_mosaic"]).model["base"] == {"type": "memory_mosaic"} | sizes
    gpt2 = {"type": "gpt2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    assert recipe(content, ["model.type=gpt2"][::order]).model == gpt2
    assert recipe({"model": gpt2}, ["model.type=lstm"]).model == {"type": "lstm", "hidden_size": 16, "num_layers": 1}
    assert recipe(content, ["model.type=mosaic-v2-small"]).model == {"type": "mosaic-v2-small"}  # a size of its own
    assert recipe(armt, ["model.type=armt", "model.base.type=transformer"]).model == armt["model"]  # none is another
    assert recipe(armt, ["model.segment_size=8", "model={type: rmt, base: {type: gpt2}}"][::order]).model == {
        "type": "rmt",
        "base": {"type": "gpt2"},
        "segment_size": 8,
    }
    four_layers = ["model.type=gpt2", "model.num_hidden_layers=4"]  # not the file's one, by the name of another type
    assert recipe(content, four_layers[::order]).model == gpt2 | {"num_hidden_layers": 4}
    gpt2_of_base = {"type": "gpt2", "hidden_size": 8, "num_attention_heads": 2}
    assert recipe(armt, ["model.base.type=gpt2"]).model["base"] == gpt2_of_base
    own_names = {"type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_inner": 40}
    llama = gpt2 | {"type": "llama", "intermediate_size": 40}
    assert recipe({"model": own_names}, ["model.type=llama"]).model == llama
    assert recipe({"model": llama}, ["model.type=qwen2"]).model == llama | {"type": "qwen2"}
    unset = {"type": "transformer", "hidden_size": 8, "num_heads": 2, "intermediate_size": None}
    assert "intermediate_size" not in recipe({"model": unset}, ["model.type=llama"]).model
    dropout = recipe(content, ["model.type=transformer", "model.dropout=0.5"][::order]).model["dropout"]
    assert dropout == 0.5  # meant for the new type, also where it is written first
    of_kernel = ["model.kernel={base: gaussian, k: 4}", "model.kernel.name=knn"]
    assert recipe(MINIMAL, of_kernel).model["kernel"] == {"name": "knn", "base": "gaussian", "k": 4}
    assert recipe({"name": "one", **MINIMAL}, ["name=two"]).model == MINIMAL["model"]
    (line,) = problems(recipe, content, ["model.type=transfomer"])
    assert line.startswith("command line: model.type must be a known model type: got 'transfomer'")
    (line,) = problems(recipe, content, ["model.type=armt"])
    assert line.startswith("command line: model.base must be a model section")
    for kind in ("null", "5", "[1]", "{a: 1}"):
        (line,) = problems(recipe, content, [f"model.type={kind}"])
        assert line.startswith("command line: model")
    (line,) = problems(recipe, content, ["model.kernel.base={name: knn}", "model.kernel.base.name=relumax"])
    assert line.startswith("command line: model.kernel: kernel 'knn': base must be one of")
    (line,) = problems(recipe, armt, ["model.type=transformer", "model.segment_size=8"])
    assert line.startswith("command line: model.segment_size is not a known key")


def test_a_recipe_survives_being_written(recipe):
    actual = recipe(with_(training={"betas": [0.8, 0.9]}, tokenizer={"type": "bpe", "vocab_size": 300}))
    assert recipe(yaml.safe_dump(recipe_to_dict(actual))) == actual


def test_all_problems_come_in_one_message_each_with_file_and_key(recipe, tmp_path):
    model, training = {**MINIMAL["model"], "num_heads": 3, "num_layerz": 2}, {"steps": "many", "learning_rat": 1.0}
    lines = problems(recipe, {"model": model, "data": {"context": 1}, "training": training, "sed": 1})
    keys = ["sed", "data.context", "training.learning_rat", "training.steps", "model.num_layerz", "model.num_heads"]
    assert len(lines) == len(keys)
    for key in keys:
        (line,) = [line for line in lines if line.startswith(f"{tmp_path / 'r.yaml'}: {key} ")]
        assert "got" in line


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("training", {"learning_rat": 1}, "Did you mean 'learning_rate'?"),
        ("training", {"steps": 2.5}, "training.steps must be an integer; got 2.5."),
        ("training", {"steps": True}, "training.steps must be an integer; got True."),
        ("training", {"compile": "yes please"}, "training.compile must be true or false; got 'yes please'."),
        ("training", {"learning_rate": "fast"}, "training.learning_rate must be a number; got 'fast'."),
        ("training", {"learning_rate": True}, "training.learning_rate must be a number; got True."),
        ("training", {"betas": [0.9]}, "training.betas must be a list of 2 values; got [0.9]."),
        ("training", {"warmup_steps": -1}, "training.warmup_steps must not be negative; got -1."),
        ("training", {"batch_size": 8, "micro_batch_size": 3}, "training.micro_batch_size must divide batch_size (8)"),
        ("training", {"min_learning_rate": 1.0}, "training.min_learning_rate must lie in 0..learning_rate (0.001)"),
        ("training", {"precision": "fp16"}, "training.precision must be one of auto, bf16, fp32; got 'fp16'."),
        ("training", {"on_nonfinite": "pray"}, "training.on_nonfinite must be one of stop, skip"),
        ("training", {"checkpoint_every": 0}, "training.checkpoint_every must be a positive integer; got 0."),
        ("training", {"learning_rate": float("nan")}, "training.learning_rate must be a number; got nan."),
        ("training", {"trainer": {"tf32": True}}, "training.trainer is not a known key; got {'tf32': True}."),
        ("training", 3, "training must be a mapping; got 3. For example {steps: 100}."),
        ("tokenizer", "gpt2", "tokenizer must be a mapping; got 'gpt2'. For example {type: gpt2}."),
        ("data", {"task": "babilong"}, "must be a mapping or null; got 'babilong'. For example {name: babilong}."),
        ("data", {"source": 7}, "data.source must be text or a list of text; got 7."),
        ("data", {"validation_fraction": 1.0}, "data.validation_fraction must lie in (0, 1); got 1.0."),
        ("data", {"format": "csv"}, "data.format must be one of text, json_lines; got 'csv'."),
        ("data", {"early_questions": 2}, "data.early_questions must be left out without data.task; got 2."),
        ("data", {"format": "json_lines", "separator": "x"}, "data.separator must be left out for format json_lines"),
        ("tokenizer", {"type": "bytes"}, "tokenizer.type must be one of the known types; got 'bytes'. Did you mean"),
        ("model", {}, "model.type must name a model type"),
        ("model", {"type": "memory_mosac"}, "got 'memory_mosac'. Did you mean 'memory_mosaic'?"),
        ("model", {"type": "transformer", "positions": "sine"}, "model.positions must be one of absolute, rope, alibi"),
        (
            "model",
            {**TRANSFORMER, "positions": "rope", "hidden_size": 6},
            "model.hidden_size / num_heads must be even for rope; got 3",
        ),
        (
            "model",
            {**TRANSFORMER, "positions": "alibi", "intermediate_size": 9},
            "model.intermediate_size must be 4 hidden_size (32) for alibi; got 9",
        ),
        ("model", {**TRANSFORMER, "hidden_size": 9}, "model.num_heads must divide hidden_size (9)"),
        ("model", {"type": "transformer", "kernel": "knn"}, "model.kernel is not a known key; got 'knn'."),
        ("model", {**ARMT, "memory_dim": 0}, "model.memory_dim must be a positive integer; got 0."),
        ("model", {**ARMT, "type": "rmt", "segment_size": 0}, "model.segment_size must be a positive integer; got 0."),
        ("model", {**ARMT, "base": {"type": "gpt2", "n_embd": 10, "n_head": 4}}, "model must be one that armt accepts"),
        ("model", {"type": "linear_attention", "variant": "x"}, "model.variant must be one of "),
        ("model", {"type": "retnet", "num_heads": 0}, "model.num_heads must be a positive integer; got 0."),
        ("model", {"type": "lstm", "hidden_size": 0}, "model.hidden_size must be a positive integer; got 0."),
        ("model", {"type": "prtm"}, "Did you mean 'prmt'? Known: memory_mosaic, memory_mosaic_v2, linear_att"),
        ("model", {"type": "gpt2", "n_embd": 10, "n_head": 4}, "model must be one that gpt2 accepts"),
        ("model", {"type": "gpt2", "n_embd": "wide"}, "model must be one that gpt2 accepts"),
    ],
)
def test_one_problem_one_line(recipe, section, values, message):
    (line,) = problems(recipe, with_(**{section: values}))
    assert message in line


def test_a_key_below_a_null_can_be_given(recipe):
    """A run's own recipe.yaml has every key, most of them null."""
    stages = "training.curriculum=[{length: 1, steps: 1}]"
    asked = recipe(with_(data={"task": None}, training=None), ["data.task.name=babilong", stages])
    assert asked.data.task == {"name": "babilong"}


def test_problems_of_overrides_name_the_command_line(recipe):
    lines = problems(recipe, MINIMAL, ["training.step=3", "model.num_heads=5", "nonsense", "seed.x=1"])
    assert all(line.startswith("command line: ") for line in lines)
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- a\n- b", "must be a mapping"),
        ("a: [", "recipe must be YAML"),
        ("Once upon a time " * 1000, "must be a mapping"),  # a text file
    ],
)
def test_files_that_are_no_recipes(recipe, content, message):
    (line,) = problems(recipe, content)
    assert message in line
    assert len(line) < 500


def test_a_recipe_may_extend_another(recipe, tmp_path):
    kernel = {"name": "knn", "base": "gaussian", "k": 3}
    base = with_(
        seed=3, name="base", training={"steps": 200, "clip": 2.0}, tokenizer={"type": "bpe", "vocab_size": 300}
    )
    base["model"] = {**base["model"], "kernel": kernel}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    extended = recipe({"extends": "base", "model": {"num_layers": 2, "kernel": {"k": 4}}, "training": {"steps": 300}})
    assert (extended.name, extended.seed) == ("r", 3)
    assert extended.model == {**MINIMAL["model"], "num_layers": 2, "kernel": {**kernel, "k": 4}}
    assert (extended.training.steps, extended.training.clip) == (300, 2.0)
    # A section of another kind keeps nothing of the base's.
    other = recipe({"extends": "base", "model": {"kernel": {"name": "relumax"}}, "tokenizer": {"type": "byte"}})
    assert other.model["kernel"] == {"name": "relumax"}
    assert other.tokenizer.type == "byte"
    assert recipe({"extends": "base", "model": {"type": "transformer"}}).model == {"type": "transformer"}
    assert recipe({"extends": "tiny"}, ["training.steps=7"]).training.steps == 7  # a shipped one


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"extends": "r"}, "extends must not lead back to a recipe that extends this one; got 'r'"),
        ({"extends": "circle"}, "extends must not lead back to a recipe that extends this one; got 'r'"),
        ({"extends": ["tiny"]}, r"extends must name a recipe; got \['tiny'\]"),
        ({"extends": "tinny"}, "no such file. Did you mean 'tiny'"),
    ],
)
def test_a_base_that_cannot_be(recipe, tmp_path, content, message):
    (tmp_path / "circle.yaml").write_text("extends: r")
    refused(message, recipe, content)


@pytest.mark.parametrize("name", ["tiny", "recipes/tiny.yaml"])
def test_a_shipped_recipe_is_found_from_anywhere_behind_one_of_its_name_here(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name) == SHIPPED / "tiny.yaml"
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.yaml").touch()
    assert find_recipe(name).resolve() == tmp_path / "recipes" / "tiny.yaml"


@pytest.mark.parametrize(
    "name", ["mine/tiny.yaml", "recipes/mine/tiny.yaml", "tiny.yaml", "recipes/tiny.yml", "recipes"]
)
def test_another_path_never_becomes_a_shipped_recipe(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("no such file", find_recipe, name)


def test_the_help_names_every_key_with_type_default_and_meaning():
    text = recipe_help()
    for prefix, section in (("data.", DataSection), ("tokenizer.", TokenizerSpec), ("training.", TrainingSection)):
        for item in fields(section):
            assert f"  {prefix}{item.name}: " in text
            assert len(item.metadata.get(MEANING, "")) > 5, item.name
            assert item.metadata[MEANING][:20] in text
    assert all(len(item.metadata.get(MEANING, "")) > 5 for item in fields(Recipe))
    assert "  training.betas: a list of 2 values; default [0.9, 0.95]" in text
    for config in strict_configs():
        assert f"model: {{type: {config.model_type}, ...}}" in text
    assert "  model.num_persistent_slots: an integer; default 2688" in text
    assert "  extends: text; default none\n" in text
    assert text.count("  model.base: a mapping or text; required\n") == 3  # ARMT, RMT, PRMT
    assert "base_config: " not in text.replace("        base_config: ", "")
    assert all(f" {positions} " in text for positions in ("absolute", "rope", "alibi"))


def test_rules_of_the_whole_recipe_have_a_line_each(recipe):
    given = {"name": "a/b", "seed": -1, "model": {"num_layers": 2}, "tokenizer": {"type": "gpt2"}}
    given["data"] = {"task": {"name": "babilong"}}
    lines = problems(recipe, given)
    for key in ("name", "seed", "model.type", "training.curriculum", "tokenizer"):
        assert sum(f": {key} must " in line for line in lines) == 1, key
