"""From a recipe alone every model type is trained, described, evaluated and asked; and what is said of v2 alone."""

import json

import pytest

from tessera.cli.main import main
from tessera.models import MODELS as MODELS_BY_NAME
from tessera.models.presets import published_counts
from tests.covering import some
from tests.inspection.pages import data_of

TRANSFORMER = {"type": "transformer", "hidden_size": 16, "num_layers": 1, "num_heads": 2}
V1 = {"type": "memory_mosaic", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 8}
V2 = {"type": "memory_mosaic_v2", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 24}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2}
NEOX = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SEGMENTED = {"segment_size": 8, "num_memory_tokens": 2}
MODELS = {
    "transformer": TRANSFORMER,
    "memory_mosaic": V1,
    "memory_mosaic_v2": {**V2, "short_term_span": 4, "long_term_delay": 4, "training_long_term_delay": [4, 4]},
    "gpt_neox": {"type": "gpt_neox", **NEOX},
    "lstm": {"type": "lstm", "hidden_size": 16, "num_layers": 1},
    "armt": {"type": "armt", "memory_dim": 4, "base": TRANSFORMER, **SEGMENTED},
    "armt of a mosaic": {"type": "armt", "memory_dim": 4, "base": V1, **SEGMENTED},
    "rmt": {"type": "rmt", "base": TRANSFORMER, **SEGMENTED},
    "prmt": {"type": "prmt", "base_config": GPT2, **SEGMENTED},
}
KINDS = {  # of their memories, as `tessera inspect` names them
    "transformer": {"attention", "network"},
    "memory_mosaic": {"contextual", "persistent"},
    "memory_mosaic_v2": {"short_term", "long_term", "network"},
    "gpt_neox": {"attention", "network"},
    "armt": {"association", "attention", "network"},
    "armt of a mosaic": {"association", "contextual", "persistent"},
    "rmt": {"attention", "network"},
    "prmt": {"attention", "network"},
}
SHORT = "steps=2 warmup_steps=1 batch_size=2 evaluate_sequences=2 precision=fp32"
OPTIONS = ("data.context=16", *(f"training.{setting}" for setting in SHORT.split()))


def run_of(folder, corpus, model, *options):
    """Train in `folder`; returns it."""
    recipe = ("tiny", f"model={json.dumps(model)}", f"data.source={corpus}", *OPTIONS, *options)
    assert main(["train", *recipe, "--output", str(folder)]) == 0
    return folder


@some("name", MODELS, by_default=("transformer", "memory_mosaic", "memory_mosaic_v2", "gpt_neox", "lstm", "armt"))
def test_train_info_eval_generate_inspect_memorize_ask(name, tessera, done, corpus, tmp_path):
    run = run_of(tmp_path / "run", corpus, MODELS[name])
    config = json.loads((run / "config.json").read_text())
    assert config.get("base_config", config)["vocab_size"] == 258  # the byte tokenizer's
    out, _ = done("info", run)
    assert "parameters" in out
    out, _ = done("eval", run, "--json")
    assert json.loads(out)["loss"] > 0
    done("generate", run, "--prompt", "Once", "--max-new-tokens", 8, "--temperature", 0)
    page, memory = tmp_path / "page.html", tmp_path / "memory.safetensors"
    text = ["--text", corpus, "--tokens", 12, "--without", "heads", "-o", page]
    status, _, err = tessera("inspect", run, *text)
    if name not in KINDS:
        needed = "have memories or attention in its layers; found none in LSTMForCausalLM"
        assert (status, err) == (2, f"inspection: model must {needed}.\n")
        return
    assert status == 0, err
    (shown,) = data_of(page.read_text(encoding="utf-8"))
    assert {memory["kind"] for memory in shown["memories"]} == KINDS[name]
    assert (shown["segments"] is not None) == ("segment_size" in MODELS[name])
    status, out, err = tessera("memorize", run, corpus, "--out", memory)
    if name == "transformer":
        needed = "fit the 16 positions of the model; got 1400 tokens"
        assert (status, err.splitlines()[-1]) == (2, f"memorize: the text must {needed}.")
        return
    assert status == 0, err
    status, _, err = tessera("inspect", run, *text, "--memory", memory)
    if name == "gpt_neox":
        needed = "be of a v1, v2, linear, ARMT, RMT or PRMT model"
        assert (status, err) == (2, f"inspect: --memory must {needed}; got one of gpt_neox.\n")
        return
    assert status == 0, err
    if "segment_size" in MODELS[name]:
        assert data_of(page.read_text(encoding="utf-8"))[0]["stored"]["segmentsRead"] > 0
    done("ask", run, "Who was", "--memory", memory, "--max-new-tokens", 4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "armt", "base": {"type": "transformer", "hidden_sise": 8}}, "model.base.hidden_sise is not"),
        ({"type": "armt", "base": {**TRANSFORMER, "num_heads": 3}}, "model.base.num_heads must divide"),
        ({"type": "armt", "base": {**V1, "num_heads": 3}}, "model.base.num_heads must divide"),
        ({"type": "rmt", "base": 3}, "with its type, or a folder with a model; got 3"),
        ({"type": "rmt"}, "model.base must be a model section"),
        ({"type": "armt", "base": "/none"}, "/none: no such folder"),
        ({"type": "armt", "base": TRANSFORMER, "segment_sise": 8}, "model.segment_sise is not a known key"),
    ],
)
def test_impossible_bases_are_one_line(model, message, refused, corpus, tmp_path):
    section = f"model={json.dumps(model)}"
    refused(message, "train", "tiny", section, f"data.source={corpus}", "--output", tmp_path / "run")


def test_info_reports_a_preset_as_published_and_takes_no_overrides(done, refused):
    actual = json.loads(done("info", "mosaic-v2-large", "--json", "--context", "256")[0])
    assert sum(actual["parameters_by_part"].values()) == actual["parameters"]
    assert actual["as_published"] == published_counts(MODELS_BY_NAME["mosaic-v2-large"].config())
    refused("'model.num_layers=2' must be left out for a preset", "info", "mosaic-v2-large", "model.num_layers=2")


def test_evaluation_without_long_term_memory(tessera, refused, corpus, run_folder, tmp_path):
    model = {**V2, "short_term_span": 4, "long_term_delay": 2, "training_long_term_delay": [2, 5]}
    run = run_of(tmp_path / "run", corpus, model)
    reports = [json.loads(tessera("eval", run, "--json", *extra)[1]) for extra in ((), ("--without-long-term-memory",))]
    assert [report["long_term_memory"] for report in reports] == [True, False]
    # The first steps hold no long-term pair; later ones miss what is switched off.
    assert reports[0]["loss_by_position"][0] == reports[1]["loss_by_position"][0]
    assert reports[0]["loss"] != reports[1]["loss"]
    message = "must have long-term memories to switch off; this memory_mosaic has none"
    refused(message, "eval", run_folder, "--without-long-term-memory")
