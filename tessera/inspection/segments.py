"""ARMT, RMT and PRMT segment by segment: what was written into the memory, what that erased, what was read."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from tessera.base.state import State
from tessera.inspection.reading import Reading
from tessera.inspection.trace import SegmentTrace
from tessera.layers.dpfp import dpfp
from tessera.memories.association import AssociationMemory, AssociationState
from tessera.models.recurrence import MemoryState
from tessera.models.recurrence.state import CarriedTokens
from tessera.ops.association_matrix import read_association


class SegmentObserver:
    """Watches the memory of a segmented model while a text is read: `after_segment` after each segment, then `trace`.

    RMT and PRMT have no matrix: there `written` is the length of the change of the tokens that are carried, `norm`
    their length, and the rest is NaN. O(1) memory per segment, and one number per token and layer.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading, model = reading, reading.model
        memories = getattr(model, "memories", None)
        self.memories = None if memories is None else memories.in_order()
        self.state = model.empty_memory(1) if reading.memory is None else reading.memory
        self.rows: list[list[tuple[float, ...]]] = []
        self.reads = torch.full((reading.input_ids.shape[1], model.config.num_hidden_layers), torch.nan)
        self.outputs: dict = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, the last outputs of every memory and of its projections are kept."""

        def keep(module: nn.Module, arguments: tuple, output: Tensor) -> None:
            self.outputs[module] = output

        with ExitStack() as stack:
            for memory in self.memories or ():
                for part in (memory, memory.key, memory.value, memory.gate):
                    stack.enter_context(part.register_forward_hook(keep))
            yield

    def after_segment(self, after: MemoryState | None) -> None:
        """Measure what the segment did."""
        assert after is not None, "a segmented model hands its memory on"
        part = self.reading.part
        for layer, memory in enumerate(self.memories or ()):
            read = self.outputs.get(memory)  # nothing before the first writing
            lengths = 0.0 if read is None else read[0, : part.end - part.start].float().norm(dim=-1).cpu()
            self.reads[part.start : part.end, layer] = lengths
        self.rows.append([self._row(index, *pair) for index, pair in enumerate(zip(self.state.layers, after.layers))])
        self.state = after
        self.outputs.clear()

    def _row(self, index: int, before: State, after: State) -> tuple[float, ...]:
        """written, erased, read, norm, gamma of one layer in the segment that was read last."""
        part = self.reading.part
        if self.memories is None:
            assert isinstance(before, CarriedTokens)
            assert isinstance(after, CarriedTokens)
            return carried_row(before, after)
        assert isinstance(before, AssociationState)
        assert isinstance(after, AssociationState)
        read = float(self.reads[part.start : part.end, index].mean())
        return association_row(self.memories[index], before, after, read, self.outputs)

    def trace(self) -> SegmentTrace:
        """What was measured."""
        written, erased, read, norm, gamma = (
            torch.tensor([[row[name] for row in segment] for segment in self.rows]) for name in range(5)
        )
        starts = torch.tensor([part.start for part in self.reading.parts])
        return SegmentTrace(written, erased, read, norm, gamma, starts, None if self.memories is None else self.reads)


def carried_row(before: CarriedTokens, after: CarriedTokens) -> tuple[float, ...]:
    """The numbers of memory tokens that are carried."""
    missing = float("nan")
    return _length(after.tokens - before.tokens), missing, missing, _length(after.tokens), missing


def association_row(
    memory: AssociationMemory, before: AssociationState, after: AssociationState, read: float, outputs: dict
) -> tuple[float, ...]:
    """The numbers of an association matrix."""
    strengths = outputs[memory.gate].unsqueeze(-1)
    keys = dpfp(outputs[memory.key], memory.num_rolls)
    known = read_association(before.matrix, before.normaliser, keys, eps=memory.epsilon)
    written = keys.transpose(1, 2) @ (strengths * outputs[memory.value])
    # What the update took away is what it wrote less what came of it; so it holds in either order of writing.
    erased = (
        written - (after.matrix - before.matrix)
        if memory.update_order == "sequential"
        else (keys.transpose(1, 2) @ (strengths * known))
    )
    gamma = _gamma(memory, before, keys)
    if memory.gate_normalizer and memory.gate.can_close:
        gamma = gamma * (strengths.squeeze(-1) > 0)
    return _length(written), _length(erased), read, _length(after.matrix), float(gamma.mean())


def _gamma(memory: AssociationMemory, before: AssociationState, keys: Tensor) -> Tensor:
    """`clip(1 - (z . phi(k) + eps) / (|phi(k)|^2 + eps), 0, 1)`; 1 for an empty memory and without the correction."""
    if not memory.correction or bool(before.empty.all()):
        return torch.ones(keys.shape[:2])
    known = (keys * before.normaliser[:, None]).sum(-1) + memory.epsilon
    return (1 - known / (keys.square().sum(-1) + memory.epsilon)).clamp(0, 1)


def _length(tensor: Tensor) -> float:
    return float(tensor.float().norm())
