"""Contextual memory: stores the pairs of the sequence it reads, and predicts from them."""

from torch import Tensor

from tessera.base.errors import head_width
from tessera.base.shapes import Float, Hidden
from tessera.kernels import Kernel, kernel_from_config
from tessera.layers.bandwidth import Bandwidth
from tessera.layers.key_extractors import LeakyKeyExtractor
from tessera.layers.linear import ScaledOutput
from tessera.layers.value_extractors import VALUE_EXTRACTORS
from tessera.memories.pair_memory import PairMemory
from tessera.ops.kernel_regression import Window


class ContextualMemory(PairMemory):
    """`y_T = sum_{i<T} w_i v_i` per head, then `W_z` over the heads (Memory Mosaics, equation 7).

    Keys by a leaky average, one inverse bandwidth beta per head. At T = 1 the memory is empty and y_1 = 0.

    `delay` d and `mean_keys` are for published checkpoints: pairs i <= T - d are seen, and see `LeakyKeyExtractor`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        kernel: Kernel | str | dict,
        value_extractor: str = "mixed",
        bias: bool = False,
        norm_eps: float = 0.0,
        weight_dropout: float = 0.0,
        head_dropout: float = 0.0,
        free_intercept: bool = False,
        delay: int = 1,
        mean_keys: bool = False,
    ):
        head_dim, kernel = head_width("ContextualMemory", hidden_size, num_heads), kernel_from_config(kernel)
        super().__init__(
            kernel,
            Window(delay=delay),
            key_extractor=LeakyKeyExtractor(hidden_size, num_heads, head_dim, bias, norm_eps, mean_keys),
            value_extractor=VALUE_EXTRACTORS[value_extractor](hidden_size, num_heads, head_dim, bias),
            bandwidth=Bandwidth(num_heads, kernel, free_intercept),
            output=ScaledOutput(hidden_size, num_heads, bias, head_dropout),
            norm_eps=norm_eps,
            weight_dropout=weight_dropout,
        )

    def combine(self, recalled: Float[Tensor, "B H T V"]) -> Hidden:
        """See `PairMemory.combine`; the heads are scaled first."""
        return self.output(recalled)
