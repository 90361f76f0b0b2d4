"""Long-term memory: everything but the most recent steps."""

from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Float, Int
from tessera.kernels import Kernel, kernel_from_config
from tessera.memories.gated import gated_layers
from tessera.memories.pair_memory import PairMemory, PairMemoryState
from tessera.ops.kernel_regression import Window


class LongTermMemory(PairMemory):
    """Recalls the pairs `i <= T - m` (Memory Mosaics v2, section 3.3); m is the `delay` of each call.

    Pairs are stored at once and become visible when they are m steps old, so that m may change at any time. The state
    holds one key and one value per step and head.
    """

    def __init__(self, hidden_size: int, num_heads: int, kernel: Kernel | str | dict):
        kernel = kernel_from_config(kernel)
        super().__init__(kernel, Window(delay=1), **gated_layers(hidden_size, num_heads, kernel))

    @explains_mistakes
    def forward(
        self,
        x: Float[Tensor, "B T hidden"],
        state: PairMemoryState | None = None,
        documents: Int[Tensor, "B T"] | None = None,
        keep_state: bool = False,
        delay: int | Int[Tensor, " B"] = 1,
    ) -> tuple[Float[Tensor, "B T hidden"], PairMemoryState | None]:
        """See `PairMemory.forward`. `delay`: m, one for all or one per sequence (B,)."""
        return self.recall(x, state, documents, keep_state, Window(delay=delay))
