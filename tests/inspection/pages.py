"""Small models whose traces fill every view of the page."""

from functools import cache

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import tessera
from tessera.data.tokenizers import byte_tokenizer
from tessera.inspection import Trace, trace

TEXT = "the cat sat on the mat. the cat sat on the hat."


@cache
def mosaic_trace(text: str = TEXT, kernel: str = "triweight") -> Trace:
    """A Memory Mosaic of two layers over bytes."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    config = tessera.MemoryMosaicConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=8, kernel=kernel
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    return trace(model, ids, tokenizer, removals="heads")


@cache
def armt_trace() -> Trace:
    """An ARMT around a GPT-2."""
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=258, n_embd=16, n_layer=2, n_head=2, n_positions=64))
    model = tessera.wrap(base, segment_size=8, num_memory_tokens=2, memory_dim=4).eval()
    for memory in model.memories:
        torch.nn.init.normal_(memory.value.weight)
    tokenizer = byte_tokenizer()
    return trace(model, torch.tensor([tokenizer(TEXT)["input_ids"]]), tokenizer)
