"""Kernels, tasks, models and texts from other packages and files."""

import json
import os
import sys

import pytest
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

import tessera
from tessera.base import plugins
from tessera.base.errors import TesseraError
from tessera.base.registry import Registry
from tessera.cli.main import main
from tessera.data.sources import SOURCES, TextSource, text_source
from tessera.kernels import KERNELS, kernel_from_config
from tessera.models.causality import expect_next_token
from tests import new_process
from tests.covering import some
from tests.refusals import refused, refused_in_a_line

KERNEL = """
from dataclasses import dataclass
from tessera.kernels import KERNELS, Gaussian

@KERNELS.register("{name}")
@dataclass(frozen=True)
class Mine(Gaussian):
    name = "{name}"
"""
MODEL = """
import tessera

class MyConfig(tessera.MemoryMosaicConfig):
    model_type = "my_mosaic"

class MyForCausalLM(tessera.MemoryMosaicForCausalLM):
    config_class = MyConfig

tessera.models.register_model(MyConfig, MyForCausalLM)
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a package of one module with entry points: (module text, entry points text) -> its folder."""

    def install(text, entry_points):
        (tmp_path / "tessera_plugin_of_a_test.py").write_text(text)
        information = tmp_path / "tessera_plugin_of_a_test-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tessera-plugin-of-a-test\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(entry_points)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "tessera_plugin_of_a_test", raising=False)
        return tmp_path

    return install


def test_a_table_reads_its_entry_points_when_it_is_first_read(package):
    package(
        "import sys\nsys.modules['table_of_a_test'].table.add('blue', 3)\n",
        "[tessera.colours]\nblue = tessera_plugin_of_a_test\n",
    )
    sys.modules["table_of_a_test"] = module = type(sys)("table_of_a_test")
    module.table = table = Registry("colour", "tessera.colours")
    table.add("red", 1)
    assert table["red"] == 1
    assert "tessera_plugin_of_a_test" not in sys.modules  # not needed yet
    assert table["blue"] == 3
    assert list(table) == ["red", "blue"]


def test_a_broken_package_is_named_and_stays_an_error(package):
    package("1 / 0", "[tessera.colours]\nblue = tessera_plugin_of_a_test\n")
    table = Registry("colour", "tessera.colours")
    table.add("red", 1)
    assert table["red"] == 1
    for _ in range(2):
        refused(r"plugin 'blue' \(tessera.colours\): .* \(ZeroDivisionError: division", len, table)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@some("how", new_process.HOW, by_default=["fork"])
def test_models_of_the_library_and_of_another_package_are_known_to_the_auto_classes(package, tmp_path, how):
    """The library's after `import tessera.models`, the other's whichever of both is imported first."""
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 4}
    # Before there is a package, which the test run would read here: a fork must import it itself.
    tessera.MemoryMosaicForCausalLM(tessera.MemoryMosaicConfig(**sizes)).save_pretrained(tmp_path / "saved")
    folder = package(MODEL, "[tessera.models]\nmy_mosaic = tessera_plugin_of_a_test\n")
    code = (
        f"import importlib, os, sys; sys.path.insert(0, {str(folder)!r})\n"
        # what both need, once
        "import torch, transformers.generation, transformers.models.auto.modeling_auto, peft.auto, scipy.optimize\n"
        "assert 'tessera' not in sys.modules\n"
        "first = ['tessera.models', 'tessera_plugin_of_a_test']\n"
        "child = os.fork()\n"
        "importlib.import_module(first[child == 0])\n"
        "from transformers import AutoConfig, AutoModelForCausalLM\n"
        f"saved = {str(folder / 'saved')!r}\n"
        "config = AutoConfig.from_pretrained(saved)\n"
        "models = [AutoModelForCausalLM.from_config(config), AutoModelForCausalLM.from_pretrained(saved)]\n"
        "said = [' '.join(type(each).__name__ for each in (config, *models))]\n"
        f"mine = AutoModelForCausalLM.from_config(AutoConfig.for_model('my_mosaic', **{sizes}))\n"
        "from tessera.recipes.model_section import model_problems\n"
        "said += [type(mine).__name__, model_problems({'type': 'my_mosaic', 'num_heads': 0})[0], '']\n"
        "assert not {'jaxtyping', 'beartype'} & sys.modules.keys()\n"  # packages of the tests alone
        # Both write into one pipe, without a buffer under PYTHONUNBUFFERED: one after the other, or lines are torn.
        "assert child == 0 or os.waitpid(child, 0)[1] == 0\n"
        "print('\\n'.join(said), end='', flush=True)"
    )
    lines = sorted(new_process.run(how, folder, code).splitlines())
    assert len(lines) == 6  # three of each process
    assert all(line.split() == ["MemoryMosaicConfig", *2 * ["MemoryMosaicForCausalLM"]] for line in lines[:2])
    assert lines[2:4] == ["MyForCausalLM"] * 2
    assert all(line.startswith("model.num_heads must be a positive integer") for line in lines[4:])


