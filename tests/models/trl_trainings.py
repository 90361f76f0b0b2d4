"""TRL's trainers on a few short texts."""

import importlib

import pytest

from tessera.data.tokenizers import byte_tokenizer

ROWS = {
    "SFT": [{"text": "Once upon a time. " * count} for count in (1, 2, 3, 4)],
    "DPO": [{"prompt": "Who?", "chosen": " Mary." * count, "rejected": " No."} for count in (1, 2, 3, 4)],
    "KTO": [{"prompt": "Who?", "completion": " Mary." * count, "label": count > 2} for count in (1, 2, 3, 4)],
}


def trl_trainer(kind, model, folder, settings=None, **options):
    """The trainer of `kind`, for two steps; `settings` are those of its configuration."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    module = importlib.import_module("trl.experimental.kto") if kind == "KTO" else trl
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "bf16": False, "save_strategy": "no"}
    few = {"max_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, "max_length": 24}
    arguments = getattr(module, f"{kind}Config")(output_dir=str(folder), **{**quiet, **few, **(settings or {})})
    data = datasets.Dataset.from_list(ROWS[kind])
    trainer = getattr(module, f"{kind}Trainer")
    return trainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer, **options)


def losses(trainer):
    trainer.train()
    return [record["loss"] for record in trainer.state.log_history if "loss" in record]
