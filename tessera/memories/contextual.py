"""Contextual memory: stores the pairs of the sequence it reads, and predicts from them."""

from dataclasses import dataclass

from torch import Tensor, nn

from tessera.kernels import Kernel
from tessera.layers.bandwidth import Bandwidth
from tessera.layers.leaky_key_extractor import LeakyKeyExtractor
from tessera.layers.scaled_output import ScaledOutput
from tessera.layers.value_extractors import VALUE_EXTRACTORS
from tessera.memories.documents import continued_carry, continued_documents
from tessera.memories.pair_store import PairStore
from tessera.memories.pending import completed_pairs
from tessera.ops.kernel_regression import Window, kernel_regression
from tessera.state import State


@dataclass(frozen=True)
class ContextualState(State):
    """After step T: the pairs 1..T-1, and the pair T whose value waits for x_{T+1}."""

    pairs: PairStore
    carry: Tensor  # kbar_T (B, H, K), the key extractor's leaky average
    pending_key: Tensor  # k_T (B, H, 1, K)
    pending_value: Tensor  # now_T (B, H, 1, V): what v_T owes to x_T
    document: Tensor | None  # document of step T (B, 1); None: all steps so far belong to one


class ContextualMemory(nn.Module):
    """`y_T = sum_{i<T} w_i v_i` per head, then `W_z` over the heads (Memory Mosaics, equation 7).

    Keys by a leaky average, values that look one step ahead, weights by `kernel` with one inverse bandwidth beta per
    head. At T = 1 the memory is empty and y_1 = 0. Cost of a whole sequence: O(T^2) time, O(T) memory on the fused
    and chunked backends; of one more token: O(1) features and one query over T pairs.

    `delay` d and `mean_keys` are for published checkpoints: pairs i <= T - d are seen, and see `LeakyKeyExtractor`.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        kernel: Kernel,
        value_extractor: str = "mixed",
        bias: bool = False,
        norm_eps: float = 0.0,
        weight_dropout: float = 0.0,
        head_dropout: float = 0.0,
        free_intercept: bool = False,
        delay: int = 1,
        mean_keys: bool = False,
    ):
        super().__init__()
        head_dim = hidden_size // num_heads
        self.kernel = kernel
        self.norm_eps = norm_eps
        self.weight_dropout = weight_dropout
        self.window = Window(delay=delay)
        self.key_extractor = LeakyKeyExtractor(hidden_size, num_heads, head_dim, bias, norm_eps, mean_keys)
        self.value_extractor = VALUE_EXTRACTORS[value_extractor](hidden_size, num_heads, head_dim, bias)
        self.bandwidth = Bandwidth(num_heads, kernel, free_intercept)
        self.output = ScaledOutput(hidden_size, num_heads, bias, head_dropout)

    def forward(
        self,
        x: Tensor,
        state: ContextualState | None = None,
        documents: Tensor | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, ContextualState | None]:
        """What the memory recalls at each step of `x` (B, T, hidden): (B, T, hidden), and the state after the last.

        `state` continues an earlier call. `documents` (B, T): pairs are recalled within their document only, and
        steps of negative documents (padding) store nothing. The state is returned when `keep_state` is set.
        """
        documents = continued_documents(x, state, documents)
        keys, carry = self.key_extractor(x, continued_carry(state, documents), documents)
        now, next_ = self.value_extractor(x)
        pairs = completed_pairs(keys, now, next_, state, documents, self.norm_eps)
        slope, intercept = self.bandwidth(self.kernel)
        recalled = kernel_regression(
            keys,
            pairs.keys,
            pairs.values,
            kernel=self.kernel,
            slope=slope,
            intercept=intercept,
            window=self.window,
            query_offset=0 if state is None else state.pairs.length + 1,
            query_documents=documents,
            pair_documents=pairs.documents,
            dropout=self.weight_dropout if self.training else 0.0,
        )
        output = self.output(recalled)
        if not keep_state:
            return output, None
        document = None if documents is None else documents[:, -1:]
        return output, ContextualState(pairs, carry, keys[:, :, -1:], now[:, :, -1:], document)
