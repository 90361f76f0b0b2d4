"""transformers' own Trainer trains the models as it trains any: they learn, and a resumed training ends the same."""

import shutil

import pytest
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed
from transformers.utils.generic import find_labels

from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, wrap
from tests.covering import some
from tests.models.contract import CASES

SMALL = {"vocab_size": 20, "hidden_size": 16, "num_layers": 1, "num_heads": 2}


class Counting(Dataset):
    """Rows that count up from anywhere."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = (torch.arange(12) + index) % 20
        return {"input_ids": tokens, "labels": tokens}


def v1():
    return MemoryMosaicForCausalLM(MemoryMosaicConfig(**SMALL, num_persistent_slots=4, weight_dropout=0.1))


def v2():
    return MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SMALL, intermediate_size=16))


def armt():
    return wrap(v1(), memory_dim=4, segment_size=6, num_memory_tokens=2)


def trainer(build, folder, **options):
    set_seed(0)
    arguments = TrainingArguments(
        str(folder), max_steps=8, save_steps=4, per_device_train_batch_size=4, gradient_accumulation_steps=2,
        learning_rate=0.01, logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True, **options,
    )  # fmt: skip
    return Trainer(model=build(), args=arguments, train_dataset=Counting())


@pytest.mark.parametrize("name", CASES)
def test_labels_are_the_only_argument_of_labels(name):
    """The Trainer evaluates nothing where another argument with labels in its name is left out."""
    assert find_labels(type(CASES[name].build())) == ["labels"]


@some("build", [v1, v2, armt], by_default=[armt])
def test_it_learns_and_resumes_to_the_same_bits(build, tmp_path):
    whole = trainer(build, tmp_path / "run")
    whole.train()
    losses = [line["loss"] for line in whole.state.log_history if "loss" in line]
    assert losses[-1] < losses[0] - 0.2
    rows = torch.stack([Counting()[index]["input_ids"] for index in range(len(Counting()))])
    with torch.no_grad():
        expected = whole.model.eval()(rows, labels=rows).loss.item()
    assert abs(whole.evaluate(Counting())["eval_loss"] - expected) < 1e-4
    shutil.rmtree(tmp_path / "run" / "checkpoint-8")
    resumed = trainer(build, tmp_path / "run")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert resumed.state.global_step == 8
    for (name, weight), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(weight, other), name
