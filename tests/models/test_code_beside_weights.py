"""A folder saved with code loads in a process that never imports tessera, and only where its user trusts it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests import new_process
from tests.covering import some
from tests.models.test_model_card import mosaic, wrapped

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


def test_without_the_word_nothing_is_written(tmp_path):
    model = mosaic()
    model.save_pretrained(tmp_path / "with", with_code=True)
    model.save_pretrained(tmp_path / "without")
    assert not list((tmp_path / "without").glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "without" / "config.json").read_text())
