"""The short-term and the long-term memory of Memory Mosaics v2."""

from torch import Tensor, nn

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect, head_width
from tessera.base.shapes import Documents, Hidden, Int
from tessera.kernels import Kernel, kernel_from_config
from tessera.layers.bandwidth import AdaptiveBandwidth
from tessera.layers.key_extractors import GatedKeyExtractor
from tessera.layers.value_extractors import MixedValueExtractor
from tessera.memories.pair_memory import PairMemory, PairMemoryState
from tessera.ops.kernel_regression import Window


class GatedMemory(PairMemory):
    """Gated time-variant keys, mixed values, a bandwidth that adapts to the number of pairs (v2, section 3)."""

    def __init__(self, hidden_size: int, num_heads: int, kernel: Kernel | str | dict, window: Window):
        kernel = kernel_from_config(kernel)
        head_dim = head_width("a memory of Memory Mosaics v2", hidden_size, num_heads)
        super().__init__(
            kernel,
            window,
            key_extractor=GatedKeyExtractor(hidden_size, num_heads, head_dim),
            value_extractor=MixedValueExtractor(hidden_size, num_heads, head_dim),
            bandwidth=AdaptiveBandwidth(num_heads, kernel),
            output=nn.Linear(hidden_size, hidden_size, bias=False),
        )


class ShortTermMemory(GatedMemory):
    """Recalls the pairs `T - h < i <= T - 1` (Memory Mosaics v2, section 3.3): h - 1 pairs at most; h is `span`.

    A whole sequence costs O(T h) time, one more token O(h). The state holds between h and 2h pairs, whatever T.
    """

    def __init__(self, hidden_size: int, num_heads: int, kernel: Kernel | str | dict, span: int):
        expect(span >= 2, "ShortTermMemory", "span", "be at least 2 (a window of 1 holds no pair)", span)
        super().__init__(hidden_size, num_heads, kernel, Window(delay=1, span=span))


class LongTermMemory(GatedMemory):
    """Recalls the pairs `i <= T - m` (Memory Mosaics v2, section 3.3); m is the `delay` of each call.

    Pairs are stored at once and become visible when they are m steps old, so that m may change at any time. The state
    holds one key and one value per step and head.
    """

    def __init__(self, hidden_size: int, num_heads: int, kernel: Kernel | str | dict):
        super().__init__(hidden_size, num_heads, kernel, Window(delay=1))

    @explains_mistakes
    def forward(
        self,
        x: Hidden,
        state: PairMemoryState | None = None,
        documents: Documents = None,
        keep_state: bool = False,
        delay: int | Int[Tensor, " B"] = 1,
    ) -> tuple[Hidden, PairMemoryState | None]:
        """See `PairMemory.forward`. `delay`: m, one for all or one per sequence (B,)."""
        return self.recall(x, state, documents, keep_state, delay)
