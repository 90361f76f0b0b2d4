"""Recall weights: which memories a model has, which stored pairs answered a query, and how strongly."""

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError, expect
from tessera.inspection.attention_weights import (
    attention_weights,
    intercepted_attention,
    is_exchangeable,
    returned_weights,
)
from tessera.inspection.text import Part, Reading
from tessera.kernels import Kernel
from tessera.memories.association import AssociationMemory
from tessera.models.recurrence import MemoryState
from tessera.models.stack_state import StackState
from tessera.ops.kernel_regression import Call, chosen_query_weights, intercepted
from tessera.ops.kernel_regression.interception import of_this_thread

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|memories)\.(\d+)\.")
ATTENTION = re.compile(r"(?:^|\.)(attn|attention|self_attn|self_attention)$")
NETWORK = re.compile(r"(?:^|\.)(mlp|feed_forward|persistent)$")


@dataclass(frozen=True)
class Site:
    """A memory of a model.

    Attributes:
        name: of the module in the model. layer: counted from 0. kind: "contextual", "persistent", "short_term",
            "long_term", "attention", "network" (a feed-forward network) and "association" (the matrix of an ARMT
            layer), which recall nothing that could be listed, ...
        module: itself. recalls: whether it has weights over stored pairs.
    """

    name: str
    layer: int
    kind: str
    module: nn.Module
    recalls: bool = True


def own_residual(module: nn.Module, arguments: tuple) -> Tensor | None:
    """The residual stream to which `module`, called with `arguments`, adds its answer itself (BLOOM's do); or None."""
    return arguments[1] if "residual" in inspect.signature(module.forward).parameters else None


def find_sites(model: PreTrainedModel) -> list[Site]:
    """The memories of `model` in the order in which they run.

    A memory is a module with a `kernel` (those of this library, and of anybody who builds on `kernel_regression`); in
    a transformer its attention; each feed-forward network; and in ARMT each association matrix, which is read before
    its layer runs.
    Raises `TesseraError`: none was recognised.
    """
    sites = [site for name, module in model.named_modules() if (site := _site(name, module)) is not None]
    if not sites:
        raise TesseraError(
            f"inspection: model must have memories or attention in its layers; found none in {type(model).__name__}."
        )
    if any(site.kind == "association" for site in sites):
        sites.sort(key=lambda site: (site.layer, site.kind != "association"))
    return sites


def _site(name: str, module: nn.Module) -> Site | None:
    layer = LAYER.search(name + ".")
    if layer is None:
        return None
    index, last = int(layer[1]), name.rsplit(".", 1)[-1]
    if isinstance(module, AssociationMemory):
        return Site(name, index, "association", module, recalls=False)
    if isinstance(getattr(module, "kernel", None), Kernel):
        return Site(name, index, last, module)
    # GPT-NeoX and BERT keep attention inside attention: the outer module counts.
    if ATTENTION.search(name) and not ATTENTION.search(name.rpartition(".")[0]):
        return Site(name, index, "attention", module)
    return Site(name, index, "network", module, recalls=False) if NETWORK.search(name) else None


@dataclass(frozen=True)
class Recall:
    """What one memory recalled for some queries of one text.

    Attributes:
        site: the memory. queries: (Q,), their positions in the text. weights: (H, Q, N) over the stored pairs, which
            sum to 1 (to 0 where no pair was seen). pairs: (N,), the number of each of them. num_pairs: (Q,), how many a
            query saw. bandwidth: (H, Q), h of the kernel, in units of the distance between query and key; None for
            attention. kernel: that made the weights; None: softmax.
    Pairs are numbered as in `MemoryTrace`; pair i of a persistent memory is slot i (of all its banks).
    """

    site: Site
    queries: Tensor
    weights: Tensor
    pairs: Tensor
    num_pairs: Tensor
    bandwidth: Tensor | None = None
    kernel: Kernel | None = None


