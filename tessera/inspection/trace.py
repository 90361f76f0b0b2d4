"""A trace: what every memory of a model stored, recalled and predicted while it read one text."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor

from tessera.base.errors import TesseraError, expect
from tessera.base.files import writing
from tessera.base.state import CLASSES
from tessera.models.saving.state_file import TRACE, StateFile, save_values

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class MemoryTrace:
    """One memory. Q queries were traced, H heads, T tokens read.

    Attributes:
        name, layer, kind: see `Site`. recalls: whether it has weights over stored pairs.
        rows: (Q H + 1,), `pairs` and `weights`: (R,). Query q of head h recalled the pairs
            `pairs[rows[q H + h] : rows[q H + h + 1]]`, heaviest first, with these weights (which: see `trace`). Pair i
            is (key of token i, what followed it); a negative number lies before the text: -1 is the newest pair of the
            memory that it was read behind, or the last memory token at the front of a segment.
        share: (Q, H), the sum of the weights listed. num_pairs: (Q,) that the query saw. bandwidth: (Q, H), h of the
            kernel; NaN where nothing was seen, and for attention.
        ages: (H, A), the mean weight of a pair of age 2^a to 2^(a+1) - 1 over all traced queries; age 1 is the newest
            pair that a query can see.
        own_tokens, own_scores: (Q, W), the tokens that the memory's answer alone makes likeliest through the output
            layer, with log-probabilities. after_tokens, after_scores: the same of the residual stream after it.
        loss_change: (T,), nats by which each token's loss grows when the memory is taken out; head_loss_change: (H, T).
            None where that was not measured. pair_loss_change: (P, T), the same for each of the pairs
            `Trace.removed_pairs`, taken from all heads of the memory.
        leak: (H,), factor of the key's leaky average per step, its mean over the traced queries where it depends on
            what is read; None without one.
    """

    name: str
    layer: int
    kind: str
    recalls: bool
    rows: Tensor | None = None
    pairs: Tensor | None = None
    weights: Tensor | None = None
    share: Tensor | None = None
    num_pairs: Tensor | None = None
    bandwidth: Tensor | None = None
    ages: Tensor | None = None
    own_tokens: Tensor | None = None
    own_scores: Tensor | None = None
    after_tokens: Tensor | None = None
    after_scores: Tensor | None = None
    loss_change: Tensor | None = None
    head_loss_change: Tensor | None = None
    pair_loss_change: Tensor | None = None
    leak: Tensor | None = None

    @property
    def num_heads(self) -> int:
        """H; 0 for a memory that recalls nothing."""
        return 0 if self.share is None else self.share.shape[1]

    def recalled(self, query: int, head: int) -> tuple[Tensor, Tensor]:
        """Pairs and weights of the query with this number (in `Trace.queries`) and head, heaviest first.

        Raises `TesseraError`: the memory recalls nothing, or there is no such query or head.
        """
        rows, pairs, weights = self.all_recalled
        num_queries = (len(rows) - 1) // self.num_heads
        for name, number, count in (("query", query, num_queries), ("head", head, self.num_heads)):
            expect(0 <= number < count, "trace", name, f"lie in 0..{count - 1} of {self.name}", number)
        row = query * self.num_heads + head
        here = slice(int(rows[row]), int(rows[row + 1]))
        return pairs[here], weights[here]

    @property
    def all_recalled(self) -> tuple[Tensor, Tensor, Tensor]:
        """`rows`, `pairs` and `weights`.

        Raises `TesseraError`: the memory recalls nothing.
        """
        if self.rows is None or self.pairs is None or self.weights is None:
            raise TesseraError(f"trace: memory must have weights over stored pairs; got {self.name}.")
        return self.rows, self.pairs, self.weights


@dataclass(frozen=True)
class SegmentTrace:
    """The association matrices of ARMT, segment by segment: (segments, layers) each, NaN where nothing happened.

    Attributes:
        written: Frobenius norm of what the segment's memory tokens added to A, `|sum_i b_i phi(k_i) v_i^T|`. erased: of
            what the update took away, `|sum_i b_i phi(k_i) vbar_i^T|`. read: mean length of what the segment read
            from A at each position. norm: of A after the segment. gamma: mean factor of the normaliser's update.
        starts: (segments,), the first token of each. reads: (T, layers), length of what each token's position read;
            None for RMT and PRMT, whose queries read the memory tokens by attention.
    """

    written: Tensor
    erased: Tensor
    read: Tensor
    norm: Tensor
    gamma: Tensor
    starts: Tensor
    reads: Tensor | None = None


@dataclass(frozen=True)
class StoredMemory:
    """What a memory of ARMT, RMT or PRMT holds. L layers (RMT: one), K contents of each.

    Attributes:
        kind: "armt", "rmt" or "prmt". tokens_read, segments_read: how much was read into it. norms: (L,), of the
            matrix A, or of all memory tokens. strengths: (L, K), the largest singular values of A, or the length of
            each memory token. tokens, scores: (L, K, W), what the output layer makes likeliest of each content (the
            singular vector on the side of the values, or the memory token), with log-probabilities.
    """

    kind: str
    tokens_read: int
    segments_read: int
    norms: Tensor
    strengths: Tensor
    tokens: Tensor
    scores: Tensor


@dataclass(frozen=True)
class Trace:
    """What `trace` gives. A value: nothing in it belongs to the model.

    Attributes:
        model: its type and sizes. tokens: the text's tokens as text. input_ids: (T,). losses: (T,), nats of each token
            given those before it, NaN for the first. queries: (Q,), the traced positions. memories: in the order of the
            model. vocabulary: text of every token that occurs in a prediction, by id. segments: of ARMT, RMT and
            PRMT; else None. removed_pairs: (P,), the pairs whose worth was measured. stored: the memory of ARMT, RMT or
            PRMT that the text was read behind; None without one. before_tokens, before_scores: (Q, W), the tokens that
            the residual stream makes likeliest before the first memory, with log-probabilities; None without memories.
    """

    model: dict[str, str | int]
    tokens: tuple[str, ...]
    input_ids: Tensor
    losses: Tensor
    queries: Tensor
    memories: tuple[MemoryTrace, ...]
    vocabulary: dict[int, str]
    segments: SegmentTrace | None = None
    removed_pairs: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    stored: StoredMemory | None = None
    before_tokens: Tensor | None = None
    before_scores: Tensor | None = None

    _repr_html_: ClassVar[Callable[["Trace"], str]]

    def memory(self, layer: int, kind: str) -> MemoryTrace:
        """The memory of this layer and kind.

        Raises `TesseraError`: there is none.
        """
        for memory in self.memories:
            if (memory.layer, memory.kind) == (layer, kind):
                return memory
        known = ", ".join(f"{memory.kind} of layer {memory.layer}" for memory in self.memories)
        raise TesseraError(f"trace: layer and kind must name a memory; got {kind} of layer {layer}. Known: {known}.")

    def to_pandas(self) -> "pandas.DataFrame":
        """One row per recalled pair: layer, memory, head, query, pair, weight."""
        import pandas  # optional: only here

        names, parts = ["layer", "memory", "head", "query", "pair", "weight"], []
        for memory in self.memories:
            if memory.recalls:
                rows, pairs, weights = memory.all_recalled
                row = torch.arange(len(rows) - 1).repeat_interleave(rows.diff())
                heads, queries = row % memory.num_heads, self.queries[row // memory.num_heads]
                columns = (memory.layer, memory.kind, *(part.numpy() for part in (heads, queries, pairs, weights)))
                parts.append(pandas.DataFrame(dict(zip(names, columns))))
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame(columns=names)

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file: tensors by name (`memories.3.weights`), the rest as JSON in its metadata.

        Raises `TesseraError`: the file cannot be written.
        """
        with writing(path, "the trace"):
            save_values(Path(path), TRACE, vars(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote.

        Raises `TesseraError`: the file is missing, no trace, or not as it was stored.
        """
        return cls(**StateFile.open(path, "Trace.load", what=TRACE).values())


CLASSES.update({cls.__name__: cls for cls in (MemoryTrace, SegmentTrace, StoredMemory)})  # what files may hold


def is_trace(path: Path) -> bool:
    """Whether `path` is a file that `Trace.save` wrote."""
    try:
        StateFile.open(path, "is_trace", what=TRACE)
    except TesseraError:
        return False
    return True
