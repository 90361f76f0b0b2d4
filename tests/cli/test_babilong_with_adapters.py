"""`benchmarks.babilong_lora`: a memory and adapters around somebody's model learn BABILong; its weights stay."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import babilong_lora
from tessera.models.saving.loading import load_model
from tessera.papers.babilong.stories import examples_of, facts_of
from tessera.training.fit import train_recipe_stages
from tests.cli.test_babilong_of_any_model import subwords

pytest.importorskip("peft")


@pytest.fixture
def base(tmp_path):
    texts = [f" {text}" for text in facts_of("qa1") + examples_of("qa1")]
    folder = subwords(tmp_path / "base", [*texts, *(100 * ["\nQuestion:\nAnswer:"])], 600)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=600, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("ignore")  # peft's own
def test_memory_and_adapters_learn_and_the_base_stays(base, short_books, tmp_path, monkeypatch):
    trained = []

    def noted(model, *arguments):
        trained.append(model)
        return train_recipe_stages(model, *arguments)

    def small(folder, recipe=babilong_lora.recipe):
        settings = recipe(folder)
        task = {**settings.data.task, "facts_share": 0.9}
        training = replace(settings.training, batch_size=2, evaluate_sequences=2, warmup_steps=0)
        return replace(settings, data=replace(settings.data, task=task), training=training)

    monkeypatch.setattr(babilong_lora, "SEGMENT", 300)  # so many single letters
    monkeypatch.setattr(babilong_lora, "STAGES", tuple(replace(stage, steps=2) for stage in babilong_lora.STAGES))
    monkeypatch.setattr(babilong_lora, "recipe", small)
    monkeypatch.setattr(babilong_lora, "train_recipe_stages", noted)
    out = tmp_path / "out.json"
    options = ["--folder", str(tmp_path / "run"), "--segments", "1", "--texts", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["babilong_lora", base, *options])
    babilong_lora.main()
    record = json.loads(out.read_text())
    assert [stage["steps_done"] for stage in record["stages"]] == [2, 2, 2]
    assert set(record["exact_match"]["1"]) >= {"question in the last segment", "question behind it"}
    (model,), before = trained, dict(load_model(base).named_parameters())
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert all(p.abs().sum() > 0 for p in learned.values())  # LoRA's B and what the memory adds are 0 at first
    assert all(any(part in name for name in learned) for part in ("lora_B", "memories", "memory_tokens"))
    for name, parameter in model.base.named_parameters():
        if (own := before.get(name.replace(".base_layer", ""))) is not None:
            assert torch.equal(parameter, own), name
