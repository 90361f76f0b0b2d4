"""The memory of pairs that contextual, short-term and long-term memories are: one algorithm, one state."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect
from tessera.base.shapes import Documents, Float, Hidden, Int
from tessera.base.state import State
from tessera.kernels import Entmax, Kernel
from tessera.layers.bandwidth import LearnedAlpha
from tessera.memories.documents import continued_carry, continued_documents, last_document, stored_documents
from tessera.memories.padded_rows import takes_padding_anywhere
from tessera.ops.gated_average import GatedAverageState
from tessera.ops.kernel_regression import Window, kernel_regression
from tessera.ops.unit_norm import unit_norm
from tessera.recall.long_memories import recall_through_index
from tessera.recall.pair_store import PairStore


@dataclass(frozen=True)
class PairMemoryState(State):
    """After step T: the finished pairs that may still be recalled, and the pair T whose value waits for x_{T+1}."""

    pairs: PairStore
    carry: Float[Tensor, "B H carried"] | GatedAverageState  # the key extractor's average
    pending_key: Float[Tensor, "B H 1 K"]  # k_T
    pending_value: Float[Tensor, "B H 1 V"]  # now_T: what v_T owes to x_T
    document: Int[Tensor, "B 1"] | None  # document of step T; None: all steps so far belong to one
    position: Int[Tensor, " B"] | None  # steps of its document read so far; None where the bandwidth counts no pairs

    @classmethod
    def joined(cls, states: Sequence[Self]) -> Self:
        """See `State.joined`. Where some have fewer pairs, documents tell which are there."""
        joined = super().joined(states)
        if joined.document is not None or joined.pairs.documents is None:
            return joined
        return replace(joined, document=torch.zeros_like(joined.pairs.documents[:, :1]))


class PairMemory(nn.Module):
    """`y_T = sum_i w_i v_i` per head over the pairs of a window of the past, then the output layer over the heads.

    Keys summarise the steps so far, values look one step ahead, and the weights are those of `kernel`. Cost of a whole
    sequence: that of the kernel regression, O(T^2) time or O(T span), O(T) memory; of one more token: one query over
    the pairs of the window. A subclass says which layers it is made of:

    Args:
        key_extractor: `(x, carry, documents) -> keys (B, H, T, K), carry`. value_extractor: `x -> now, next`, of which
            `v_T = Norm(now_T + next_{T+1})`. bandwidth: `(kernel, number of pairs (B, T)) -> slope, intercept` of the
            scores; with `counts_pairs = False` it gets None for the number. output: from the heads' answers to
            (B, T, hidden).
        window: the pairs that a query sees. norm_eps: `v / (|v| + norm_eps)`. weight_dropout: of the weights.
    """

    padding_is_in_front = False

    def __init__(
        self,
        kernel: Kernel,
        window: Window,
        *,
        key_extractor: nn.Module,
        value_extractor: nn.Module,
        bandwidth: nn.Module,
        output: nn.Module,
        norm_eps: float = 0.0,
        weight_dropout: float = 0.0,
    ):
        super().__init__()
        self.kernel = kernel
        self.window = window
        self.norm_eps = norm_eps
        self.weight_dropout = weight_dropout
        self.key_extractor = key_extractor
        self.value_extractor = value_extractor
        self.bandwidth = bandwidth
        self.output = output
        self.learned_alpha = LearnedAlpha(self._sizes()[0], kernel) if isinstance(kernel, Entmax) else None

    def combine(self, recalled: Float[Tensor, "B H T V"]) -> Hidden:
        """(B, T, hidden) of the heads' answers (B, H, T, V)."""
        return self.output(recalled.transpose(1, 2).flatten(2))

    @explains_mistakes
    def forward(
        self, x: Hidden, state: PairMemoryState | None = None, documents: Documents = None, keep_state: bool = False
    ) -> tuple[Hidden, PairMemoryState | None]:
        """What the memory recalls at each step of `x` (B, T, hidden): (B, T, hidden), and the state after the last.

        `state` continues an earlier call. `documents` (B, T): pairs are recalled within their document only, and
        steps of negative documents (padding) are passed over; but for these a document's steps are contiguous. The
        state is returned when `keep_state` is set.
        """
        return self.recall(x, state, documents, keep_state, self.window.delay)

    def begun_with(
        self, keys: Float[Tensor, "B H N K"], values: Float[Tensor, "B H N V"], document: Int[Tensor, "B 1"]
    ) -> PairMemoryState:
        """The state in front of a `document`, when these pairs (normalised here) are stored already.

        Nothing else was read: keys are averaged, and pairs counted, from the text's first step on.
        """
        batch, heads, _, width = keys.shape
        has_sizes = keys.shape == values.shape and (heads, heads * width) == self._sizes()
        shapes = [tuple(keys.shape), tuple(values.shape)]
        expect(has_sizes, type(self).__name__, "keys and values", "fit the memory's heads and width", shapes)
        documents = document.expand(-1, keys.shape[2]).contiguous()
        pairs = PairStore.of(unit_norm(keys, self.norm_eps), unit_norm(values, self.norm_eps), documents)
        nothing = keys.new_zeros(batch, 1, heads * width)
        carry = self.key_extractor(nothing)[1]  # of its form; a text of another document begins anew
        pending = keys.new_zeros(batch, heads, 1, width)
        position = documents.new_zeros(batch) if self.bandwidth.counts_pairs else None
        return PairMemoryState(pairs, carry, pending, pending, documents.new_full((batch, 1), -1), position)

    def _sizes(self) -> tuple[int, int]:
        extractor: Any = self.key_extractor
        return extractor.num_heads, extractor.projection.out_features

    @takes_padding_anywhere
    def recall(
        self,
        x: Hidden,
        state: PairMemoryState | None,
        documents: Documents,
        keep_state: bool,
        delay: int | Int[Tensor, " B"],
    ) -> tuple[Hidden, PairMemoryState | None]:
        """`forward` with `delay` in place of the window's own."""
        window = Window(delay, self.window.span)
        if x.dim() != 3 or x.shape[1] == 0:
            expect(False, type(self).__name__, "x", "be (B, T, hidden), T >= 1", tuple(x.shape))
        documents = continued_documents(x, state, documents)
        keys, carry = self.key_extractor(x, continued_carry(state, documents), documents)
        if state is not None and state.pending_key.dtype != keys.dtype:
            state = state.to(keys.dtype)  # of this model in another dtype, or under autocast
        now, next_ = self.value_extractor(x)
        pairs = completed_pairs(keys, now, next_, state, documents, self.norm_eps)
        positions = num_pairs = None
        if self.bandwidth.counts_pairs:
            positions = steps_in_document(x, state, documents)
            num_pairs = window.num_pairs(positions)
            num_pairs = num_pairs if documents is None else num_pairs * (documents >= 0)
        slope, intercept = self.bandwidth(self.kernel, num_pairs)
        dropout = self.weight_dropout if self.training else 0.0
        regression: dict[str, Any] = {
            "kernel": self.kernel if self.learned_alpha is None else self.learned_alpha(),
            "slope": slope,
            "intercept": intercept,
            "window": window,
            "query_offset": 0 if state is None else state.pairs.length + 1,
            "query_documents": documents,
        }
        recalled = None if dropout else recall_through_index(pairs, keys, **regression)
        if recalled is None:
            regression |= {"pair_documents": pairs.documents, "dropout": dropout}
            recalled = kernel_regression(keys, pairs.keys, pairs.values, **regression)
        output = self.combine(recalled)
        if not keep_state:
            return output, None
        kept = pairs if self.window.span is None else pairs.newest(self.window.span - 1)
        document = None if documents is None else documents[:, -1:]
        position = None if positions is None else positions[:, -1].expand(x.shape[0])
        return output, PairMemoryState(kept, carry, keys[:, :, -1:], now[:, :, -1:], document, position)


