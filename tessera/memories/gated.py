"""The layers that the short-term and the long-term memory of Memory Mosaics v2 share."""

from typing import TypedDict

from torch import nn

from tessera.kernels import Kernel
from tessera.layers.adaptive_bandwidth import AdaptiveBandwidth
from tessera.layers.gated_key_extractor import GatedKeyExtractor
from tessera.layers.value_extractors import MixedValueExtractor


class GatedLayers(TypedDict):
    """The layers of a `PairMemory`."""

    key_extractor: nn.Module
    value_extractor: nn.Module
    bandwidth: nn.Module
    output: nn.Module


def gated_layers(hidden_size: int, num_heads: int, kernel: Kernel) -> GatedLayers:
    """Gated time-variant keys, mixed values, a bandwidth that adapts to the number of pairs (v2, section 3)."""
    head_dim = hidden_size // num_heads
    return {
        "key_extractor": GatedKeyExtractor(hidden_size, num_heads, head_dim),
        "value_extractor": MixedValueExtractor(hidden_size, num_heads, head_dim),
        "bandwidth": AdaptiveBandwidth(num_heads, kernel),
        "output": nn.Linear(hidden_size, hidden_size, bias=False),
    }
