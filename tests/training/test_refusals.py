"""What cannot be trained is refused before anything is overwritten."""

import json
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.base.errors import TesseraError
from tessera.models.saving.loading import load_model, load_tokenizer
from tests.refusals import refused, refused_in_a_line


@pytest.fixture
def go(go):
    return partial(go, "training.steps=2")


GPT2 = "model={type: gpt2, n_embd: 16, n_head: 2, n_layer: 1, n_positions: 8}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.source=nowhere.txt", "'nowhere.txt': no such text file"),
        ("data.context=100000", "the training text must hold at least one context of 100000 tokens; got"),
        ("data.context=900", "the validation text must hold at least one context of 900"),
        ("data.split=test", "data: split must be left out for"),
        ("data.validation_split=test", "data: validation_split must be left out for"),
        ("model.vocab_size=200", "model.vocab_size must be at least the tokenizer's"),
        ("training.trainer={tf32: true}", "training.trainer is not a known key"),
        ("training.initialize_from=nowhere", "nowhere: no such folder"),
        ("tokenizer={type: gpt2, path: no/such/model}", "'no/such/model', which does not exist"),
        (GPT2, "model.n_positions must be at least data.context (16); got 8"),
    ],
)
def test_bad_input_names_the_culprit(go, override, message):
    refused_in_a_line(message, go, override)


def test_a_split_of_a_validation_file_is_refused(go, tmp_path):
    (tmp_path / "held_out.txt").write_text("A king lived here. " * 100)
    with pytest.raises(TesseraError, match="data: validation_split must be left out for .*held_out"):
        go(f"data.validation={tmp_path / 'held_out.txt'}", "data.validation_split=test")


def test_a_model_that_does_not_know_documents_is_refused(go):
    with pytest.raises(TesseraError, match="document_ids must be false for model type transformer"):
        go("model={type: transformer, hidden_size: 16, num_heads: 2, num_layers: 1}", "data.document_ids=true")


def test_a_model_whose_layers_are_not_computed_again_is_refused(go):
    with pytest.raises(TesseraError, match="gradient_checkpointing must be false for model type lstm"):
        go("model={type: lstm, hidden_size: 16}", "training.gradient_checkpointing=true")


def test_a_decoder_whose_loss_is_of_the_token_that_it_reads_is_refused(go):
    """BART's labels are those of its encoder's pairs, shifted already: with a text's own it would learn to copy."""
    sizes = "d_model: 16, decoder_layers: 1, decoder_attention_heads: 2, decoder_ffn_dim: 16"
    with pytest.raises(TesseraError, match="model.type bart: the model must have a loss of the next token; got Bart"):
        go(f"model={{type: bart, {sizes}, encoder_layers: 1, encoder_attention_heads: 2, encoder_ffn_dim: 16}}")


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_corpus_is_named(go, tmp_path, content):
    (tmp_path / "empty.txt").write_bytes(content)
    refused(r"empty\.txt|training text", go, f"data.source={tmp_path / 'empty.txt'}")


def test_a_corpus_that_is_not_utf8_is_named(go, tmp_path):
    (tmp_path / "latin.txt").write_bytes("né".encode("latin-1"))
    refused(r"latin\.txt: text must be UTF-8; byte 1 is not", go, f"data.source={tmp_path / 'latin.txt'}")


def test_an_output_folder_that_cannot_be_written_is_named(go, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused("output folder cannot be written", go, folder="file/run")


def test_another_recipes_run_is_never_overwritten(go, tmp_path):
    go()
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for options in ({}, {"resume": True}):
        with pytest.raises(
            TesseraError, match=r"run of another recipe; training.learning_rate is 0.01 there and 0.5 here"
        ):
            go("training.learning_rate=0.5", **options)
    refused("holds a run of this recipe already", go)
    assert {path: path.read_bytes() for path in before} == before
    go("training.learning_rate=0.5", overwrite=True)


def test_a_folder_with_other_files_is_left_alone(go, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        refused("a folder with other files", go, overwrite=overwrite)
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"


@pytest.fixture
def model(go, tmp_path):
    go()
    return tmp_path / "run"


def test_a_missing_model_is_named(tmp_path):
    refused("nowhere: no such folder", load_model, tmp_path / "nowhere")
    refused(r"must hold model\.safetensors or a complete checkpoint", load_model, tmp_path)


def test_truncated_weights_are_refused(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    refused("run: .*(truncated|cannot be loaded)", load_model, model)


def test_weights_of_another_model_are_refused(model):
    config = json.loads((model / "config.json").read_text())
    for change in ({"num_layers": 2}, {"hidden_size": 32}):
        (model / "config.json").write_text(json.dumps({**config, **change}))
        refused(r"weights must fit the configuration|cannot be loaded", load_model, model)


def test_a_foreign_model_type_is_refused(model):
    (model / "config.json").write_text('{"model_type": "hopfield"}')
    refused("run: cannot be loaded", load_model, model)


@pytest.mark.parametrize("content", ["[1", "[1]", "{", ""])
def test_a_damaged_generation_config_is_refused(model, content):
    (model / "generation_config.json").write_text(content)
    refused(r"run: generation_config\.json cannot be loaded \(.+\)", load_model, model)


def test_pickled_weights_are_not_read(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused("Pickled weights are not read", load_model, tmp_path)


def test_an_adapter_alone_is_named(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(TesseraError, match="An adapter of PEFT is put into its model by merge_and_unload"):
        load_model(tmp_path)


def test_a_model_without_tokenizer_is_named(model):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (model / name).unlink()
    refused("must come with its tokenizer", load_tokenizer, model)


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
    with pytest.raises(
        TesseraError, match=r"must be finite; got NaN or infinity after step 1\. Stopped: no checkpoint"
    ):
        go("training.checkpoint_every=1", "training.evaluate_every=10")
    assert not list((tmp_path / "run" / "checkpoints").glob("checkpoint-*"))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_a_text_that_changed_is_noticed_on_resume(go, tmp_path):
    go()
    text = tmp_path / "text.txt"
    content = text.read_text()
    text.write_text(content.replace("kings", "queen", 1))
    refused("the training text must be the one the run began with, and it has changed", go, resume=True)
    text.write_text(content)
    go(resume=True)  # written again, but the same


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
