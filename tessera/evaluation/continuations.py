"""How likely a model finds given continuations of given contexts; what contexts share is read once (`prefix_tree`)."""

import inspect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel

from tessera.base.errors import expect
from tessera.models.carried_state import last_logits, reads_on
from tessera.models.causality import evaluating
from tessera.models.forking import fork, state_bytes

LOGITS_AT_ONCE = 1 << 29
LEAST_PIECE, LARGEST_PIECE = 64, 4096  # tokens read at once
FORKED_BYTES = 4 << 30
# Tokens that a prefix of its own must save: a call on a GPU takes as long as some hundred tokens of a batch.
LEAST_SAVING = {"cpu": 16, "accelerator": 512}


@dataclass
class SharedPrefix:
    """The first `end` tokens of several sequences.

    Attributes:
        sequence: the number of one of them. end: how many tokens they share. rows: the sequences that are read on their
            own from here. branches: longer prefixes of some of them.
    """

    sequence: int
    end: int
    rows: list[int] = field(default_factory=list)
    branches: list["SharedPrefix"] = field(default_factory=list)


def prefix_tree(sequences: Sequence[Sequence[int]], worth: int) -> SharedPrefix:
    """The tree of the prefixes that are worth being read once.

    A prefix of n sequences is, if reading it once instead of n times saves at least `worth` tokens. The root has
    `end` 0 unless all sequences share such a prefix.

    >>> tree = prefix_tree([[1, 2, 3, 4], [1, 2, 3, 5], [7, 8]], worth=3)
    >>> tree.end, tree.rows, tree.branches
    (0, [2], [SharedPrefix(sequence=0, end=3, rows=[0, 1], branches=[])])
    """
    order = sorted(range(len(sequences)), key=lambda number: tuple(sequences[number]))
    common = [_common(sequences[first], sequences[second]) for first, second in itertools.pairwise(order)]
    root = SharedPrefix(order[0] if order else 0, 0)
    pending = [(root, 0, len(order))] if order else []
    while pending:  # a range of the sorted sequences, below a node that they share
        node, first, last = pending.pop()
        if last - first == 1:
            node.rows.append(order[first])
            continue
        shared = min(common[first : last - 1])
        if (shared - node.end) * (last - first - 1) >= worth:
            branch = SharedPrefix(order[first], shared)
            node.branches.append(branch)
            node = branch
        cuts = [index + 1 for index in range(first, last - 1) if common[index] == shared]
        pending += [(node, begin, end) for begin, end in zip([first, *cuts], [*cuts, last])]
    return root.branches[0] if not root.rows and len(root.branches) == 1 else root


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    return sum(1 for _ in itertools.takewhile(lambda tokens: tokens[0] == tokens[1], zip(first, second)))


class Request(NamedTuple):
    """Token ids: what is read first (at least one), and what is asked about (at least one)."""

    context: Sequence[int]
    continuation: Sequence[int]


class Likelihood(NamedTuple):
    """log p(continuation | context) in nats, and whether each of its tokens is the likeliest at its place."""

    log_likelihood: float
    is_greedy: bool


@dataclass(frozen=True)
class _Row:
    """One text to read, and the requests about it."""

    tokens: tuple[int, ...]
    requests: tuple[int, ...]


def continuation_likelihoods(
    model: PreTrainedModel, requests: Sequence[Request], *, batch_size: int = 8, progress: bool = False
) -> list[Likelihood]:
    """For each request `sum_t log p(continuation_t | context, continuation_1..t-1)`, in float32, in order of requests.

    Args:
        batch_size: rows per call; fewer where their forked states would exceed 4 GiB.
    Raises `TesseraError`: an empty context or continuation, or logits that are NaN.
    """
    for request in requests:
        for name, tokens in (("context", request.context), ("continuation", request.continuation)):
            expect(len(tokens) > 0, "continuation_likelihoods", f"the {name}", "hold at least one token", "none")
    rows = _rows(requests)
    reader = Reader(model)
    totals = [0.0] * len(requests)
    greedy = [True] * len(requests)
    # The last token of a context is read with its continuation: so no logits are needed inside a shared prefix.
    heads = [row.tokens[: min(len(requests[number].context) for number in row.requests) - 1] for row in rows]
    worth = LEAST_SAVING["cpu" if model.device.type == "cpu" else "accelerator"]
    tree = prefix_tree(heads if reader.continues else [() for _ in rows], worth)
    bar = tqdm(total=len(requests), disable=not progress, unit=" requests")
    with evaluating(model), torch.no_grad(), bar:
        for batch, state, start in _batches(reader, tree, rows, batch_size):
            for row, index, logits in reader.logits([row.tokens[start:] for row in batch], state):
                first = start + index  # position of the first of these logits
                for number in batch[row].requests:
                    predicted = _targets(requests[number], first, logits.shape[0])
                    if predicted is not None:
                        targets, steps = predicted
                        next_tokens = torch.tensor(targets, device=logits.device)[:, None]
                        values = logits[steps]
                        totals[number] += float(values.log_softmax(-1).gather(1, next_tokens).sum())
                        greedy[number] &= bool((values.argmax(-1, keepdim=True) == next_tokens).all())
            bar.update(sum(len(row.requests) for row in batch))
    # The likeliest of several would be the first.
    expect(not any(map(math.isnan, totals)), "continuation_likelihoods", "the model's logits", "be numbers", "NaN")
    return [Likelihood(*pair) for pair in zip(totals, greedy)]