@pytest.mark.parametrize("verb", ["info", "generate"])
def test_a_model_of_an_unknown_type_names_the_option_that_imports_it(tmp_path, capsys, verb):
    (tmp_path / "config.json").write_text('{"model_type": "nobody_registered_this"}')
    (tmp_path / "model.safetensors").touch()
    assert main([verb, str(tmp_path), *(["--prompt", "a"] if verb == "generate" else [])]) == 2
    assert "nobody_registered_this" in (err := capsys.readouterr().err)
    assert err.endswith(f"{plugins.ADVICE}\n")


def test_import_makes_a_kernel_known_to_recipes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel_of_a_test.py").write_text(KERNEL.format(name="mine"))
    options = ["info", "tiny", "model.kernel=mine"]
    assert main(options) == 2
    assert "unknown kernel 'mine'" in (err := capsys.readouterr().err)
    assert "--import FILE" in err
    try:
        assert main([*options, "--import", "kernel_of_a_test.py"]) == 0
        assert kernel_from_config("mine").name == "mine"
        assert main([*options, "--import", "kernel_of_a_test.py"]) == 0  # a second time is no second registration
    finally:
        KERNELS._entries.pop("mine", None)
        sys.modules.pop("kernel_of_a_test", None)


SOURCE = """
from tessera.data.sources import SOURCES, TextSource

@SOURCES.register("lines_of_a_test")
def lines(split):
    def documents():
        yield from ["one king"] * 40 if split == "train" else ["three wise\\nfools"] * 20
        yield iter(["two", " queens"])

    return TextSource("lines", documents, ("lines", 1), has_splits=True)
"""


def test_import_makes_a_text_known_to_recipes_and_to_eval(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source_of_a_test.py").write_text(SOURCE)
    imported = ["--import", "source_of_a_test.py"]
    options = ["tiny", "data.source=lines_of_a_test", "training.steps=2", "data.context=16", "--output", "run"]
    assert main(["train", *options]) == 2
    assert capsys.readouterr().err.endswith(f"{plugins.ADVICE}\n")
    try:
        assert main(["train", *options, *imported]) == 0
        inputs = json.loads((tmp_path / "run" / "inputs.json").read_text())
        counts = [40 * 9 + 11, 20 * 17 + 11]  # bytes, and an end token each
        assert [inputs[name]["tokens"] for name in ("training", "validation")] == counts
        assert main(["eval", "run", "--data", "lines_of_a_test", "--split", "train", *imported]) == 0
        for broken, message in (
            (lambda split: None, "its function must return a TextSource; got NoneType"),
            (lambda split: TextSource("", lambda: iter([[b"one"]]), ()), "the text must be text; got bytes"),
        ):
            monkeypatch.setitem(SOURCES._entries, "lines_of_a_test", broken)
            refused(message, lambda: list(text_source("lines_of_a_test").pieces()))
    finally:
        SOURCES._entries.pop("lines_of_a_test", None)
        sys.modules.pop("source_of_a_test", None)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nothing.py", None, "there is no such file"),
        ("no_such_module_of_a_test", None, "ModuleNotFoundError"),
        ("broken_of_a_test.py", "1 / 0", "ZeroDivisionError: division by zero."),
        ("broken_of_a_test.py", "def", "SyntaxError"),
        ("broken_of_a_test.py", "import sys; sys.exit(3)", "got SystemExit: 3."),
        ("json.py", "", "must not be called like a module that is loaded already"),
    ],
)
def test_what_cannot_be_imported_is_said(tmp_path, monkeypatch, name, text, message):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    refused_in_a_line(message, plugins.import_file, name)
    assert "broken_of_a_test" not in sys.modules


def test_kernels_have_one_list_of_names():
    assert kernel_from_config({"name": "gaussian_knn", "k": 5}) == kernel_from_config(
        {"name": "knn", "base": "gaussian", "k": 5}
    )
    assert kernel_from_config("sparsemax") == kernel_from_config("epanechnikov")
    for spec in ("sparsmax", {"name": "sparsmax"}, {"name": "sparsemax", "a": 1}, {"name": 3}, ["gaussian"]):
        with pytest.raises(TesseraError):
            kernel_from_config(spec)


class Bag(PreTrainedModel):
    """Predicts from the mean of what came before; transformers does not find its embeddings."""

    config_class = PreTrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.words = torch.nn.Embedding(20, 4)

    def forward(self, input_ids, sees=0, **_):
        hidden = self.words(input_ids).cumsum(1).roll(-sees, 1)
        return CausalLMOutput(logits=hidden @ self.words.weight.T)


def test_a_model_that_does_not_say_where_its_embeddings_are_is_tried(monkeypatch):
    model = Bag(PreTrainedConfig(vocab_size=20))
    expect_next_token(model, "model")
    monkeypatch.setattr(Bag.forward, "__defaults__", (1,))
    refused("the model must see no later token when it predicts one; got Bag", expect_next_token, model, "model")