def recall_weights(
    model: PreTrainedModel,
    input_ids: Tensor,
    queries: Sequence[int] | None = None,
    state: StackState | MemoryState | None = None,
    **inputs: object,
) -> list[Recall]:
    """The weights of chosen queries over the stored pairs, for every memory or attention of `model`.

    `y_T = sum_i w_i v_i`: these are the w of the query at each position of `queries` (None: the last). Works for v1 and
    v2, for transformers (also with our kernels as attention), for the base models inside ARMT, RMT and PRMT, and for
    anything that is built on `kernel_regression`. Attention that is not computed by transformers' `AttentionInterface`
    (BLOOM's) makes all its weights anyway, T x N; they are read from its output.

    Args:
        input_ids: (1, T). state: what was read before: that of an earlier call of a v1 or v2 model
            (`past_key_values`), or the memory of an ARMT, RMT or PRMT (`memory_state`). inputs: further arguments of
            the model's forward.
    Cost: the model's forward pass, and O(H N) memory per query and memory.
    Raises `TesseraError`: several texts at once, a position outside the text, a model without memories.
    """
    reading = Reading(model, input_ids, state, **inputs)
    positions = [input_ids.shape[1] - 1] if queries is None else [int(query) for query in queries]
    parts: dict[str, dict[int, Recall]] = {}

    def keep(recall: Recall) -> None:
        parts.setdefault(recall.site.name, {})[int(recall.queries)] = recall

    observe_recalls(reading, positions, keep)
    return [_stacked([group[position] for position in positions]) for group in parts.values()]


def _stacked(group: list[Recall]) -> Recall:
    """The recalls of single queries as one."""
    pairs = torch.cat([recall.pairs for recall in group]).unique()
    weights = group[0].weights.new_zeros(len(group[0].weights), len(group), len(pairs))
    for number, recall in enumerate(group):
        weights[:, number, torch.searchsorted(pairs, recall.pairs)] = recall.weights[:, 0]
    queries, num_pairs = (torch.cat([getattr(recall, name) for recall in group]) for name in ("queries", "num_pairs"))
    bandwidths = [recall.bandwidth for recall in group if recall.bandwidth is not None]
    bandwidth = torch.cat(bandwidths, 1) if bandwidths else None
    return Recall(group[0].site, queries, weights, pairs, num_pairs, bandwidth, group[0].kernel)


def observe_recalls(
    reading: Reading,
    positions: Sequence[int],
    receive: Callable[[Recall], None],
    after_part: Callable[[Any], None] = lambda state: None,
) -> Tensor:
    """Call `receive` with what each memory recalled for each query, in the order of the model; returns the losses.

    O(H N) memory whatever the number of queries, as far as `receive` keeps nothing. `after_part`: see
    `Reading.losses`.
    Raises `TesseraError`: a position outside the text, a model without memories or whose layers run several times.
    """
    steps = reading.input_ids.shape[1]
    inside = all(0 <= position < steps for position in positions)
    expect(inside, "recall_weights", "queries", f"lie in 0..{steps - 1}", list(positions))
    with ExitStack() as stack:
        current = stack.enter_context(running_sites(find_sites(reading.model)))
        recorder = _Recorder(current, reading, positions, receive)
        stack.enter_context(intercepted(recorder.regression))
        for site in current.sites.values():
            once = of_this_thread(partial(recorder.once, site.name))
            stack.enter_context(site.module.register_forward_pre_hook(once))
        attentions = [site.module for site in current.sites.values() if site.kind == "attention"]
        if attentions and is_exchangeable(reading.base):
            stack.enter_context(intercepted_attention(reading.base, recorder.attention))
        elif attentions:
            stack.enter_context(returned_weights(attentions, recorder.returned))

        def end_part(state: Any) -> None:
            recorder.flush()
            after_part(state)

        losses = reading.losses(end_part)
    idle = [
        site.name for site in current.sites.values() if site.kind == "attention" and site.name not in recorder.parts
    ]
    expect(not idle, "inspection", "every attention", "run", f"{', '.join(idle)}, which did not")
    return losses


class CurrentSite:
    """Which memory runs now: `site`, or None between memories."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = {site.name: site for site in sites}
        self.site: Site | None = None

    def become(self, site: Site | None, *call: object) -> None:
        """Note that `site` begins, or None: that it has ended; called by PyTorch with the module's `call`."""
        self.site = site


