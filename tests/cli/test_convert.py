"""`tessera convert`: published files become folders that from_pretrained reads, and code is never unpickled."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tessera.cli.main import main
from tessera.models.saving.loading import model_folder
from tests import refusals
from tests.golden_files import load, part
from tests.tolerances import GOLDEN_VALUE

CASE = load("B_nano", "B1_nobias_pmem1")


@pytest.fixture
def published():
    tensors, description = CASE
    return part(tensors, "param/"), description["constructor"]


def convert(*arguments):
    return main(["convert", "--source", "nano-mosaics", *map(str, arguments)])


def expect_logits(folder):
    tensors, description = CASE
    logits = AutoModelForCausalLM.from_pretrained(folder)(tensors["in/T17/idx"]).logits
    error = (logits - tensors["f64/T17/logits"]).abs().max().item()
    assert error <= 10 * description["runs"]["T17"]["f32_vs_f64_logits_max_abs"]


def test_safetensors_with_arguments(published, tmp_path, capsys):
    weights, constructor = published
    save_file(weights, tmp_path / "weights.safetensors")
    (tmp_path / "arguments.json").write_text(json.dumps({"constructor": constructor}))
    assert convert(tmp_path / "weights.safetensors", tmp_path / "out", "--arguments", tmp_path / "arguments.json") == 0
    assert "MemoryMosaicForCausalLM" in capsys.readouterr().out
    expect_logits(tmp_path / "out")


def test_the_index_of_several_files_stands_for_all_of_them(published, refused, tmp_path):
    weights, constructor = published
    names, index = sorted(weights), tmp_path / "model.safetensors.index.json"
    parts = {"model-1.safetensors": names[:5], "model-2.safetensors": names[5:]}
    for file, of_file in parts.items():
        save_file({name: weights[name] for name in of_file}, tmp_path / file)
    index.write_text(json.dumps({"weight_map": {name: file for file, of_file in parts.items() for name in of_file}}))
    (tmp_path / "arguments.json").write_text(json.dumps(constructor))
    assert convert(index, tmp_path / "out", "--arguments", tmp_path / "arguments.json") == 0
    expect_logits(tmp_path / "out")
    (tmp_path / "model-2.safetensors").unlink()
    command = ("convert", "--source", "nano-mosaics", index, tmp_path / "other")
    refused("model.safetensors.index.json: cannot be read as weights", *command)


@pytest.mark.parametrize("rows_lie_apart", [False, True])  # those of a tied matrix
def test_a_training_checkpoint_brings_its_arguments(published, tmp_path, rows_lie_apart):
    weights, constructor = published
    if rows_lie_apart:
        weights = {**weights, "mosaic.wte.weight": weights["mosaic.wte.weight"].T.contiguous().T}
    torch.save({"model": weights, "model_args": constructor, "iter_num": 3}, tmp_path / "ckpt.pt")
    assert convert(tmp_path / "ckpt.pt", tmp_path / "out") == 0
    expect_logits(tmp_path / "out")


def test_what_a_published_training_script_saves_needs_no_source(tmp_path):
    tensors, description = load("I_eft_sparse", "I17_softmax_task_sort")
    weights = {f"_orig_mod.{name}": tensor for name, tensor in part(tensors, "param/").items()}
    arguments = {**description["constructor"], "learning_rate": 1e-3, "milestone": [10000], "wandb_name": "sort"}
    content = {"model": weights, "model_args": arguments, "iter_num": 3, "loss_history": [3.6, 3.5]}
    torch.save(content, tmp_path / "ckpt.pt")
    assert main(["convert", str(tmp_path / "ckpt.pt"), str(tmp_path / "out"), "--dtype", "float64"]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64)
    visible = tensors["in/T18/attention_mask"].bool()
    logits = model(tensors["in/T18/idx"]).logits[visible]
    torch.testing.assert_close(logits, tensors["f64/T18/logits"][visible], rtol=0, atol=GOLDEN_VALUE)


class Hostile:
    """Unpickling this would write a file."""

    def __reduce__(self):
        return (open, ("hostile-was-run", "w"))


def test_code_is_not_unpickled(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": Hostile()}, "ckpt.pt")
    refused("never unpickled", "convert", "--source", "nano-mosaics", "ckpt.pt", "out")
    assert not (tmp_path / "hostile-was-run").exists()


def test_what_is_wrong_is_one_line_and_nothing_is_written(published, refused, tmp_path):
    weights, constructor = published
    good = tmp_path / "weights.safetensors"
    save_file(weights, good)
    (tmp_path / "cut.safetensors").write_bytes(good.read_bytes()[:1000])
    (tmp_path / "arguments.json").write_text(json.dumps(constructor))
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "five.json").write_text('{"constructor": 5}')
    (tmp_path / "deep.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept.txt").write_text("kept")
    out, arguments = tmp_path / "out", ("--arguments", tmp_path / "arguments.json")
    for command, message in (
        ((tmp_path / "none.pt", out, *arguments), "no such file"),
        ((tmp_path / "pipe", out), "pipe: no such file"),
        ((tmp_path / "cut.safetensors", out, *arguments), "cannot be read as weights"),
        ((good, out), "holds no model_args"),
        ((good, out, "--arguments", tmp_path / "list.json"), "must hold an object of arguments"),
        ((good, out, "--arguments", tmp_path / "five.json"), '"constructor" must be an object of arguments; got int.'),
        ((good, out, "--arguments", tmp_path / "deep.json"), "cannot be read as JSON"),
        ((good, out, "--arguments", tmp_path / "pipe"), "which is no plain file"),
        ((good, tmp_path / "full", *arguments), "is not an empty folder"),
        ((good, out, *arguments, "--source", "memory-mosaics"), "those of 'nano-mosaics'"),
    ):
        refused(message, "convert", "--source", "nano-mosaics", *command)
    assert not out.exists()
    assert (tmp_path / "full" / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello world\n", "cannot be read as weights"),
        (torch.zeros(3), "must hold tensors by name; got Tensor."),
        ([torch.zeros(3)], "must hold tensors by name; got list."),
        ({1: torch.zeros(3)}, "must hold tensors by name; got the name 1."),
        ({"model": {2: torch.zeros(3)}}, "must hold tensors by name; got the name 2."),
    ],
)
def test_files_that_hold_no_named_tensors(content, message, refused, tmp_path):
    path = tmp_path / "weights.pt"
    path.write_text(content) if isinstance(content, str) else torch.save(content, path)
    refused(message, "convert", "--source", "nano-mosaics", path, tmp_path / "out")


def test_weights_that_are_no_numbers_are_not_saved(published, refused, tmp_path):
    weights, constructor = published
    more = (tmp_path / "out", "--arguments", tmp_path / "arguments.json")
    (tmp_path / "arguments.json").write_text(json.dumps(constructor))
    name = "mosaic.h.0.attn.c_proj.weight"
    for what, changed in (
        ("NaN", {name: weights[name] * float("nan")}),
        ("must fit float32", {name: weights[name].double() + 1e300}),
        (f"holds tensor '{name}' twice", {f"module.{name}": weights[name] + 1}),
        ('the same with and without "param/"', {f"param/{name}": weights[name] + 1}),
        ("unexpected tensors: 'two\\nlines", {"two\nlines" + 5000 * "x": weights[name]}),
    ):
        torch.save({**weights, **changed}, tmp_path / "weights.pt")
        refused(what, "convert", "--source", "nano-mosaics", tmp_path / "weights.pt", *more)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arguments.json", "weights.pt"]


def test_a_terminated_convert_leaves_nothing(published, tmp_path, monkeypatch):
    """SIGTERM ends the program as an exception does: what is half written is deleted."""
    weights, constructor = published
    torch.save({"model": weights, "model_args": constructor}, tmp_path / "ckpt.pt")

    def end(self, folder):
        (folder / "model.safetensors").write_text("half")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("tessera.models.memory_mosaic.MemoryMosaicForCausalLM.save_pretrained", end)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        convert(tmp_path / "ckpt.pt", tmp_path / "out")
    assert ended.value.code == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt.pt"]
    assert signal.getsignal(signal.SIGTERM) == handler


def test_a_folder_without_parts_is_no_checkpoint_in_parts(refused, tmp_path):
    convert = ("convert", tmp_path, tmp_path / "out")
    refused("must be a sharded checkpoint, or a run with one.", *convert)
    for name in ("model.safetensors", "x.index.json"):
        (tmp_path / name).touch()
    refused(f"give the file: tessera convert {tmp_path / 'x.index.json'} {tmp_path / 'out'}.", *convert)
    (tmp_path / "config.json").touch()
    refused("It is a model already, which needs no conversion.", *convert)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "shards").mkdir()
    refusals.refused("is in parts. Merge them: tessera convert", model_folder, tmp_path)
    refused("must be complete; got: no readable complete.json", *convert)
