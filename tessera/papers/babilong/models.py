"""The models that are compared, as model sections of a recipe."""

from typing import Any

WHOLE_TEXT = ("mamba", "mosaic", "mosaic_v2")  # read the text without segments
LAST_SEGMENT = "last_segment"
GATED = "armt_mosaic_gated"
THRESHOLD = "armt_mosaic_threshold"
NAMES = {
    "armt_mosaic": "ARMT around a Memory Mosaic",
    GATED: "ARMT around a Memory Mosaic, strengths down to 0, cost of writes",
    THRESHOLD: "ARMT around a Memory Mosaic, cost of writes, then a threshold",
    "armt": "ARMT around GPT-NeoX",
    "armt_mosaic_v2": "ARMT around a Memory Mosaic v2",
    "armt_no_correction": "ARMT around a Memory Mosaic, no correction",
    "rmt": "RMT around a Memory Mosaic",
    "prmt": "PRMT around a Memory Mosaic",
    "mamba": "Mamba, whole text",
    "mosaic": "Memory Mosaic, whole text",
    "mosaic_v2": "Memory Mosaic v2, whole text",
    LAST_SEGMENT: "transformer, last segment only",
}


def section(name: str, width: int, segment: int, memory_tokens: int, memory_dim: int) -> dict[str, Any]:
    """The model section of `name`; bases of mosaics have two layers, transformers and Mamba four."""
    mosaic = {
        "type": "memory_mosaic",
        "hidden_size": width,
        "num_layers": 2,
        "num_heads": 4,
        "num_persistent_slots": width,
        "initialization": "fan_in",
    }
    span = max(4, segment // 4)
    mosaic_v2 = {
        "type": "memory_mosaic_v2",
        "hidden_size": width,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": width,
        "short_term_span": span,
        "long_term_delay": span // 4,
        "training_long_term_delay": [span // 4, span],
        "initializer_range": width**-0.5,
        "tie_word_embeddings": True,
    }
    neox = {
        "type": "gpt_neox",
        "hidden_size": width,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": width,
        "max_position_embeddings": 2 * (segment + memory_tokens),
        "initializer_range": width**-0.5,  # by fan-in, as the mosaics'
        "tie_word_embeddings": True,
    }
    memory = {"segment_size": segment, "num_memory_tokens": memory_tokens}
    armt = {"type": "armt", **memory, "memory_dim": memory_dim}
    gated = {**armt, "base": mosaic, "strength_stretch": 0.1, "gate_normalizer": False}
    return {
        GATED: gated,
        THRESHOLD: gated,  # the threshold comes with a stage
        "armt_mosaic": {**armt, "base": mosaic},
        "armt": {**armt, "base": neox},
        "armt_mosaic_v2": {**armt, "base": mosaic_v2},
        "armt_no_correction": {**armt, "base": mosaic, "correction": False},
        "rmt": {"type": "rmt", **memory, "base": mosaic},
        "prmt": {"type": "prmt", **memory, "base": mosaic},
        "mamba": {"type": "mamba", "hidden_size": width, "num_hidden_layers": 4, "state_size": 16},
        "mosaic": {**mosaic, "num_layers": 4},
        "mosaic_v2": {**mosaic_v2, "num_layers": 4},
        LAST_SEGMENT: {
            "type": "transformer",
            "positions": "rope",
            "hidden_size": width,
            "num_layers": 4,
            "num_heads": 4,
        },
    }[name]
