"""What cannot be trained is refused before anything is overwritten."""

import json
import os
import shutil
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.models.saving.loading import load_model, load_tokenizer
from tests.refusals import refused


@pytest.fixture
def go(go):
    return partial(go, "training.steps=2")


def test_a_split_of_a_validation_file_is_refused(go, tmp_path):
    (tmp_path / "held_out.txt").write_text("A king lived here. " * 100)
    held_out = f"data.validation={tmp_path / 'held_out.txt'}"
    refused("data: validation_split must be left out for .*held_out", go, held_out, "data.validation_split=test")


def test_a_decoder_whose_loss_is_of_the_token_that_it_reads_is_refused(go):
    """BART's labels are those of its encoder's pairs, shifted already: with a text's own it would learn to copy."""
    sizes = "d_model: 16, decoder_layers: 1, decoder_attention_heads: 2, decoder_ffn_dim: 16"
    sizes += ", encoder_layers: 1, encoder_attention_heads: 2, encoder_ffn_dim: 16"
    message = "model.type bart: the model must have a loss of the next token; got Bart"
    refused(message, go, f"model={{type: bart, {sizes}}}")


NAMED = r"bad\.txt|training text"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", NAMED), (b"\n \n", NAMED), (b"n\xe9", r"bad\.txt: text must be UTF-8; byte 1 is not")],
)
def test_a_corpus_without_text_is_named(go, tmp_path, content, message):
    (tmp_path / "bad.txt").write_bytes(content)
    refused(message, go, f"data.source={tmp_path / 'bad.txt'}")


def test_an_output_folder_that_cannot_be_written_is_named(go, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused("output folder cannot be written", go, folder="file/run")


def test_another_recipes_run_is_never_overwritten(go, tmp_path):
    go()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for options in ({}, {"resume": True}):
        message = "run of another recipe; training.learning_rate is 0.01 there and 0.5 here"
        refused(message, go, "training.learning_rate=0.5", **options)
    refused("training.compile is False there and True here", go, "training.compile=true", resume=True)
    refused("holds a run of this recipe already", go)
    assert {path: path.read_bytes() for path in before} == before
    go("training.learning_rate=0.5", overwrite=True)


def test_who_comes_second_is_told_who_holds_the_run(go, change_losses):
    """A lock is held against everybody: here the process that trains tries it again."""
    holder = f"must be used by one process at a time; process {os.getpid()} on .* has been using it since 20"

    def come_second(step, loss):
        for options in ({"resume": True}, {"overwrite": True}, {}):
            refused(holder, go, **options)
        return loss

    change_losses(come_second)
    go()
    go(resume=True)


@pytest.fixture
def model(run_folder, tmp_path):
    return shutil.copytree(run_folder, tmp_path / "run")


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    refused("nowhere: no such folder", load_model, tmp_path / "nowhere")
    refused(r"must hold model\.safetensors or a complete checkpoint", load_model, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x04.")  # which transformers' Trainer writes beside it
    refused("got neither. An adapter of PEFT is put into its model by merge_and_unload", load_model, tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused("Pickled weights are not read", load_model, tmp_path)


def test_truncated_weights_are_refused(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused("run: .*(truncated|cannot be loaded)", load_model, model)


def test_weights_of_another_model_are_refused(model):
    config = json.loads((model / "config.json").read_text())
    for change in ({"num_layers": 9}, {"hidden_size": 32}):
        (model / "config.json").write_text(json.dumps({**config, **change}))
        refused(r"weights must fit the configuration|cannot be loaded", load_model, model)


UNREADABLE = r"run: generation_config\.json cannot be loaded \(.+\)"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", '{"model_type": "hopfield"}', "run: cannot be loaded"),
        *(("generation_config.json", content, UNREADABLE) for content in ("[1", "[1]", "{", "")),
    ],
)
def test_a_damaged_configuration_is_refused(model, name, content, message):
    (model / name).write_text(content)
    refused(message, load_model, model)


def test_a_model_without_tokenizer_is_named(model):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    refused(r"must come with its tokenizer .* tokenizer\.save_pretrained\('.*run'\)", load_tokenizer, model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_model_is_named(model, value):
    weights = load_file(model / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = value
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    refused("weights must be finite; got NaN or infinity in", load_model, model)


def test_weights_that_an_update_made_infinite_are_not_stored(go, tmp_path, monkeypatch):
    original = torch.optim.AdamW.step

    def step(self):
        original(self)
        self.param_groups[0]["params"][0].data.view(-1)[0] = torch.inf

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    message = r"must be finite; got NaN or infinity after step 1\. Stopped: no checkpoint"
    refused(message, go, "training.checkpoint_every=1", "training.evaluate_every=10")
    assert not list((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_text_that_changed_is_noticed_on_resume(go, tmp_path):
    go()
    text = tmp_path / "text.txt"
    content, written = text.read_text(), text.stat()
    text.write_text(content.replace("kings", "queen", 1))
    os.utime(text, ns=(written.st_atime_ns, written.st_mtime_ns))
    refused("the training text must be the one the run began with, and it has changed", go, resume=True)
    text.write_text(content)
    go(resume=True)  # written again, but the same


def test_text_of_the_training_in_the_validation_is_named(go, tmp_path, heard):
    text = tmp_path / "text.txt"
    shutil.copy(text, tmp_path / "copy.txt")
    go(f"data.validation={text}", folder="both")
    assert f"data: {text} stands in the training text and in the validation text" in heard.text
    go(f"data.source=[{text}, {tmp_path / 'copy.txt'}]", folder="twice")
    assert (
        f"data: {tmp_path / 'copy.txt'}, {text} stands twice in the training text, whose end is held out" in heard.text
    )
    heard.records.clear()
    (tmp_path / "copy.txt").write_text(text.read_text().upper())
    go(f"data.validation={tmp_path / 'copy.txt'}", folder="apart")
    assert "stands" not in heard.text


def test_one_split_of_a_dataset_to_train_and_to_validate_on_is_named(go, tmp_path, heard):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "train.jsonl").write_text('{"text": "A king lived here, and a queen."}\n' * 40)
    rows = f"data.source=hf://{tmp_path / 'rows'}"
    go(rows, "data.validation_split=train", folder="one split")
    assert "rows (train) stands in the training text and in the validation text" in heard.text
    needed = r"data: separator must be left out for .*rows \(train\), which has documents of its own; got '<end>'"
    refused(needed, go, rows, "data.validation_split=train", "data.separator=<end>", folder="divided")


def test_what_the_system_says_has_no_number(go, tmp_path):
    go()
    (tmp_path / "run" / "inputs.json").unlink()
    (tmp_path / "run" / "inputs.json").mkdir()
    refused(r"it cannot be read \(Is a directory: .*\)\. Delete it", go, resume=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("inputs.json", "[1]", r"inputs\.json: must be what the run wrote"),
        ("metrics.jsonl", '{"step": 1}\nnoise\n', r"metrics\.jsonl: line 2 must be a JSON object with a step"),
        ("recipe.yaml", "{[", r"a folder with other files\. Its recipe\.yaml is damaged"),
        ("tokenizer.json", "{}", r"the tokenizer must be the one the run began with; tokenizer\.json has 2 of"),
    ],
)
def test_damaged_side_files_are_named(go, tmp_path, name, content, message):
    go()
    (tmp_path / "run" / name).write_text(content)
    refused(message, go, resume=True)