def steps_in_document(x: Hidden, state: PairMemoryState | None, documents: Documents) -> Int[Tensor, "#B T"]:
    """Steps counted from 1 within their document: (B, T), or (1, T) when all sequences agree."""
    steps = torch.arange(1, x.shape[1] + 1, device=x.device)[None]
    before: int | Tensor = 0
    if state is not None:
        assert state.position is not None, "a memory whose bandwidth counts pairs keeps it"
        before = state.position[:, None]
    if documents is None:
        return steps + before
    changes = documents[:, 1:] != documents[:, :-1]
    if state is not None:
        before = before * (documents[:, :1] == last_document(state, documents))
    start = pad(changes * steps[:, :-1], (1, 0)).cummax(dim=1).values
    return steps - start + before * (start == 0)


def completed_pairs(
    keys: Float[Tensor, "B H T K"],
    now: Float[Tensor, "B H T V"],
    next_: Float[Tensor, "B H T V"],
    state: PairMemoryState | None,
    documents: Documents,
    norm_eps: float = 0.0,
) -> PairStore:
    """The pairs known at the last step: those of `state`, its pending pair, and all but the last of this call.

    `v_T = Norm(now_T + next_{T+1})`.
    """
    if state is None:
        keys, now, next_, steps = keys[:, :, :-1], now[:, :, :-1], next_[:, :, 1:], documents
    else:
        keys, now = _delayed(state.pending_key, keys), _delayed(state.pending_value, now)
        steps = None if documents is None else torch.cat([last_document(state, documents), documents], dim=1)
    pairs = (keys, unit_norm(now + next_, norm_eps), None if steps is None else stored_documents(steps))
    return PairStore.of(*pairs) if state is None else state.pairs.append(*pairs)


def _delayed(pending: Tensor, steps: Tensor) -> Tensor:
    """`steps` (B, H, T, ...) moved by one: what was pending before, and all but the last."""
    return pending if steps.shape[2] == 1 else torch.cat([pending, steps[:, :, :-1]], dim=2)
