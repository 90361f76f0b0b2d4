"""Make a trace: one forward pass that is watched, and one more for each part that is taken out."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.errors import expect
from tessera.inspection.recall import LAYER, Recall, Site, find_sites, observe_recalls, own_residual
from tessera.inspection.removal import Removal, without
from tessera.inspection.segments import Lens, SegmentObserver, describe_memory
from tessera.inspection.text import UNFINISHED, Reading, TokenTexts
from tessera.inspection.trace import MemoryTrace, Trace
from tessera.kernels import Gaussian
from tessera.layers.key_extractors import GatedKeyExtractor, LeakyKeyExtractor
from tessera.models.recurrence import MemoryState
from tessera.models.sizes import num_parameters
from tessera.models.stack_state import StackState
from tessera.ops.kernel_regression.interception import of_this_thread

AGE_BINS = 48  # ages up to 2^48
REMOVALS = ("none", "memories", "heads")
DECAY = ".decay"  # name of a memory's gated rates among the streams


@dataclass
class _Recalls:
    """What one memory recalled, query by query, in few numbers.

    They are bytes in a row: many small tensors between the large ones of each query would keep the heap from shrinking.
    """

    rows: list[int] = field(default_factory=lambda: [0])
    pairs: bytearray = field(default_factory=bytearray)
    weights: bytearray = field(default_factory=bytearray)
    share: bytearray = field(default_factory=bytearray)
    bandwidth: bytearray = field(default_factory=bytearray)
    num_pairs: list[int] = field(default_factory=list)
    age_sums: Tensor | None = None
    age_counts: Tensor = field(default_factory=lambda: torch.zeros(AGE_BINS))


def trace(
    model: PreTrainedModel,
    input_ids: Tensor,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    queries: Sequence[int] | None = None,
    share: float = 0.99,
    most_pairs: int = 1000,
    predictions: int = 5,
    removals: str = "memories",
    removed_pairs: Sequence[int] = (),
    state: StackState | MemoryState | None = None,
    progress: bool = False,
) -> Trace:
    """What every memory of `model` recalled and predicted while it read `input_ids` (1, T).

    Args:
        tokenizer: gives tokens as text; without one they are numbers. queries: positions to trace (None: all).
        share, most_pairs: of memories whose kernel gives weight to all pairs, the heaviest pairs with this share are
            listed, but of each query and head at most so many; of others all pairs with weight. predictions: how many
            words for each memory and query.
        removals: "none"; "memories": also the loss without each memory; "heads": and without each of its heads.
        removed_pairs: also the loss without each of these stored pairs, in each memory that stores pairs of the text.
        state: what was read before the text, see `recall_weights`; its pairs have negative numbers.
    Cost: one forward pass, O(H N) memory per traced query, and one pass per removal.
    Raises `TesseraError`: several texts at once, fewer than two tokens, a position outside the text, a pair that a
        memory does not store, a model without memories.
    """
    where = "trace"
    expect(removals in REMOVALS, where, "removals", "be one of " + ", ".join(REMOVALS), repr(removals))
    expect(0 < share <= 1, where, "share", "lie in (0, 1]", share)
    expect(most_pairs >= 1, where, "most_pairs", "be at least 1", most_pairs)
    reading = Reading(model, input_ids, state)
    steps = input_ids.shape[1]
    expect(steps >= 2, where, "input_ids", "hold at least two tokens", steps)
    positions = sorted(set(range(steps) if queries is None else (int(query) for query in queries)))
    sites = find_sites(model)
    recalls: dict[str, _Recalls] = {}
    segments = SegmentObserver(reading) if reading.is_segmented else None
    streams = _Streams(reading, sites, positions)
    with streams.watching(), segments.watching() if segments else nullcontext():
        after = (segments.after_segment,) if segments else ()
        losses = observe_recalls(reading, positions, partial(_take, recalls, reading, share, most_pairs), *after)
    removing = _Removing(reading, losses, removals, [int(pair) for pair in removed_pairs])
    lens = Lens(reading.base)
    before_tokens, before_scores = lens.likeliest(streams.rows[streams.layers[sites[0].layer]], predictions)
    memories = []
    for site in tqdm(sites, desc="without each memory", disable=not progress or removals == "none", leave=False):
        seen = _recalled_fields(recalls[site.name]) if site.name in recalls else {}
        memories.append(_memory_trace(site, seen, lens, streams, removing, predictions))
    stored = describe_memory(model, state, predictions) if segments and isinstance(state, MemoryState) else None
    likeliest = [memory_tokens for memory in memories for memory_tokens in (memory.own_tokens, memory.after_tokens)]
    likeliest += [before_tokens, stored.tokens if stored else None]
    texts = TokenTexts(tokenizer)
    return Trace(
        _about(model),
        texts.of_text(input_ids[0].tolist(), UNFINISHED),
        input_ids[0].cpu(),
        losses,
        torch.tensor(positions, dtype=torch.long),
        tuple(memories),
        texts.of_words(_distinct(likeliest)),
        segments.trace() if segments else None,
        torch.tensor(removing.pairs, dtype=torch.long),
        stored,
        before_tokens.int().cpu(),
        before_scores.cpu(),
    )


def trace_memory(model: PreTrainedModel, state: MemoryState, tokenizer: PreTrainedTokenizerBase | None = None) -> Trace:
    """What a stored memory of ARMT, RMT or PRMT holds, without any text: a trace whose `stored` says so.

    Raises `TesseraError`: a model that does not read in segments, or a state that is not one of its own.
    """
    stored, nothing = describe_memory(model, state), torch.empty(0, dtype=torch.long)
    vocabulary = TokenTexts(tokenizer).of_words(_distinct([stored.tokens]))
    return Trace(_about(model), (), nothing, torch.empty(0), nothing, (), vocabulary, stored=stored)


def _take(recalls: dict[str, _Recalls], reading: Reading, share: float, most_pairs: int, recall: Recall) -> None:
    """Add what one memory recalled for one query."""
    kept = recalls.setdefault(recall.site.name, _Recalls())
    everywhere = recall.kernel is None or isinstance(recall.kernel, Gaussian)
    for weights in recall.weights[:, 0]:
        if everywhere:  # no sort of all pairs: behind a million it would take more memory than the weights
            values, columns = weights.topk(min(most_pairs, len(weights)))
            count = int((values.cumsum(0) < share * weights.sum()).sum()) + 1
        else:
            values, columns = weights.sort(descending=True)
            count = len(values)
        count = min(count, int((values > 0).sum()))
        kept.pairs += _bytes(recall.pairs[columns[:count]], torch.int32)
        kept.weights += _bytes(values[:count], torch.float32)
        kept.rows.append(kept.rows[-1] + count)
        kept.share += _bytes(values[:count].sum(), torch.float32)
    kept.num_pairs.append(int(recall.num_pairs))
    missing = torch.full((len(recall.weights),), torch.nan)
    kept.bandwidth += _bytes(missing if recall.bandwidth is None else recall.bandwidth, torch.float32)
    if recall.site.kind != "persistent":
        _add_ages(kept, recall, reading.oldest)


def _bytes(values: Tensor, dtype: torch.dtype) -> bytes:
    return values.to(dtype).numpy().tobytes()


def _tensor(values: bytearray, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(values, dtype=dtype) if values else torch.empty(0, dtype=dtype)


def _add_ages(kept: _Recalls, recall: Recall, oldest: int) -> None:
    """Sum the weights by age: bin a holds the pairs of age 2^a to 2^(a+1) - 1. Age 1 is the newest that can be seen."""
    newest = int(recall.queries) + (recall.site.kind == "attention")  # attention sees its own position
    if kept.age_sums is None:
        kept.age_sums = torch.zeros(len(recall.weights), AGE_BINS)
    columns = (recall.pairs < newest) & (recall.pairs >= oldest)
    bins = (newest - recall.pairs[columns]).double().log2().floor().long()
    kept.age_sums.index_add_(1, bins, recall.weights[:, 0, columns].float())
    first = 2 ** torch.arange(AGE_BINS)  # a bin's lowest age; all pairs count, also those that the memory does not see
    kept.age_counts += ((2 * first - 1).clamp(max=newest - oldest) - first + 1).clamp(min=0)


def _recalled_fields(kept: _Recalls) -> dict[str, Tensor]:
    fields = {
        "rows": torch.tensor(kept.rows),
        "pairs": _tensor(kept.pairs, torch.int32),
        "weights": _tensor(kept.weights, torch.float32),
        "share": _tensor(kept.share, torch.float32).view(len(kept.num_pairs), -1),
        "num_pairs": torch.tensor(kept.num_pairs),
        "bandwidth": _tensor(kept.bandwidth, torch.float32).view(len(kept.num_pairs), -1),
    }
    if kept.age_sums is not None:
        used = int((kept.age_counts > 0).sum())  # a query that sees an age sees all lower ones
        fields["ages"] = kept.age_sums[:, :used] / kept.age_counts[:used]
    return fields


class _Streams:
    """What enters each layer, what each memory adds, and the rates of gated keys, at the traced positions.

    Attributes:
        rows: (Q, hidden) by the name of the layer or memory; 0 where nothing was added.
    """

    def __init__(self, reading: Reading, sites: Sequence[Site], positions: Sequence[int]) -> None:
        self.reading, self.sites, self.positions = reading, sites, positions
        self.rows: dict[str, Tensor] = {}
        self.layers = {site.layer: _layer_of(site) for site in sites if site.kind != "association"}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, a text that is read is watched."""
        modules = dict(self.reading.model.named_modules())
        with ExitStack() as stack:

            def keep_output(module: nn.Module, name: str) -> None:
                stack.enter_context(module.register_forward_hook(of_this_thread(partial(self._take_output, name))))

            for name in self.layers.values():
                take = of_this_thread(partial(self._take_input, name))
                stack.enter_context(modules[name].register_forward_pre_hook(take, with_kwargs=True))
            for site in self.sites:
                keep_output(site.module, site.name)
                extractor = getattr(site.module, "key_extractor", None)
                if isinstance(extractor, GatedKeyExtractor):
                    keep_output(extractor.decay, site.name + DECAY)
            yield

    def leak(self, site: Site) -> Tensor | None:
        """The factor of the key's leaky average per step (H,), its mean over the traced positions if it is gated."""
        extractor = getattr(site.module, "key_extractor", None)
        if isinstance(extractor, LeakyKeyExtractor):
            return extractor.decay().detach().float().cpu()
        rates = self.rows.get(site.name + DECAY)
        return None if rates is None or not len(rates) else (-rates.abs()).exp().mean(0).float().cpu()

    def _take_input(self, name: str, module: nn.Module, arguments: tuple, keywords: dict[str, Any]) -> None:
        self._keep(name, arguments[0] if arguments else keywords["hidden_states"])

    def _take_output(self, name: str, module: nn.Module, arguments: tuple, output: Tensor | tuple) -> None:
        hidden, stream = output[0] if isinstance(output, tuple) else output, own_residual(module, arguments)
        self._keep(name, hidden if stream is None else hidden - stream)

    def _keep(self, name: str, hidden: Tensor) -> None:
        part = self.reading.part
        rows = slice(bisect_left(self.positions, part.start), bisect_left(self.positions, part.end))
        steps = [part.step(position) for position in self.positions[rows]]
        if name not in self.rows:
            self.rows[name] = hidden.new_zeros(len(self.positions), hidden.shape[-1])
        self.rows[name][rows] = hidden[0, steps].detach()


