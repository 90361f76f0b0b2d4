"""What the short-term and the long-term memory of Memory Mosaics v2 have in common."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from tessera.kernels import Kernel
from tessera.layers.adaptive_bandwidth import AdaptiveBandwidth
from tessera.layers.gated_key_extractor import GatedKeyExtractor
from tessera.layers.value_extractors import MixedValueExtractor
from tessera.memories.documents import continued_documents, last_document
from tessera.memories.pair_store import PairStore
from tessera.memories.pending import completed_pairs
from tessera.ops.gated_average import GatedAverageState
from tessera.ops.kernel_regression import Call, Window, choose_backend
from tessera.state import State


@dataclass(frozen=True)
class GatedState(State):
    """After step T: the finished pairs that may still be recalled, and the pair T whose value waits for x_{T+1}."""

    pairs: PairStore
    carry: GatedAverageState  # the key extractor's average
    pending_key: Tensor  # k_T (B, H, 1, K)
    pending_value: Tensor  # what v_T owes to x_T (B, H, 1, V)
    document: Tensor | None  # document of step T (B, 1); None: all steps so far belong to one
    position: Tensor  # how many steps of its document have been read (B,)


@dataclass(frozen=True)
class Reading:
    """One call of a memory: queries, and the pairs they may see.

    Query j stands at position `offset + j`, pair i at position i. Scores are `slope * (query . key) + intercept`.
    """

    queries: Tensor  # (B, H, T, K)
    pairs: PairStore
    offset: int
    slope: Tensor  # (B or 1, H, T)
    intercept: Tensor | None
    documents: Tensor | None  # of the queries (B, T)

    def select(self, steps: slice, pairs: slice, offset: int) -> Self:
        """Some queries over some pairs; `offset` is the first query's position among these pairs."""
        store = self.pairs
        return Reading(
            self.queries[:, :, steps],
            PairStore.of(
                store.keys[:, :, pairs],
                store.values[:, :, pairs],
                None if store.documents is None else store.documents[:, pairs],
            ),
            offset,
            self.slope[:, :, steps],
            None if self.intercept is None else self.intercept[:, :, steps],
            None if self.documents is None else self.documents[:, steps],
        )

    def regress(self, kernel: Kernel, window: Window | None) -> Tensor:
        """The answers (B, H, T, V) of these pairs."""
        call = self.call(kernel, window)
        return choose_backend(call).run(call)

    def call(self, kernel: Kernel, window: Window | None) -> Call:
        """The kernel regression that answers."""
        pairs, documents = self.pairs, (self.documents, self.pairs.documents)
        scales = (self.slope, self.intercept)
        return Call(self.queries, pairs.keys, pairs.values, kernel, *scales, window, self.offset, *documents)


class GatedMemory(nn.Module, ABC):
    """Gated time-variant keys, values that look one step ahead, a bandwidth that adapts to the number of pairs.

    `y_T = sum_i w_i v_i` over a window of the past, then `W_z` over the heads (Memory Mosaics v2, section 3). A
    subclass says which window: how many pairs it holds (`num_pairs`) and what they recall (`recall`).
    """

    def __init__(self, hidden_size: int, num_heads: int, kernel: Kernel):
        super().__init__()
        head_dim = hidden_size // num_heads
        self.kernel = kernel
        self.key_extractor = GatedKeyExtractor(hidden_size, num_heads, head_dim)
        self.value_extractor = MixedValueExtractor(hidden_size, num_heads, head_dim)
        self.bandwidth = AdaptiveBandwidth(num_heads, kernel)
        self.output = nn.Linear(hidden_size, hidden_size, bias=False)

    @abstractmethod
    def num_pairs(self, positions: Tensor, delay: int | Tensor) -> Tensor:
        """How many pairs the window holds at steps `positions` (B, T), counted from 1 within their document."""

    @abstractmethod
    def recall(self, reading: Reading, delay: int | Tensor) -> Tensor:
        """The answers (B, H, T, V)."""

    def kept(self, pairs: PairStore) -> PairStore:
        """The pairs that a later step may recall."""
        return pairs

    def forward(
        self,
        x: Tensor,
        state: GatedState | None = None,
        documents: Tensor | None = None,
        keep_state: bool = False,
        delay: int | Tensor = 1,
    ) -> tuple[Tensor, GatedState | None]:
        """What the memory recalls at each step of `x` (B, T, hidden): (B, T, hidden), and the state after the last.

        `state` continues an earlier call. `documents` (B, T): pairs are recalled within their document only, and
        steps of negative documents (padding) store nothing; a document's steps are contiguous. `delay`: the age from
        which a pair is recalled, one for all or one per sequence (B,). The state is returned when `keep_state` is set.
        """
        documents = continued_documents(x, state, documents)
        keys, carry = self.key_extractor(x, _continued_average(state, documents), documents)
        now, next_ = self.value_extractor(x)
        pairs = completed_pairs(keys, now, next_, state, documents)
        positions = _positions(x, state, documents)
        held = self.num_pairs(positions, delay)
        slope, intercept = self.bandwidth(self.kernel, held if documents is None else held * (documents >= 0))
        offset = 0 if state is None else state.pairs.length + 1
        recalled = self.recall(Reading(keys, pairs, offset, slope, intercept, documents), delay)
        output = self.output(recalled.transpose(1, 2).flatten(2))
        if not keep_state:
            return output, None
        document = None if documents is None else documents[:, -1:]
        position = positions[:, -1].expand(x.shape[0])
        return output, GatedState(self.kept(pairs), carry, keys[:, :, -1:], now[:, :, -1:], document, position)


def _continued_average(state: GatedState | None, documents: Tensor | None) -> GatedAverageState | None:
    """The average to continue from, emptied where a new document begins."""
    if state is None or documents is None:
        return None if state is None else state.carry
    return state.carry.kept((documents[:, :1] == last_document(state, documents))[:, 0])


def _positions(x: Tensor, state: GatedState | None, documents: Tensor | None) -> Tensor:
    """Steps counted from 1 within their document: (B, T), or (1, T) when all sequences agree."""
    steps = torch.arange(1, x.shape[1] + 1, device=x.device)[None]
    before = 0 if state is None else state.position[:, None]
    if documents is None:
        return steps + before
    changes = documents[:, 1:] != documents[:, :-1]
    if state is not None:
        before = before * (documents[:, :1] == last_document(state, documents))
    start = torch.nn.functional.pad(changes * steps[:, :-1], (1, 0)).cummax(dim=1).values
    return steps - start + before * (start == 0)
