"""Recall weights: which stored pairs answered a query, and how strongly."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.errors import expect
from tessera.inspection.attention import attention_weights, intercepted_attention
from tessera.inspection.sites import Site, find_sites
from tessera.ops.kernel_regression import Call, chosen_query_weights, intercepted


@dataclass(frozen=True)
class QueryRecall:
    """What one memory recalled for one query.

    Attributes:
        site: the memory. query: its position in the text. weights: (H, N) over the stored pairs, which sum to 1 (to 0
            where no pair was seen). num_pairs: how many pairs the query saw. bandwidth: h of the kernel (H,), in units
            of the distance between query and key; None for attention.
    Pair i of a text's memory is (key of token i, what followed it); of a persistent memory, slot i (of all its
    banks, one after the other).
    """

    site: Site
    query: int
    weights: Tensor
    num_pairs: int
    bandwidth: Tensor | None = None


@dataclass(frozen=True)
class Recall:
    """What one memory recalled for some queries of one text: `QueryRecall` with queries (Q,) in the second dimension.

    Attributes:
        weights: (H, Q, N). num_pairs: (Q,). bandwidth: (H, Q) or None.
    """

    site: Site
    queries: Tensor
    weights: Tensor
    num_pairs: Tensor
    bandwidth: Tensor | None = None


def recall_weights(
    model: PreTrainedModel, input_ids: Tensor, queries: Sequence[int] | None = None, **inputs: Tensor
) -> list[Recall]:
    """The weights of chosen queries over the stored pairs, for every memory or attention of `model`.

    `y_T = sum_i w_i v_i`: these are the w of the query at each position of `queries` (None: the last). Works for v1 and
    v2, for transformers, and for anything that is built on `kernel_regression`.

    Args:
        input_ids: (1, T). inputs: further arguments of the model's forward.
    Cost: the model's forward pass, and O(H N) memory per query and memory.

    Raises:
        TesseraError: several texts at once, a position outside the text, a model without memories.
    """
    parts: dict[str, list[QueryRecall]] = {}
    observe_recalls(model, input_ids, queries, lambda one: parts.setdefault(one.site.name, []).append(one), **inputs)
    return [_stacked(group) for group in parts.values()]


def _stacked(group: list[QueryRecall]) -> Recall:
    bandwidths = [one.bandwidth for one in group]
    return Recall(
        group[0].site,
        torch.tensor([one.query for one in group]),
        torch.stack([one.weights for one in group], 1),
        torch.tensor([one.num_pairs for one in group]),
        None if bandwidths[0] is None else torch.stack(bandwidths, 1),
    )


@torch.no_grad()
def observe_recalls(
    model: PreTrainedModel,
    input_ids: Tensor,
    queries: Sequence[int] | None,
    receive: Callable[[QueryRecall], None],
    **inputs: Tensor,
) -> object:
    """Call `receive` with what each memory recalled for each query, in the order of the model; returns its output.

    O(H N) memory whatever the number of queries, as far as `receive` keeps nothing. Arguments and errors as
    `recall_weights`.
    """
    steps = input_ids.shape[1] if input_ids.dim() == 2 else 0
    expect(steps and len(input_ids) == 1, "recall_weights", "input_ids", "be (1, T)", tuple(input_ids.shape))
    positions = [steps - 1] if queries is None else [int(query) for query in queries]
    inside = all(0 <= position < steps for position in positions)
    expect(inside, "recall_weights", "queries", f"lie in 0..{steps - 1}", positions)
    was_training = model.training
    model.eval()
    try:
        with ExitStack() as stack:
            current = stack.enter_context(running_sites(find_sites(model)))
            recorder = _Recorder(current, positions, receive)
            stack.enter_context(intercepted(recorder.regression))
            stack.callback(recorder.flush)
            if any(site.kind == "attention" for site in current.sites.values()):
                stack.enter_context(intercepted_attention(model, recorder.attention))
            return model(input_ids=input_ids, use_cache=False, **inputs)
    finally:
        model.train(was_training)


class CurrentSite:
    """Which memory runs now: `site`, or None between memories."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.sites = {site.name: site for site in sites}
        self.site: Site | None = None


@contextmanager
def running_sites(sites: Sequence[Site]) -> Iterator[CurrentSite]:
    """While it lasts, the value says which of `sites` runs."""
    current, handles = CurrentSite(sites), []

    def enter(site: Site) -> Callable[[nn.Module, tuple], None]:
        def hook(module: nn.Module, arguments: tuple) -> None:
            current.site = site

        return hook

    def leave(module: nn.Module, arguments: tuple, output: object) -> None:
        current.site = None

    for site in sites:
        handles.append(site.module.register_forward_pre_hook(enter(site)))
        handles.append(site.module.register_forward_hook(leave))
    try:
        yield current
    finally:
        for handle in handles:
            handle.remove()


class _Recorder:
    """Hands on what the memories recall; a memory of several banks is one, with the mean of their weights."""

    def __init__(self, current: CurrentSite, positions: list[int], receive: Callable[[QueryRecall], None]) -> None:
        self.current, self.positions, self.receive = current, positions, receive
        self.calls: list[Call] = []
        self.site: Site | None = None

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
        calls, self.calls = self.calls, []
        for position in self.positions if calls else ():
            banks = [chosen_query_weights(call, [position]) for call in calls]
            weights = torch.cat([bank.weights[0, :, 0] for bank in banks], -1) / len(banks)
            seen = sum(int(bank.num_pairs[0, 0]) for bank in banks)
            self.receive(QueryRecall(self.site, position, weights.cpu(), seen, banks[0].bandwidth[0, :, 0].cpu()))

    def attention(self, module, query, key, value, mask, scale, answers):
        """See `intercepted_attention`."""
        self.flush()
        site = self.current.site
        for position in self.positions if site is not None else ():
            weights = attention_weights(query, key, mask, scale, torch.tensor([position], device=key.device))
            self.receive(QueryRecall(site, position, weights[0, :, 0].cpu(), int((weights[0, 0, 0] > 0).sum())))
        return answers
