"""v1, v2 and an ARMT around GPT-2, small and in float64, for tests of what they take and give."""

import torch
from transformers import GPT2Config

from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM

SIZES = {"vocab_size": 270, "hidden_size": 16, "num_layers": 2, "num_heads": 2}
NONE = {"bos_token_id": None, "eos_token_id": None, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
GPT2 = GPT2Config(vocab_size=270, n_embd=16, n_layer=2, n_head=2, n_positions=32, **NONE)
V2 = {"intermediate_size": 24, "short_term_span": 4, "long_term_delay": 3, "training_long_term_delay": [3, 3]}
MAKE = {
    "v1": lambda: MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, num_persistent_slots=8)),
    "v2": lambda: MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SIZES, **V2)),
    "armt": lambda: ARMTForCausalLM(ARMTConfig(base_config=GPT2, segment_size=8, num_memory_tokens=2, memory_dim=4)),
}
STACKS = ["v1", "v2"]


def make(name):
    model = MAKE[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def tokens(batch=2, steps=12):
    return torch.randint(1, 270, (batch, steps))
