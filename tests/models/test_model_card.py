"""The README.md that save_pretrained writes: how to load what lies beside it, and nobody's own file replaced."""

import re

import pytest
import yaml
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import tessera

SIZES = {"vocab_size": 20, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 4}


def mosaic():
    return tessera.MemoryMosaicForCausalLM(tessera.MemoryMosaicConfig(**SIZES))


def wrapped():
    base = GPT2LMHeadModel(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=16))
    return tessera.wrap(base, segment_size=4, num_memory_tokens=2, memory_dim=4)


def bare():
    return mosaic().model


def section(card, title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", card, re.MULTILINE | re.DOTALL)[1].strip()


def loading(folder, card):
    """The card's Python lines, for this folder."""
    (lines,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    return lines.replace('"FOLDER"', repr(str(folder)))


@pytest.mark.parametrize("build", [mosaic, wrapped, bare])
def test_it_says_what_the_model_is_and_how_it_loads(tmp_path, build):
    model = build()
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    tags = ["tessera", model.config.model_type]
    assert yaml.safe_load(card.split("---")[1]) == {"library_name": "transformers", "tags": tags}
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    assert ("A causal language model" in card) == (build is not bare)
    for title in ("Training", "Evaluation"):
        assert section(card, title).startswith("Not recorded here")
    assert "Apache-2.0" in section(card, "Licence")
    names = {}
    exec(loading(tmp_path, card), names)
    assert type(names["model"]) is type(model)


def test_with_code_it_loads_without_import_tessera(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "model"
    bare().save_pretrained(folder, with_code=True)
    lines = loading(folder, (folder / "README.md").read_text())
    assert "import tessera" not in lines
    names = {}
    exec(lines, names)  # in a process that has not imported it: test_code_beside_weights.py
    assert type(names["model"]).__name__ == "MemoryMosaicModel"


def test_it_keeps_what_the_loaded_card_knew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mosaic().save_pretrained("run")
    (tmp_path / "run" / "README.md").write_text("# x\n\n## Training\n\n| text | <b>stories |\n\nSee `recipe.yaml`.\n")
    AutoModelForCausalLM.from_pretrained("run").save_pretrained("again")
    card = (tmp_path / "again" / "README.md").read_text()
    assert section(card, "Training").endswith("later training is not in it.\n\n| text | &lt;b>stories |")
    assert section(card, "Evaluation").startswith("Not recorded here")


def test_a_model_that_was_not_loaded_quotes_no_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("## Training\n\n| text | another project |\n")
    mosaic().save_pretrained("model")
    assert "another project" not in (tmp_path / "model" / "README.md").read_text()


def test_a_card_that_is_there_stays(tmp_path):
    (tmp_path / "README.md").write_text("mine")
    for with_code in (True, False):
        mosaic().save_pretrained(tmp_path, with_code=with_code)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_one_process_of_many_writes_it(tmp_path):
    mosaic().save_pretrained(tmp_path, is_main_process=False, with_code=True)
    assert {file.suffix for file in tmp_path.iterdir()} <= {".safetensors"}
