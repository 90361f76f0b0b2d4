"""ARMT, RMT and PRMT segment by segment: what was written into the memory, what that erased, what was read."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.inspection.trace import SegmentTrace
from tessera.layers.dpfp import dpfp
from tessera.memories.association import AssociationMemory, AssociationState
from tessera.models.recurrence import SegmentedForCausalLM
from tessera.ops.association_matrix import read_association
from tessera.state import State


@torch.no_grad()
def trace_segments(model: SegmentedForCausalLM, input_ids: Tensor) -> SegmentTrace:
    """One text (1, T), read segment by segment. See `SegmentTrace` for what is measured.

    RMT and PRMT have no matrix: there `written` is the length of the change of the tokens that are carried, `norm`
    their length, and the rest is NaN. Cost: that of reading the text; O(1) memory per segment.
    """
    state, rows = model.empty_memory(1), []
    with _observed(model) as observed:
        for part in input_ids.split(model.config.segment_size, 1):
            observed.clear()
            after = model(part, memory_state=state, skip_logits=True).memory_state
            rows.append([_row(*layer, observed) for layer in _layers(model, state, after)])
            state = after
    columns = [torch.tensor([[row[name] for row in segment] for segment in rows]) for name in range(5)]
    return SegmentTrace(*columns)


def _layers(model: PreTrainedModel, before, after) -> Iterator[tuple[AssociationMemory | None, State, State]]:
    memories = getattr(model, "memories", None) or [None] * len(before.layers)
    yield from zip(memories, before.layers, after.layers)


@contextmanager
def _observed(model: PreTrainedModel) -> Iterator[dict]:
    """The last outputs of every memory's projections, by module."""
    outputs: dict = {}
    handles = []
    for memory in getattr(model, "memories", ()):
        for part in (memory.query, memory.key, memory.value, memory.strength):
            handles.append(part.register_forward_hook(lambda module, _, output: outputs.__setitem__(module, output)))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _row(memory: AssociationMemory | None, before: State, after: State, observed: dict) -> tuple[float, ...]:
    """written, erased, read, norm, gamma of one layer in one segment."""
    missing = float("nan")
    if memory is None:
        return _length(after.tokens - before.tokens), missing, missing, _length(after.tokens), missing
    keys = dpfp(observed[memory.key], memory.num_rolls)
    strengths = torch.sigmoid(observed[memory.strength])
    known = read_association(before.matrix, before.normaliser, keys, eps=memory.eps)
    written = keys.transpose(1, 2) @ (strengths * observed[memory.value])
    # What the update took away is what it wrote less what came of it; so it holds in either order of writing.
    erased = (
        written - (after.matrix - before.matrix)
        if memory.order == "sequential"
        else (keys.transpose(1, 2) @ (strengths * known))
    )
    return (
        _length(written),
        _length(erased),
        _read(memory, before, observed),
        _length(after.matrix),
        float(_gamma(memory, before, keys).mean()),
    )


def _read(memory: AssociationMemory, before: AssociationState, observed: dict) -> float:
    if memory.query not in observed:  # nothing was written yet, so nothing is read
        return 0.0
    queries = dpfp(observed[memory.query], memory.num_rolls)
    answers = read_association(before.matrix, before.normaliser, queries, eps=memory.eps)
    return float(answers.norm(dim=-1).mean())


def _gamma(memory: AssociationMemory, before: AssociationState, keys: Tensor) -> Tensor:
    """`clip(1 - (z . phi(k) + eps) / (|phi(k)|^2 + eps), 0, 1)`; 1 for an empty memory and without the correction."""
    if not memory.correction or bool(before.empty.all()):
        return torch.ones(keys.shape[:2])
    known = (keys * before.normaliser[:, None]).sum(-1) + memory.eps
    return (1 - known / (keys.square().sum(-1) + memory.eps)).clamp(0, 1)


def _length(tensor: Tensor) -> float:
    return float(tensor.float().norm())
