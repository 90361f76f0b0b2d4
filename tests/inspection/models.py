"""Small models to look into, whose memories matter."""

import torch
from transformers import AutoModelForCausalLM, GPT2Config

import tessera
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config

IDS = (torch.arange(1, 30)[None] ** 2) % 30
SIZES = {"vocab_size": 30, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
WINDOWS = {"short_term_span": 4, "long_term_delay": 6, "training_long_term_delay": (6, 8)}


def v1(**changes):
    return tessera.MemoryMosaicConfig(**{**SIZES, "num_persistent_slots": 5, **changes})


def v2(**changes):
    return MemoryMosaicV2Config(**{**SIZES, **WINDOWS, "intermediate_size": 16, **changes})


def gpt2(num_layers=2, **changes):
    sizes = {"vocab_size": 30, "n_embd": 16, "n_layer": num_layers, "n_head": 2, "n_positions": 32}
    return GPT2Config(**{**sizes, **changes})


def with_memories(model):
    """Its memories say something: they start at 0."""
    for memory in getattr(model, "memories", ()):
        torch.nn.init.normal_(memory.value.weight)
    return model.eval()


def build(config, scale=None):
    """The model; its matrices are drawn with deviation `scale`: of small first weights every removal costs nothing."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters() if scale else ():
        torch.nn.init.normal_(parameter, 0.0, scale) if parameter.dim() > 1 else None
    return model
