"""The memories that keep the contract of `tessera.testing`."""

from functools import partial

import torch
from torch import nn

from tessera.memories.contextual import ContextualMemory
from tessera.memories.linear_attention import VARIANTS, LinearAttentionMemory
from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.memories.persistent import PersistentMemory
from tessera.memories.short_and_long_term import LongTermMemory, ShortTermMemory
from tessera.testing.memories import MemoryCase

HIDDEN, HEADS = 12, 2
Case = partial(MemoryCase, hidden_size=HIDDEN)


class Delayed(LongTermMemory):
    """A long-term memory whose delay is 4."""

    def forward(self, x, state=None, documents=None, keep_state=False):
        return super().forward(x, state, documents, keep_state, delay=4)


KERNELS = {"gaussian": "gaussian", "compact": "biweight", "anchored": "relumax"}
NEIGHBOURS = {"name": "knn", "base": "gaussian", "k": 3}


def contextual(kernel="gaussian", **options) -> nn.Module:
    """A contextual memory."""
    return ContextualMemory(HIDDEN, HEADS, kernel, **options)


CASES = {
    **{f"contextual {name}": Case(partial(contextual, kernel)) for name, kernel in KERNELS.items()},
    "contextual neighbours": Case(partial(contextual, NEIGHBOURS), bfloat16=None),
    "contextual, convolution": Case(partial(contextual, value_extractor="convolution", bias=True)),
    "contextual, delay 2": Case(partial(contextual, delay=2, mean_keys=True, norm_eps=0.1)),
    "persistent": Case(lambda: PersistentMemory(HIDDEN, HEADS, 5, 2, "gaussian"), grows=False),
    **{
        f"short-term {name}": Case(partial(ShortTermMemory, HIDDEN, HEADS, kernel, 6), grows=False)
        for name, kernel in KERNELS.items()
    },
    **{f"long-term {name}": Case(partial(Delayed, HIDDEN, HEADS, kernel)) for name, kernel in KERNELS.items()},
    "linear contextual": Case(
        lambda: LinearContextualMemory(HIDDEN, HEADS, 6, inverse_bandwidth=2.0, dtype=torch.float64),
        has_documents=False,
        bfloat16=None,
        float32=None,
    ),
    **{variant: Case(partial(LinearAttentionMemory, HIDDEN, HEADS, variant), grows=False) for variant in VARIANTS},
}
