"""A small model of every kind that has a state, on bytes."""

from collections.abc import Callable
from functools import partial

import torch
import transformers as hf

import tessera
from tessera.models.mamba import use_selective_scan
from tests.models import contract
from tests.models.armt.bases import BASES, tiny

VOCABULARY = 258
SPECIAL = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None}
LLAMA = {"hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 3, "max_position_embeddings": 2048}

v1 = partial(contract.v1, vocab_size=VOCABULARY, pad_token_id=None)
v2 = partial(contract.v2, vocab_size=VOCABULARY, pad_token_id=None)
_gpt2 = partial(BASES["gpt2"], vocab_size=VOCABULARY, n_embd=24, n_head=3, n_positions=300, **SPECIAL)
_llama = partial(BASES["llama"], vocab_size=VOCABULARY, intermediate_size=40, **LLAMA, **SPECIAL)


def _segmented(wrap: Callable) -> hf.PreTrainedModel:
    model = wrap(_llama(), segment_size=8, num_memory_tokens=2)
    for memory in getattr(model, "memories", ()):
        torch.nn.init.normal_(memory.value.weight)
    return model


MAKERS: dict[str, Callable[[], hf.PreTrainedModel]] = {
    "v1": v1,
    "v2": v2,
    "linear attention": partial(contract.linear, "gla", vocab_size=VOCABULARY, pad_token_id=None),
    "lstm": partial(contract.lstm, vocab_size=VOCABULARY),
    "armt": lambda: _segmented(tessera.wrap),
    "rmt": lambda: _segmented(tessera.wrap_rmt),
    "prmt": lambda: _segmented(tessera.wrap_prmt),
    "llama": _llama,
    "gpt2": _gpt2,
    "mamba": lambda: use_selective_scan(tiny("mamba", vocab_size=VOCABULARY, hidden_size=24, **SPECIAL)),
}
OF_PAIRS = ("v1", "v2")


def make(kind: str) -> hf.PreTrainedModel:
    """The same model each time, in evaluation mode."""
    torch.manual_seed(0)
    return MAKERS[kind]().eval()
