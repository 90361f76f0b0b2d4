"""Short-term memory: the last h steps."""

from tessera.base.errors import expect
from tessera.kernels import Kernel, kernel_from_config
from tessera.memories.gated import gated_layers
from tessera.memories.pair_memory import PairMemory
from tessera.ops.kernel_regression import Window


class ShortTermMemory(PairMemory):
    """Recalls the pairs `T - h < i <= T - 1` (Memory Mosaics v2, section 3.3): h - 1 pairs at most; h is `span`.

    A whole sequence costs O(T h) time, one more token O(h). The state holds between h and 2h pairs, whatever T.
    """

    def __init__(self, hidden_size: int, num_heads: int, kernel: Kernel | str | dict, span: int):
        expect(span >= 2, "ShortTermMemory", "span", "be at least 2 (a window of 1 holds no pair)", span)
        kernel = kernel_from_config(kernel)
        super().__init__(kernel, Window(delay=1, span=span), **gated_layers(hidden_size, num_heads, kernel))
