"""Make a trace: one forward pass that is watched, and one more for each part that is taken out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tessera.errors import expect
from tessera.inspection.lens import Lens
from tessera.inspection.recall import QueryRecall, observe_recalls
from tessera.inspection.removal import Removal, loss_of
from tessera.inspection.segments import trace_segments
from tessera.inspection.sites import LAYER, Site, find_sites
from tessera.inspection.trace import MemoryTrace, Trace
from tessera.kernels import Gaussian
from tessera.layers.leaky_key_extractor import LeakyKeyExtractor
from tessera.models.recurrence import SegmentedForCausalLM

AGE_BINS = 48  # ages up to 2^48
REMOVALS = ("none", "memories", "heads")


@dataclass
class _Recalls:
    """What one memory recalled, query by query, in few numbers."""

    rows: list[int] = field(default_factory=lambda: [0])
    pairs: list[Tensor] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    share: list[Tensor] = field(default_factory=list)
    num_pairs: list[int] = field(default_factory=list)
    bandwidth: list[Tensor] = field(default_factory=list)
    age_sums: Tensor | None = None
    age_counts: Tensor | None = None


def trace(
    model: PreTrainedModel,
    input_ids: Tensor,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    queries: Sequence[int] | None = None,
    share: float = 0.99,
    predictions: int = 5,
    removals: str = "memories",
    progress: bool = False,
) -> Trace:
    """What every memory of `model` recalled and predicted while it read `input_ids` (1, T).

    Args:
        tokenizer: gives tokens as text; without one they are numbers. queries: positions to trace (None: all).
        share: of memories whose kernel gives weight to all pairs, the heaviest pairs with this share are listed; of
            others all pairs with weight. predictions: how many words for each memory and query.
        removals: "none"; "memories": also the loss without each memory; "heads": and without each of its heads.
    Cost: one forward pass, O(H N) memory per traced query, and one pass per removal.

    Raises:
        TesseraError: several texts at once, fewer than two tokens, a position outside the text, a model without
            memories.
    """
    where = "trace"
    expect(removals in REMOVALS, where, "removals", "be one of " + ", ".join(REMOVALS), repr(removals))
    expect(0 < share <= 1, where, "share", "lie in (0, 1]", share)
    expect(input_ids.dim() == 2, where, "input_ids", "be (1, T)", tuple(input_ids.shape))
    steps = input_ids.shape[1]
    expect(steps >= 2, where, "input_ids", "hold at least two tokens", steps)
    positions = list(range(steps)) if queries is None else [int(query) for query in queries]
    if isinstance(model, SegmentedForCausalLM):
        return _trace_segmented(model, input_ids, tokenizer)
    sites = find_sites(model)
    recalls: dict[str, _Recalls] = {}
    with _streams(model, sites, positions) as streams:
        output = observe_recalls(model, input_ids, positions, lambda one: _take(recalls, one, share))
    losses = _losses(output.logits, input_ids)
    lens = Lens(model)
    memories = []
    for site in tqdm(sites, desc="without each memory", disable=not progress or removals == "none", leave=False):
        seen = _recalled_fields(recalls[site.name]) if site.name in recalls else {}
        predicted = _predicted_fields(lens, streams, site, predictions)
        removed = _removed_fields(model, input_ids, site, losses, removals, len(seen.get("share", [[]])[0]))
        memories.append(
            MemoryTrace(site.name, site.layer, site.kind, bool(seen), leak=_leak(site), **seen, **predicted, **removed)
        )
    tokens, vocabulary = _tokens(tokenizer, input_ids), _texts(tokenizer, memories)
    return Trace(
        _about(model), tokens, input_ids[0].cpu(), losses, torch.tensor(positions), tuple(memories), vocabulary
    )


@torch.no_grad()
def _trace_segmented(
    model: SegmentedForCausalLM, input_ids: Tensor, tokenizer: PreTrainedTokenizerBase | None
) -> Trace:
    """ARMT, RMT and PRMT: what went through their memories, segment by segment; the base's own parts are not traced."""
    losses = _losses(model(input_ids).logits, input_ids)
    segments = trace_segments(model, input_ids)
    nothing = torch.empty(0, dtype=torch.long)
    return Trace(_about(model), _tokens(tokenizer, input_ids), input_ids[0].cpu(), losses, nothing, (), {}, segments)


def _losses(logits: Tensor, input_ids: Tensor) -> Tensor:
    """Nats of each token given those before it, (T,); NaN for the first."""
    losses = cross_entropy(logits[0, :-1].float(), input_ids[0, 1:], reduction="none").cpu()
    return torch.cat([torch.full((1,), torch.nan), losses])


def _take(recalls: dict[str, _Recalls], one: QueryRecall, share: float) -> None:
    """Add what one memory recalled for one query."""
    kept = recalls.setdefault(one.site.name, _Recalls())
    everywhere = one.site.kind == "attention" or isinstance(one.site.module.kernel, Gaussian)
    shares = []
    for weights in one.weights:
        values, pairs = weights.sort(descending=True)
        count = int((values > 0).sum())
        if everywhere and count:
            count = min(count, int((values.cumsum(0) < share * values.sum()).sum()) + 1)
        kept.pairs.append(pairs[:count].int())
        kept.weights.append(values[:count].float())
        kept.rows.append(kept.rows[-1] + count)
        shares.append(values[:count].sum())
    kept.share.append(torch.stack(shares).float())
    kept.num_pairs.append(one.num_pairs)
    missing = torch.full((len(one.weights),), torch.nan)
    kept.bandwidth.append(missing if one.bandwidth is None else one.bandwidth.float())
    if one.site.kind != "persistent":
        _add_ages(kept, one)


