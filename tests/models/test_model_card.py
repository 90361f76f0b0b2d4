"""The README.md that save_pretrained writes: how to load what lies beside it, and nobody's own file replaced."""

import json
import re

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

import tessera
from tests import new_process
from tests.covering import some
from tests.models.armt.bases import BASES, WRAPS

SIZES = {"vocab_size": 20, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 4}


def mosaic():
    return tessera.MemoryMosaicForCausalLM(tessera.MemoryMosaicConfig(**SIZES))


def wrapped():
    return WRAPS["armt"](BASES["gpt2"](), segment_size=4, num_memory_tokens=2)


def bare():
    return mosaic().model


def section(card, title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", card, re.MULTILINE | re.DOTALL)[1].strip()


@pytest.mark.parametrize("with_code", [False, True])
@pytest.mark.parametrize("build", [mosaic, wrapped, bare])
def test_it_says_what_the_model_is_and_how_it_loads(tmp_path, monkeypatch, build, with_code):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    model = build()
    model.save_pretrained(tmp_path, with_code=with_code)
    card = (tmp_path / "README.md").read_text()
    tags = ["tessera", model.config.model_type]
    assert yaml.safe_load(card.split("---")[1]) == {"library_name": "transformers", "tags": tags}
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in card
    assert ("A causal language model" in card) == (build is not bare)
    for title in ("Training", "Evaluation"):
        assert section(card, title).startswith("Not recorded here")
    assert "Apache-2.0" in section(card, "Licence")
    (lines,) = re.findall("```python\n(.*?)```", card, re.DOTALL)
    lines, names = lines.replace('"FOLDER"', repr(str(tmp_path))), {}
    assert ("import tessera" in lines) == (not with_code)
    exec(lines, names)  # in a process that has not imported it: below
    assert type(names["model"]) is type(model)


@pytest.mark.filterwarnings("ignore")  # peft's own
@pytest.mark.parametrize("build", [mosaic, wrapped])
def test_an_adapter_alone_is_not_called_a_model(tmp_path, build):
    peft, model = pytest.importorskip("peft"), build()
    model.add_adapter(peft.LoraConfig(r=2, target_modules="all-linear"))
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "README.md").exists()


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


LOAD = """
import os, sys, torch
from pathlib import Path
from transformers import AutoModelForCausalLM
assert "tessera" not in sys.modules
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=False)
except ValueError as error:
    print("trust_remote_code" in str(error), list(Path(os.environ["HF_MODULES_CACHE"]).rglob("modeling_tessera.py")))
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    print(type(model).__module__, float(model(torch.arange(6)[None]).logits.detach().double().sum()))
    model.save_pretrained(folder + "-again")
"""


@some("how", new_process.HOW, by_default=["fork"])
def test_a_folder_with_code_loads_without_import_tessera_where_its_user_trusts_it(tmp_path, monkeypatch, how):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    models = {tmp_path / "wrapped": wrapped().eval(), tmp_path / "mosaic": mosaic().eval()}
    for folder, model in models.items():
        model.save_pretrained(folder, with_code=True)
    # Only the first is loaded before tessera is: it has more parts.
    refused, *loaded = new_process.run(how, tmp_path, LOAD, *map(str, models)).splitlines()
    assert refused == "True []", "code was taken, or copied, without the user's trust"
    for line, (folder, model) in zip(loaded, models.items(), strict=True):
        module, printed = line.split()
        assert module == type(model).__module__
        assert float(printed) == pytest.approx(float(model(torch.arange(6)[None]).logits.detach().double().sum()))
        # saved again in that process: with the same code, and nothing else of the package
        for place in (folder, folder.with_name(f"{folder.name}-again")):
            assert {file.name for file in place.glob("*.py")} == {"modeling_tessera.py"}
            auto_map = json.loads((place / "config.json").read_text())["auto_map"]
            assert set(auto_map) == {"AutoConfig", "AutoModelForCausalLM"}
        assert type(AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)) is type(model)


OWN = """
from dataclasses import dataclass
import tessera
from tessera.kernels import KERNELS, Gaussian
from tessera.models import register_model

@KERNELS.register("own_kernel")
@dataclass(frozen=True)
class OwnKernel(Gaussian):
    name = "own_kernel"

class OwnConfig(tessera.MemoryMosaicConfig):
    model_type = "own_mosaic"

class OwnForCausalLM(tessera.MemoryMosaicForCausalLM):
    config_class = OwnConfig

register_model(OwnConfig, OwnForCausalLM)
"""
SAVE = f"""
import sys
sys.path.insert(0, sys.argv[1])
import tessera
from own_module import OwnConfig, OwnForCausalLM
config = tessera.MemoryMosaicConfig(**{SIZES}, kernel="own_kernel")
models = {{"kernel": tessera.MemoryMosaicForCausalLM(config), "class": OwnForCausalLM(OwnConfig(**{SIZES}))}}
for name, model in models.items():
    model.save_pretrained(f"{{sys.argv[1]}}/{{name}}")
    model.save_pretrained(f"{{sys.argv[1]}}/{{name}}_with_code", with_code=True)

class Unsaved(OwnForCausalLM):
    pass

try:
    Unsaved(OwnConfig(**{SIZES})).save_pretrained(f"{{sys.argv[1]}}/unsaved", with_code=True)
except tessera.base.errors.TesseraError as error:
    print(error)
"""
LOAD_OWN = """
import re, sys
from pathlib import Path
from transformers import AutoModelForCausalLM
folder = Path(sys.argv[1])
for _ in range(2):
    for name in sys.argv[2:]:
        lines, = re.findall("```python\\n(.*?)```", (folder / name / "README.md").read_text(), re.DOTALL)
        names = {}
        try:
            exec(lines.replace('"FOLDER"', repr(str(folder / name))), names)
            print(type(names["model"]).__name__)
        except ImportError as error:
            print(type(error).__name__, error)
    sys.path.insert(0, sys.argv[1])
"""


@some("how", new_process.HOW, by_default=["fork"])
def test_classes_and_kernels_of_ones_own_are_named_and_found_where_their_file_is(tmp_path, monkeypatch, how):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "own_module.py").write_text(OWN)
    refused = new_process.run(how, tmp_path, SAVE, str(tmp_path))
    assert refused.startswith(
        "save_pretrained: classes and kernels must be of a module that others can import; got one"
    )
    assert not (tmp_path / "unsaved").exists()
    found = ["MemoryMosaicForCausalLM", "OwnForCausalLM"]
    for ending, missing in {
        "_with_code": "ImportError this model needs the module 'own_module': install it, or put its file on",
        "": "ModuleNotFoundError No module named 'own_module'",
    }.items():
        folders = (f"kernel{ending}", f"class{ending}")
        said = new_process.run(how, tmp_path, LOAD_OWN, str(tmp_path), *folders).splitlines()
        assert [line.startswith(missing) for line in said] == [True, True, False, False]
        assert said[2:] == found


def test_without_the_word_nothing_is_written(tmp_path):
    model = mosaic()
    model.save_pretrained(tmp_path / "with", with_code=True)
    model.save_pretrained(tmp_path / "without")
    assert not list((tmp_path / "without").glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "without" / "config.json").read_text())