@contextmanager
def running_sites(sites: Sequence[Site]) -> Iterator[CurrentSite]:
    """While it lasts, the value says which of `sites` runs."""
    current = CurrentSite(sites)
    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(site.module.register_forward_pre_hook(of_this_thread(partial(current.become, site))))
            stack.enter_context(site.module.register_forward_hook(of_this_thread(partial(current.become, None))))
        yield current


class _Recorder:
    """Hands on what the memories recall; a memory of several banks is one, with the mean of their weights."""

    def __init__(
        self, current: CurrentSite, reading: Reading, positions: Sequence[int], receive: Callable[[Recall], None]
    ) -> None:
        self.current, self.reading, self.positions, self.receive = current, reading, positions, receive
        self.calls: list[Call] = []
        self.site: Site | None = None
        self.parts: dict[str, Part] = {}  # what each memory, and its attention, has read last

    def once(self, name: str, *call: object) -> None:
        """Must be called once in a part: in a loop (HRM) or beside another (DiffLlama), weights are several."""
        part, model = self.reading.part, type(self.reading.base).__name__
        got = f"{name} of {model}, which runs several times"
        expect(self.parts.get(name) is not part, "inspection", "every memory", "run once in a pass", got)
        self.parts[name] = part

    def regression(self, call: Call, run: Callable[[Call], Tensor]) -> Tensor:
        """Keep the calls of one memory until the next begins."""
        if self.current.site is not self.site:
            self.flush()
            self.site = self.current.site
        if self.site is not None:
            self.calls.append(call)
        return run(call)

    def flush(self) -> None:
        """Compute the weights of the memory that has ended, query by query."""
        calls, self.calls, site = self.calls, [], self.site
        if not calls or site is None:
            return
        for position in self._read_now():
            banks = [chosen_query_weights(call, [self.reading.part.step(position)]) for call in calls]
            weights = torch.cat([bank.weights[0] for bank in banks], -1) / len(banks)
            seen = sum(int(bank.num_pairs[0, 0]) for bank in banks)
            offset = None if site.kind == "persistent" else calls[0].query_offset
            self._receive(site, position, weights, offset, seen, banks[0].bandwidth[0].cpu(), calls[0].kernel)

    def attention(self, module, query, key, value, mask, scale, answers, kernel):
        """See `intercepted_attention`."""
        if self.site is self.current.site:
            self.calls.clear()  # attention by a kernel is a kernel regression, too
        self.flush()
        if self.current.site is not None:
            self.site = site = self.current.site
            self.once(f"attention in {site.name}")
            for position in self._read_now():
                step = torch.tensor([self.reading.part.step(position)], device=key.device)
                weights, seen = attention_weights(query, key, mask, scale, step, kernel)
                self._receive(site, position, weights[0], 0, int(seen[0, 0, 0].sum()), kernel=kernel)
        return answers

    def returned(self, module: nn.Module, weights: Tensor) -> None:
        """See `returned_weights`."""
        self.flush()
        self.site = site = next(site for site in self.current.sites.values() if site.module is module)
        for position in self._read_now():
            row = weights[0][:, [self.reading.part.step(position)]]
            self._receive(site, position, row, 0, int((row > 0).any(0).sum()))

    def _read_now(self) -> list[int]:
        part = self.reading.part
        return [position for position in self.positions if part.start <= position < part.end]

    def _receive(
        self,
        site: Site,
        position: int,
        weights: Tensor,
        offset: int | None,
        seen: int,
        bandwidth: Tensor | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        """Hand on the weights (H, 1, N) of a query; `offset`: see `Part.pairs`, None where pairs are slots."""
        if offset is None:
            pairs = torch.arange(weights.shape[-1])
        else:
            pairs = self.reading.part.pairs(weights.shape[-1], offset)
            pairs = pairs[pairs < self.reading.part.end]  # memory tokens at the end of a segment are last, and not seen
        query, count = torch.tensor([position]), torch.tensor([seen])
        self.receive(Recall(site, query, weights[..., : len(pairs)].cpu(), pairs, count, bandwidth, kernel))
