"""A small model of every kind that has a state, on bytes."""

from collections.abc import Callable

import torch
import transformers as hf

import tessera
from tessera.models.linear_attention import LinearAttentionConfig, LinearAttentionForCausalLM
from tessera.models.lstm import LSTMConfig, LSTMForCausalLM
from tessera.models.mamba import use_selective_scan

SIZES = {"vocab_size": 258, "hidden_size": 24, "num_layers": 2, "num_heads": 3}
V2 = {"intermediate_size": 40, "short_term_span": 6, "long_term_delay": 4}
SPECIAL = {"bos_token_id": 256, "eos_token_id": 257}


def _gpt2() -> hf.PreTrainedModel:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=258, n_embd=24, n_layer=2, n_head=3, n_positions=300, **SPECIAL))


def _llama() -> hf.PreTrainedModel:
    sizes = {"vocab_size": 258, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, intermediate_size=40, **SPECIAL))


def _mamba() -> hf.PreTrainedModel:
    config = hf.MambaConfig(
        vocab_size=258, hidden_size=24, num_hidden_layers=2, state_size=4, pad_token_id=None, **SPECIAL
    )
    return use_selective_scan(hf.MambaForCausalLM(config))


def _segmented(wrap: Callable) -> hf.PreTrainedModel:
    model = wrap(_llama(), segment_size=8, num_memory_tokens=2)
    for memory in getattr(model, "memories", ()):
        torch.nn.init.normal_(memory.value.weight)
    return model


def v1(**changes: object) -> hf.PreTrainedModel:
    config = tessera.MemoryMosaicConfig(**{**SIZES, "num_persistent_slots": 10, **changes})
    return tessera.MemoryMosaicForCausalLM(config)


def v2(**changes: object) -> hf.PreTrainedModel:
    return tessera.MemoryMosaicV2ForCausalLM(tessera.MemoryMosaicV2Config(**{**SIZES, **V2, **changes}))


MAKERS: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "v1": v1,
    "v2": v2,
    "linear attention": lambda: LinearAttentionForCausalLM(
        LinearAttentionConfig(variant="gla", vocab_size=258, hidden_size=16)
    ),
    "lstm": lambda: LSTMForCausalLM(LSTMConfig(vocab_size=258, hidden_size=16)),
    "armt": lambda: _segmented(tessera.wrap),
    "rmt": lambda: _segmented(tessera.wrap_rmt),
    "prmt": lambda: _segmented(tessera.wrap_prmt),
    "llama": _llama,
    "gpt2": _gpt2,
    "mamba": _mamba,
}
OF_PAIRS = ("v1", "v2")


def make(kind: str) -> hf.PreTrainedModel:
    """The same model each time, in evaluation mode."""
    torch.manual_seed(0)
    return MAKERS[kind]().eval()