def _layer_of(site: Site) -> str:
    """The name of the layer that the memory is in."""
    match = LAYER.search(site.name + ".")
    assert match is not None, f"{site.name} is in no layer"
    return site.name[: match.end() - 1]


def _memory_trace(
    site: Site, seen: dict[str, Tensor], lens: Lens, streams: _Streams, removing: "_Removing", predictions: int
) -> MemoryTrace:
    """One memory's part; `seen`: what it recalled, empty where it recalled nothing."""
    layer = streams.layers[site.layer]
    own = streams.rows.get(site.name, torch.zeros_like(streams.rows[layer]))  # zeros: it was never read
    streams.rows[layer] = streams.rows[layer] + own  # what follows in this layer comes on top
    fields = {**seen, **removing.fields(site, seen["share"].shape[1] if seen else 0)}
    for name, stream in (("own", own), ("after", streams.rows[layer])):
        tokens, scores = lens.likeliest(stream, predictions)
        fields |= {f"{name}_tokens": tokens.int().cpu(), f"{name}_scores": scores.cpu()}
    return MemoryTrace(site.name, site.layer, site.kind, bool(seen), leak=streams.leak(site), **fields)


@dataclass(frozen=True)
class _Removing:
    """By how much the losses of a text grow without parts of the model, one pass each."""

    reading: Reading
    losses: Tensor
    removals: str
    pairs: list[int]

    def fields(self, site: Site, num_heads: int) -> dict[str, Tensor]:
        """Of one memory, its heads (as `removals` says) and the `pairs` that it stores."""
        fields = {}
        if self.removals != "none":
            fields["loss_change"] = self._change(Removal(site))
        if self.removals == "heads" and num_heads:
            changes = [self._change(Removal(site, head)) for head in range(num_heads)]
            fields["head_loss_change"] = torch.stack(changes)
        if self.pairs and num_heads and site.kind != "persistent":
            changes = [self._change(Removal(site, pair=pair)) for pair in self.pairs]
            fields["pair_loss_change"] = torch.stack(changes)
        return fields

    def _change(self, removal: Removal) -> Tensor:
        with without(self.reading, removal):
            return self.reading.losses() - self.losses


def _about(model: PreTrainedModel) -> dict[str, str | int]:
    config = model.config
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes = {name: getattr(config, name) for name in names if isinstance(getattr(config, name, None), int)}
    return {"type": config.model_type, "class": type(model).__name__, "parameters": num_parameters(model), **sizes}


def _distinct(predicted: Sequence[Tensor | None]) -> list[int]:
    return torch.cat([tokens.flatten().cpu() for tokens in predicted if tokens is not None]).unique().tolist()