def _rows(requests: Sequence[Request]) -> list[_Row]:
    """The texts, each once: the last token of a continuation need not be read."""
    texts: dict[tuple[int, ...], list[int]] = {}
    for number, (context, continuation) in enumerate(requests):
        texts.setdefault((*context, *continuation[:-1]), []).append(number)
    return [_Row(tokens, tuple(numbers)) for tokens, numbers in sorted(texts.items())]


def _targets(request: Request, first: int, count: int) -> tuple[Sequence[int], slice] | None:
    """The tokens of a request that `count` logits from position `first` on predict, and the places of these logits."""
    begin = len(request.context) - 1
    low, high = max(begin, first), min(begin + len(request.continuation), first + count)
    return None if low >= high else (request.continuation[low - begin : high - begin], slice(low - first, high - first))


def _batches(
    reader: "Reader", tree: SharedPrefix, rows: list[_Row], batch_size: int
) -> Iterator[tuple[list[_Row], Any, int]]:
    """(rows, the state forked for them, how many of their tokens it has read); longer rows first."""
    pending: list[tuple[SharedPrefix, Any, int]] = [(tree, None, 0)]
    while pending:
        node, state, start = pending.pop()
        if node.end > start:
            state = reader.read(rows[node.sequence].tokens[start : node.end], state)
        if node.rows:
            size = batch_size
            if state is not None:
                size = max(1, min(size, FORKED_BYTES // max(1, state_bytes(state))))
            longest_first = sorted(node.rows, key=lambda number: (-len(rows[number].tokens), rows[number].tokens))
            groups = itertools.groupby(
                (rows[number] for number in longest_first), lambda row: reader.varies_with_length and len(row.tokens)
            )
            for group in (list(group) for _, group in groups):
                for begin in range(0, len(group), size):
                    batch = group[begin : begin + size]
                    yield batch, None if state is None else fork(state, len(batch)), node.end
        pending += [(branch, state, node.end) for branch in node.branches]


class Reader:
    """Reads token ids with a model, in pieces if it can go on from a state: so not all logits are held at once.

    Attributes:
        continues: whether it can, so that reading in parts equals reading at once.
        varies_with_length: whether a call's length decides rotary frequencies, so that rows of a call have one length.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        alignment = getattr(model.config, "segment_alignment", "left")  # others cut a text by its length
        self._is_cut_by_length = alignment != "left"
        takes_state = "past_key_values" in inspect.signature(model.forward).parameters
        self._varying = [module for module in model.modules() if _varies_with_length(module)]
        self.varies_with_length = bool(self._varying)
        is_as_at_once = not self._is_cut_by_length and not self.varies_with_length
        self.continues = takes_state and is_as_at_once and reads_on(model)
        self._last_logits = last_logits(model)
        self._vocabulary = model.config.get_text_config().vocab_size

    @torch.no_grad()
    def read(self, tokens: Sequence[int], state: Any = None) -> Any:
        """The state after `tokens` and what `state` (of one row, left as it is) has read."""
        ids = torch.tensor([tokens], device=self.model.device)
        state = None if state is None else fork(state, 1)
        for piece in ids.split(LARGEST_PIECE, 1):
            state = self.model(piece, past_key_values=state, use_cache=True, **self._last_logits).past_key_values
        return state

    def logits(self, texts: Sequence[Sequence[int]], state: Any = None) -> Iterator[tuple[int, int, Tensor]]:
        """(row, place, logits (t, V) in float32 of the t tokens of this row from that place on), piece by piece."""
        for module in self._varying:
            for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
                setattr(module, name, 0)  # else transformers keeps the frequencies of a longer call before
        longest = max(map(len, texts))
        ids = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=self.model.device)
        size = longest
        if self.continues:
            size = min(max(LOGITS_AT_ONCE // (len(texts) * self._vocabulary), LEAST_PIECE), LARGEST_PIECE)
        for start in range(0, longest, size):
            piece = ids[:, start : start + size]
            more = start + size < longest
            options = {"past_key_values": state, "use_cache": more} if self.continues else {}
            if self._is_cut_by_length:
                lengths = torch.tensor([len(text) for text in texts], device=ids.device)
                is_token = torch.arange(longest, device=ids.device) < lengths[:, None]
                options = {"attention_mask": is_token.long()}
            output = self.model(piece, **options)
            state = output.past_key_values if more else None
            for row, text in enumerate(texts):
                if len(text) > start:
                    logits = output.logits[row, : len(text) - start]
                    yield row, start, logits if logits.dtype == torch.float64 else logits.float()


def _varies_with_length(module: nn.Module) -> bool:
    """Whether these are rotary positions of LongRoPE (Phi-3 of 128k) or dynamic NTK, in some models by layer type."""
    kind = getattr(module, "rope_type", None)
    return not {"dynamic", "longrope"}.isdisjoint(kind.values() if isinstance(kind, dict) else [kind])
