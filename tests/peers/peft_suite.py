"""PEFT's tests of any decoder, with our models in place of theirs: `make peers`. Those of one model of the hub are left
out."""

import os
import tempfile
from types import FunctionType

import datasets
import pytest
import torch
from transformers import PreTrainedModel

from tessera.data.tokenizers import byte_tokenizer
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tests.peers.archive import load

SIZES = {"vocab_size": 256, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
IS_QUICK = "TESSERA_PEERS_QUICK" in os.environ
QUOTES = datasets.DatasetDict(train=datasets.Dataset.from_list([{"quote": "Once upon a time."}] * 4))
decoders = load("test_decoder_models", "peft")
decoders.load_dataset_english_quotes = lambda: QUOTES  # theirs lies on the hub


def suite(name: str, model: PreTrainedModel, methods: tuple[str, ...] = ()) -> type:
    """Their class, of the tests that are given a model's name; it is our folder's. `methods`: of PEFT, all if empty."""
    folder, theirs = tempfile.mkdtemp(), vars(decoders.TestDecoderModels)
    model.save_pretrained(folder)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"eos_token": tokenizer.convert_ids_to_tokens(0)})
    tokenizer.save_pretrained(folder)
    body = {key: value for key, value in theirs.items() if not key.startswith(("test_", "__"))}

    def ours(mark: pytest.Mark) -> pytest.Mark:
        if "model_id" in mark.args:
            return pytest.mark.parametrize("model_id", [folder], ids=["ours"]).mark
        if methods and "config_cls,config_kwargs" in mark.args:
            pairs = [pair for pair in mark.args[1] if pair[0].__name__.removesuffix("Config") in methods]
            return pytest.mark.parametrize(("config_cls", "config_kwargs"), pairs).mark
        return mark

    for test, function in theirs.items():
        marks = getattr(function, "pytestmark", [])
        if any("model_id" in mark.args for mark in marks):
            body[test] = copied = FunctionType(function.__code__, function.__globals__, test, function.__defaults__)
            copied.pytestmark = list(map(ours, marks))
    return type(name, (decoders.PeftCommonTester,), body)


torch.manual_seed(0)  # some models say the same with an adapter as without, which the tests take for a mistake
V1 = MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, num_persistent_slots=8))
V2 = MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SIZES, intermediate_size=48))
PREFIXES = ("Lora", "PrefixTuning", "Cartridge", "PromptTuning")  # what a model's own code decides; all take minutes
TestPeftOnV1 = suite("TestPeftOnV1", V1, PREFIXES if IS_QUICK else ())
TestPeftOnV2 = suite("TestPeftOnV2", V2, PREFIXES[1:3] if IS_QUICK else PREFIXES)
