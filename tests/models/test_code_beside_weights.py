"""A folder saved with code loads in a process that never imports tessera, and only where its user trusts it."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import tessera

SIZES = {"vocab_size": 20, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 4}
LOAD = """
import sys, torch
from transformers import AutoModelForCausalLM
assert "tessera" not in sys.modules
for folder in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=sys.argv[1] == "trusted")
    print(type(model).__module__, float(model(torch.arange(6)[None]).logits.detach().double().sum()))
    model.save_pretrained(folder + "-again")
"""


def load_elsewhere(trust, *folders):
    return subprocess.run([sys.executable, "-c", LOAD, trust, *map(str, folders)], capture_output=True, text=True)


def mosaic():
    return tessera.MemoryMosaicForCausalLM(tessera.MemoryMosaicConfig(**SIZES)).eval()


def wrapped():
    base = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=16))
    return tessera.wrap(base, segment_size=4, num_memory_tokens=2, memory_dim=4).eval()


def test_a_folder_with_code_loads_without_import_tessera(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    models = {tmp_path / "wrapped": wrapped(), tmp_path / "mosaic": mosaic()}
    for folder, model in models.items():
        model.save_pretrained(folder, with_code=True)
    done = load_elsewhere("trusted", *models)  # only the first is loaded before tessera is: it has more parts
    assert done.returncode == 0, done.stderr
    for line, (folder, model) in zip(done.stdout.splitlines(), models.items(), strict=True):
        module, printed = line.split()
        assert module == type(model).__module__
        assert float(printed) == pytest.approx(float(model(torch.arange(6)[None]).logits.detach().double().sum()))
        # saved again in that process: with the same code, and nothing else of the package
        for place in (folder, folder.with_name(f"{folder.name}-again")):
            assert {file.name for file in place.glob("*.py")} == {"modeling_tessera.py"}
            auto_map = json.loads((place / "config.json").read_text())["auto_map"]
            assert set(auto_map) == {"AutoConfig", "AutoModelForCausalLM"}
        assert type(AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)) is type(model)


def test_code_needs_the_users_trust(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    mosaic().save_pretrained(tmp_path / "model", with_code=True)
    done = load_elsewhere("not", tmp_path / "model")
    assert done.returncode != 0
    assert "trust_remote_code" in done.stderr
    assert not (tmp_path / "modules").exists() or not list((tmp_path / "modules").rglob("modeling_tessera.py"))


def test_without_the_word_nothing_is_written(tmp_path):
    model = mosaic()
    model.save_pretrained(tmp_path / "with", with_code=True)
    model.save_pretrained(tmp_path / "without")
    assert not list((tmp_path / "without").glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "without" / "config.json").read_text())
