"""Long-term memory: everything but the most recent steps."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from tessera.memories.gated import GatedMemory, Reading
from tessera.ops.kernel_regression import Window


class LongTermMemory(GatedMemory):
    """Recalls the pairs `i <= T - m` (Memory Mosaics v2, section 3.3); m is the `delay` of each call.

    Pairs are stored at once and become visible when they are m steps old, so that m may change at any time. A whole
    sequence costs O(T^2) time (as the kernel's backend does it), one more token one query over T - m pairs. The
    state holds one key and one value per step and head.
    """

    def num_pairs(self, positions: Tensor, delay: int | Tensor) -> Tensor:
        """max(T - m, 0)."""
        delay = delay[:, None] if isinstance(delay, Tensor) else delay
        return (positions - delay).clamp(min=0)

    def recall(self, reading: Reading, delay: int | Tensor) -> Tensor:
        """Queries delayed by m - 1 steps see what a contextual memory sees: no mask is needed."""
        steps, offset = reading.queries.shape[2], reading.offset
        if isinstance(delay, Tensor):
            return self._recall_each(reading, delay)
        visible = offset + steps - delay
        if visible <= 0 and not torch.is_grad_enabled():
            return torch.zeros_like(reading.queries)
        if visible <= 0:  # zeros too, but every parameter gets a gradient (zero): distributed training waits for it
            return reading.regress(self.kernel, Window(delay=delay))
        if steps == 1:
            return reading.select(slice(None), slice(0, visible), 0).regress(self.kernel, None)
        if offset > 0:
            return reading.select(slice(None), slice(0, visible), offset).regress(self.kernel, Window(delay=delay))
        late = reading.select(slice(delay - 1, None), slice(0, visible), 0)
        return pad(late.regress(self.kernel, Window(delay=1)), (0, 0, delay - 1, 0))

    def _recall_each(self, reading: Reading, delay: Tensor) -> Tensor:
        """One delay per sequence: the same, with the queries shifted by each sequence's own delay."""
        if reading.offset > 0:
            return reading.regress(self.kernel, Window(delay=delay))
        steps = torch.arange(reading.queries.shape[2], device=delay.device)
        shift = delay[:, None] - 1
        # Past the end any query will do: its answer is not read.
        late = _shifted(reading, (steps + shift).clamp(max=steps.shape[0] - 1))
        # The first shifted query sees nothing and is the answer for all steps before the delay.
        return _take(late.regress(self.kernel, Window(delay=1)), (steps - shift).clamp(min=0))


def _shifted(reading: Reading, index: Tensor) -> Reading:
    """The queries at `index` (B, T) in place of all, over the same pairs."""
    return Reading(
        _take(reading.queries, index),
        reading.pairs,
        reading.offset,
        _take(reading.slope.unsqueeze(-1), index).squeeze(-1),
        None if reading.intercept is None else _take(reading.intercept.unsqueeze(-1), index).squeeze(-1),
        None if reading.documents is None else reading.documents.gather(1, index),
    )


def _take(tensor: Tensor, index: Tensor) -> Tensor:
    """Steps `index` (B, T) of a tensor (B or 1, H, T, width)."""
    tensor = tensor.expand(index.shape[0], -1, -1, -1)
    return tensor.gather(2, index[:, None, :, None].expand(-1, tensor.shape[1], -1, tensor.shape[3]))
