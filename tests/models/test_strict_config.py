"""Configurations keep what transformers writes into them, and refuse everything else."""

from dataclasses import fields

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPT2Config,
    PreTrainedConfig,
    Trainer,
    TrainingArguments,
)

from tessera.data.tokenizers import byte_tokenizer
from tessera.errors import TesseraError
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.lstm import LSTMConfig, LSTMForCausalLM
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.models.prmt import PRMTConfig, PRMTForCausalLM
from tessera.models.rmt import RMTConfig, RMTForCausalLM

BASE = {"base_config": GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=32), "segment_size": 8}
SMALL = {"vocab_size": 300, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
MODELS = [
    (MemoryMosaicForCausalLM, MemoryMosaicConfig, {**SMALL, "num_persistent_slots": 8}),
    (MemoryMosaicV2ForCausalLM, MemoryMosaicV2Config, {**SMALL, "intermediate_size": 16}),
    (ARMTForCausalLM, ARMTConfig, {**BASE, "memory_dim": 4}),
    (RMTForCausalLM, RMTConfig, BASE),
    (PRMTForCausalLM, PRMTConfig, BASE),
    (LSTMForCausalLM, LSTMConfig, {"vocab_size": 300, "hidden_size": 16, "num_layers": 1}),
]
IDS = [config.__name__ for _, config, _ in MODELS]
VALUES = {
    "transformers_version": "5.0.0",
    "architectures": ["Any"],
    "output_hidden_states": True,
    "return_dict": False,
    "dtype": "bfloat16",
    "chunk_size_feed_forward": 2,
    "is_encoder_decoder": True,
    "id2label": {0: "a", 1: "b", 2: "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "problem_type": "regression",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "sep_token_id": 3,
    "num_labels": 3,
    "name_or_path": "somewhere",
    "tokenizer_class": "Any",
    "quantization_config": {"quant_method": "any"},
    "task_specific_params": {"any": {}},
}


@pytest.mark.parametrize(("_", "config_class", "sizes"), MODELS, ids=IDS)
def test_every_field_of_transformers_comes_back(_, config_class, sizes, tmp_path):
    assert {field.name for field in fields(PreTrainedConfig)} <= VALUES.keys()
    config = config_class(**sizes, **VALUES)
    config.save_pretrained(tmp_path)
    loaded = config_class.from_pretrained(tmp_path)
    assert loaded.to_dict() == config.to_dict() | {"_name_or_path": ""}  # transformers writes it where it loads
    assert loaded.pad_token_id == 0
    assert loaded.dtype == torch.bfloat16


@pytest.mark.parametrize(("_", "config_class", "sizes"), MODELS, ids=IDS)
def test_settings_of_generate_from_older_versions_are_no_typos(_, config_class, sizes):
    for name, value in GenerationConfig(temperature=0.5, max_length=7).to_dict().items():
        config_class(**sizes, **{name: value})
    with pytest.raises(TesseraError, match="unknown argument 'vocab_sise'"):
        config_class(**sizes, vocab_sise=3)
    with pytest.raises(TesseraError, match="unknown argument 'eos_token_ids'"):
        config_class(**sizes, eos_token_ids=3)


@pytest.mark.parametrize(("model_class", "config_class", "sizes"), MODELS, ids=IDS)
def test_a_model_trained_with_a_tokenizer_loads(model_class, config_class, sizes, tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    model = model_class(config_class(**sizes))
    rows = [{"input_ids": torch.arange(20), "labels": torch.arange(20)} for _ in range(4)]
    options = {"max_steps": 1, "per_device_train_batch_size": 2, "report_to": "none", "disable_tqdm": True}
    arguments = TrainingArguments(output_dir=tmp_path / "run", use_cpu=True, save_strategy="no", **options)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, processing_class=tokenizer)
    trainer.train()
    metrics = trainer.evaluate()
    assert 5 < metrics["eval_loss"] < 7
    trainer.save_model(tmp_path / "model")
    loaded = config_class.from_pretrained(tmp_path / "model")
    assert loaded.pad_token_id == tokenizer.pad_token_id
    if config_class is not LSTMConfig:  # the baseline is no model of the library's own
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
        ids = rows[0]["input_ids"][None]
        torch.testing.assert_close(again(ids).logits, trainer.model.eval()(ids).logits)
