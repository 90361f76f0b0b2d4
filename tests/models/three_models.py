"""v1, v2 and an ARMT around GPT-2, small and in float64, with the vocabulary of bytes."""

from functools import partial

import torch

from tests.models import contract
from tests.models.armt.bases import BASES, WRAPS

SIZES = {"vocab_size": 270, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "pad_token_id": None}
GPT2 = {"vocab_size": 270, "n_embd": 16, "n_head": 2, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}
V2 = {"intermediate_size": 24, "short_term_span": 4, "long_term_delay": 3, "training_long_term_delay": [3, 3]}
MAKE = {
    "v1": partial(contract.v1, **SIZES, num_persistent_slots=8),
    "v2": partial(contract.v2, **SIZES, **V2),
    "armt": lambda: WRAPS["armt"](BASES["gpt2"](**GPT2), segment_size=8, num_memory_tokens=2),
}
STACKS = ["v1", "v2"]


def make(name):
    return contract.Case(MAKE[name]).build()


def tokens(batch=2, steps=12):
    return torch.randint(1, 270, (batch, steps))
