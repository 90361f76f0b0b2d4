"""The models that keep the contract of `tessera.testing`."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tessera.memories.linear_attention import VARIANTS
from tessera.models.linear_attention import LinearAttentionConfig, LinearAttentionForCausalLM
from tessera.models.lstm import LSTMConfig, LSTMForCausalLM
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.models.transformer import transformer_config
from tessera.testing.model_case import SEGMENT, STEPS
from tessera.testing.model_case import ModelCase as Case
from tests.models.armt.bases import make as wrapped

VOCABULARY = 60
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_layers": 2, "num_heads": 3}
V1 = {
    "published": {},
    "convolution": {"value_extractor": "convolution", "bias": True, "num_persistent_banks": 2},
    "post-norm": {
        "norm_position": "post",
        "tie_word_embeddings": False,
        "kernel": "entmax",
        "persistent_kernel": {"name": "entmax", "alpha": 1.8},
    },
    "contextual only": {"num_persistent_slots": 0},
    "compact": {"kernel": "triweight", "persistent_kernel": {"name": "knn", "base": "gaussian", "k": 3}},
    "normalized relu": {"kernel": "normalized_relu", "free_intercept": True},
    "training code": {
        "kernel": {"name": "normalized_relu", "min_total": 0.5},
        "contextual_delay": 2,
        "mean_keys": True,
        "key_norm_eps": 0.1,
        "persistent_key_norm_eps": 0.0,
    },
}
V2 = {
    "gaussian": {},
    "compact": {"kernel": "triweight"},
    "normalized relu": {"kernel": "normalized_relu"},
    "neighbours": {"kernel": {"name": "knn", "base": "gaussian", "k": 3}},
    "narrow": {"kernel": "entmax", "short_term_span": 2, "long_term_delay": 1},
    "distant": {"long_term_delay": 40},
    "no long-term memory": {"long_term_memory": False},
}
WINDOWS = {"intermediate_size": 40, "short_term_span": 6, "long_term_delay": 4, "training_long_term_delay": (2, 9)}


def v1(**changes: object) -> MemoryMosaicForCausalLM:
    config = {**SIZES, "num_persistent_slots": 10, "pad_token_id": 0, **changes}
    return MemoryMosaicForCausalLM(MemoryMosaicConfig(**config))


def v2(**changes: object) -> MemoryMosaicV2ForCausalLM:
    return MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**{**SIZES, **WINDOWS, "pad_token_id": 0, **changes}))


def linear(variant: str, **changes: object) -> LinearAttentionForCausalLM:
    config = {"vocab_size": VOCABULARY, "hidden_size": 16, "pad_token_id": 0, **changes}
    return LinearAttentionForCausalLM(LinearAttentionConfig(variant=variant, **config))


def lstm(**changes: object) -> LSTMForCausalLM:
    return LSTMForCausalLM(LSTMConfig(**{"vocab_size": VOCABULARY, "hidden_size": 24, "num_layers": 2, **changes}))


def _transformer() -> PreTrainedModel:
    config = transformer_config(positions="rope", **{**SIZES, "num_heads": 2}, pad_token_id=0)
    return AutoModelForCausalLM.from_config(config)


def tokens(batch: int = 2, steps: int = STEPS, seed: int = 0) -> Tensor:
    """Token indices, none of them the padding 0."""
    return torch.randint(1, VOCABULARY, (batch, steps), generator=torch.Generator().manual_seed(seed))


def read_in_parts(model: PreTrainedModel, ids: Tensor, sizes: list[int]) -> tuple[Tensor, Any]:
    """The logits of `ids` in parts of `sizes`, each read behind the state of those before it, and the last state."""
    state, logits = None, []
    for part in ids.split(sizes, 1):
        output = model(part, past_key_values=state, use_cache=True)
        state, logits = output.past_key_values, [*logits, output.logits]
    return torch.cat(logits, 1), state


def without_dropout(model: PreTrainedModel) -> PreTrainedModel:
    """`model`, whose layers leave out nothing in training either."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model


SEGMENTED = {"state": "memory_state", "packs": False, "pads_anywhere": False}
CASES = {
    **{f"v1 {name}": Case(partial(v1, **changes)) for name, changes in V1.items()},
    **{f"v2 {name}": Case(partial(v2, **changes)) for name, changes in V2.items()},
    **{f"linear attention {variant}": Case(partial(linear, variant)) for variant in VARIANTS},
    **{
        f"{kind} around {family}": Case(partial(wrapped, kind, family, segment_size=SEGMENT), **SEGMENTED)
        for kind in ("armt", "rmt", "prmt")
        for family in ("gpt2", "memory_mosaic")
    },
    "lstm": Case(
        lstm, None, continues=False, packs=False, pads_left=False, pads_anywhere=False, generates=False,
        checkpoints=False, plain=True,
    ),
    "transformer": Case(_transformer, None, packs=False, pads_anywhere=False, plain=True),
}  # fmt: skip
OF_EACH_CLASS = (
    "v1 published", "v2 compact", "linear attention gla", "armt around memory_mosaic", "rmt around gpt2",
    "prmt around gpt2", "lstm", "transformer",
)  # fmt: skip
