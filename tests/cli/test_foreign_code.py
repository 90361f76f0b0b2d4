"""A model folder that brings Python code along is refused in one line; the code is not run, and nobody is asked."""

import json
import shutil

import pytest

from tessera.models.saving.loading import load_model

CODE = """
from pathlib import Path
Path({proof!r}).write_text("foreign code ran")
from transformers import GPT2Config as Config, GPT2LMHeadModel as Model, PreTrainedTokenizerFast as Tokenizer
"""


@pytest.fixture
def infected(run_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(run_folder, folder)
    (folder / "foreign.py").write_text(CODE.format(proof=str(tmp_path / "proof")))
    return folder


def add(path, **entries):
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


MAPS = {
    "config": ("config.json", {"model_type": "foreign", "auto_map": {"AutoConfig": "foreign.Config"}}),
    "model": ("config.json", {"auto_map": {"AutoModelForCausalLM": "foreign.Model"}}),
    "nested": ("config.json", {"base_config": {"parts": [{"auto_map": {"AutoConfig": "foreign.Config"}}]}}),
    "tokenizer": ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": [None, "foreign.Tokenizer"]}}),
}
VERBS = {
    "generate": ["--prompt", "Once", "--max-new-tokens", "1"],
    "eval": ["--sequences", "1"],
    "memorize": ["{text}", "--out", "{new}"],
    "ask": ["Who?", "--memory", "{new}"],
    "prompts": ["--many-shot", "banking77", "--shots", "1"],
    "info": [],
}


@pytest.mark.parametrize("where", MAPS)
def test_every_verb_refuses_it(refused, infected, corpus, tmp_path, monkeypatch, where):
    name, entries = MAPS[where]
    add(infected / name, **entries)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    for verb, options in VERBS.items():
        if (verb, where) == ("info", "tokenizer"):  # reads no tokenizer
            continue
        words = [option.format(text=corpus, new=tmp_path / "new") for option in options]
        refused(f"code of its own (auto_map in {name}), which is never run", verb, infected, *words)
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_a_configuration_that_is_nested_deep_is_one_line(refused, infected, name):
    (infected / name).write_text("[" * 700 + "]" * 700)
    refused("cannot be loaded", "generate", infected, "--prompt", "Once")


@pytest.mark.parametrize("key", ["training.initialize_from={}", "tokenizer={{type: pretrained, path: {}}}"])
def test_recipes_refuse_it(refused, infected, corpus, tmp_path, key):
    add(infected / "config.json", **MAPS["model"][1])
    add(infected / "tokenizer_config.json", **MAPS["tokenizer"][1])
    run = tmp_path / "runs" / "new"
    refused("code of its own", "train", "tiny", f"data.source={corpus}", key.format(infected), "--output", run)
    assert not (tmp_path / "proof").exists()
    assert not run.exists()


def test_a_folder_that_this_library_saved_with_code_is_read(done, run_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(run_folder, folder)
    load_model(folder).save_pretrained(folder, with_code=True)
    (folder / "modeling_tessera.py").write_text("raise SystemExit('code was run')")
    once = ("--prompt", "Once", "--max-new-tokens", 1)
    assert done("generate", folder, *once) == done("generate", run_folder, *once)