def _add_ages(kept: _Recalls, one: QueryRecall) -> None:
    """Sum the weights by age: bin a holds the pairs of age 2^a to 2^(a+1) - 1. Age 1 is the newest that can be seen."""
    newest = one.query + (one.site.kind == "attention")  # attention sees its own position
    pairs = torch.arange(min(newest, one.weights.shape[1]))
    bins = (newest - pairs).double().log2().floor().long()
    if kept.age_sums is None:
        kept.age_sums, kept.age_counts = torch.zeros(len(one.weights), AGE_BINS), torch.zeros(AGE_BINS)
    kept.age_sums.index_add_(1, bins, one.weights[:, pairs].float())
    kept.age_counts.index_add_(0, bins, torch.ones(len(bins)))


def _recalled_fields(kept: _Recalls) -> dict[str, Tensor]:
    fields = {
        "rows": torch.tensor(kept.rows),
        "pairs": torch.cat(kept.pairs),
        "weights": torch.cat(kept.weights),
        "share": torch.stack(kept.share),
        "num_pairs": torch.tensor(kept.num_pairs),
        "bandwidth": torch.stack(kept.bandwidth),
    }
    if kept.age_sums is not None:
        used = kept.age_counts > 0
        fields["ages"] = kept.age_sums[:, used] / kept.age_counts[used]
    return fields


@contextmanager
def _streams(model: PreTrainedModel, sites: Sequence[Site], positions: Sequence[int]) -> Iterator[dict[str, Tensor]]:
    """What enters each layer and what each memory adds, at the traced positions, by the module's name."""
    streams: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    handles = []

    def keep(name: str, hidden: Any) -> None:
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        streams[name] = hidden[0, positions].detach()

    for name in dict.fromkeys(_layer_of(site) for site in sites):
        hook: Callable = lambda module, arguments, keywords, name=name: keep(  # noqa: E731
            name, arguments[0] if arguments else keywords["hidden_states"]
        )
        handles.append(modules[name].register_forward_pre_hook(hook, with_kwargs=True))
    for site in sites:
        handles.append(site.module.register_forward_hook(lambda m, a, output, name=site.name: keep(name, output)))
    try:
        yield streams
    finally:
        for handle in handles:
            handle.remove()


def _layer_of(site: Site) -> str:
    """The name of the layer that the memory is in."""
    match = LAYER.search(site.name + ".")
    return site.name[: match.end() - 1]


def _predicted_fields(lens: Lens, streams: dict[str, Tensor], site: Site, count: int) -> dict[str, Tensor]:
    """Likeliest words of the memory's answer alone, and of the stream with it added."""
    own = streams[site.name]
    layer = _layer_of(site)
    streams[layer] = streams[layer] + own  # what follows in this layer comes on top
    own_tokens, own_scores = lens.likeliest(own, count)
    after_tokens, after_scores = lens.likeliest(streams[layer], count)
    return {
        "own_tokens": own_tokens.int().cpu(),
        "own_scores": own_scores.cpu(),
        "after_tokens": after_tokens.int().cpu(),
        "after_scores": after_scores.cpu(),
    }


def _removed_fields(
    model: PreTrainedModel, input_ids: Tensor, site: Site, losses: Tensor, removals: str, num_heads: int
) -> dict[str, Tensor]:
    if removals == "none":
        return {}
    fields = {"loss_change": loss_of(model, input_ids, Removal(site)) - losses}
    if removals == "heads" and num_heads:
        without = [loss_of(model, input_ids, Removal(site, head)) - losses for head in range(num_heads)]
        fields["head_loss_change"] = torch.stack(without)
    return fields


def _leak(site: Site) -> Tensor | None:
    """The factor of the key's leaky average per step, where it is a constant of each head."""
    extractor = getattr(site.module, "key_extractor", None)
    return extractor.decay().detach().float().cpu() if isinstance(extractor, LeakyKeyExtractor) else None


def _about(model: PreTrainedModel) -> dict[str, str | int]:
    config = model.config
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    sizes = {name: getattr(config, name) for name in names if isinstance(getattr(config, name, None), int)}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {"type": config.model_type, "class": type(model).__name__, "parameters": parameters, **sizes}


def _texts(tokenizer: PreTrainedTokenizerBase | None, memories: Sequence[MemoryTrace]) -> dict[int, str]:
    predicted = [part for memory in memories for part in (memory.own_tokens, memory.after_tokens) if part is not None]
    tokens = torch.cat([part.flatten() for part in predicted]).unique().tolist() if predicted else []
    return {token: _text(tokenizer, token) for token in tokens}


def _tokens(tokenizer: PreTrainedTokenizerBase | None, input_ids: Tensor) -> tuple[str, ...]:
    return tuple(_text(tokenizer, token) for token in input_ids[0].tolist())


def _text(tokenizer: PreTrainedTokenizerBase | None, token: int) -> str:
    return str(token) if tokenizer is None else tokenizer.decode([token])
