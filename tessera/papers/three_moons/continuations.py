"""Continue a sequence from every context length at once, each as if nothing after it had been read."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from tessera.base.errors import expect
from tessera.kernels.workspace import Workspace
from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.papers.three_moons.task import deviation

# Sequences and contexts done together: their scores stay in the second-level cache.
SEQUENCES = 8
CONTEXTS = 64


@torch.no_grad()
def continuation_errors(memory: LinearContextualMemory, x: Tensor, horizon: int) -> Tensor:
    """Mean absolute deviation of `horizon` predictions from what follows, for each sequence and context length.

    For x (B, T, input) the result is (B, T - horizon): entry C - 1 is for the context x_1..x_C, continued by the memory
    reading its own predictions (as its `generate` does) and compared with x_{C+1}..x_{C+horizon}.
    """
    expect(bool(memory.window.delay == 1), "continuation_errors", "memory", "have delay 1", memory.window.delay)
    contexts = x.shape[1] - horizon
    errors = x.new_empty(x.shape[0], contexts)
    workspace = Workspace()
    for rows in torch.arange(x.shape[0]).split(SEQUENCES):
        group = x[rows]
        # Row C - 1: the observations after x_C.
        future = group[:, 1:].unfold(1, horizon, 1).mT
        # The longest contexts first: they set the size of the reused memory.
        for first in reversed(range(0, contexts, CONTEXTS)):
            cut = slice(first, min(first + CONTEXTS, contexts))
            errors[rows, cut] = deviation(_continue(memory, group, cut, horizon, workspace), future[:, cut])
    return errors


def repetition_errors(x: Tensor, horizon: int) -> Tensor:
    """The same of who repeats the last observation of each context."""
    future = x[:, 1:].unfold(1, horizon, 1).mT
    return deviation(x[:, : future.shape[1], None].expand_as(future), future)


def _continue(memory: LinearContextualMemory, x: Tensor, cut: slice, horizon: int, workspace: Workspace) -> Tensor:
    """Predictions (B, C, horizon, input) after each of the C contexts x_1..x_{c+1}, c in `cut`.

    At each step a query sees the pairs of its context, which all contexts share, and those that its own predictions
    completed. Its scores against both are one row.
    """
    held = _Held(memory, x, cut, horizon, workspace)
    keys, _ = memory.features(x[:, cut])
    predictions = []
    for step in range(horizon):
        predictions.append(memory.combine(held.recall(keys)))
        if step + 1 < horizon:
            read, values = memory.features(predictions[-1])
            held.add(keys, values)
            keys = read
    return torch.stack(predictions, 2)


class _Held:
    """The pairs that the contexts of a group hold: context c (from 0) has read x_1..x_{c+1} and holds the pairs 1..c.

    `keys` and `values` (B H, width, N + horizon) are transposed, with empty columns where each context's own pairs go.
    """

    def __init__(self, memory, x: Tensor, cut: slice, horizon: int, workspace: Workspace) -> None:
        self.kernel, self.workspace, self.scores = memory.kernel, workspace, memory.scores(x)
        keys, values = memory.features(x[:, : cut.stop])
        self.heads, self.shared, self.own = keys.shape[:2], cut.stop - 1, 0
        self.keys = pad(keys[:, :, :-1].flatten(0, 1).mT, (0, horizon))
        self.values = pad(values[:, :, 1:].flatten(0, 1).mT, (0, horizon))
        size = (len(self.keys), cut.stop - cut.start, horizon)
        self.own_keys, self.own_values = x.new_empty(*size, keys.shape[-1]), x.new_empty(*size, values.shape[-1])
        # The pairs before `start` are seen by all contexts of the cut, the later ones by some.
        self.start = cut.start
        self.hidden = torch.arange(cut.start, self.shared) >= torch.arange(cut.start, cut.stop)[:, None]

    def add(self, keys: Tensor, values: Tensor) -> None:
        """One more pair (B, H, C, width) for each context, of its own."""
        self.own_keys[:, :, self.own], self.own_values[:, :, self.own] = keys.flatten(0, 1), values.flatten(0, 1)
        self.own += 1

    def recall(self, keys: Tensor) -> Tensor:
        """Answers (B, H, C, V) to the queries `keys` (B, H, C, K)."""
        width = self.shared + self.own
        if width == 0:
            return keys.new_zeros(*keys.shape[:3], self.values.shape[1])
        self.workspace.clear()
        query = keys.flatten(0, 1) * (self.scores["slope"] * self.kernel.score_scale)
        scores = self.workspace.empty((*query.shape[:2], width), query)
        torch.bmm(query, self.keys[..., :width], out=scores)
        scores[..., self.shared :] = (query[:, :, None] * self.own_keys[:, :, : self.own]).sum(-1)
        if self.scores["intercept"] is not None:
            scores += self.scores["intercept"] * self.kernel.score_scale
        scores[..., self.start : self.shared].masked_fill_(self.hidden, -torch.inf)
        weights, _ = self.kernel.forward(scores, self.workspace)
        # Transposed: products with few columns are slow.
        answers = torch.bmm(self.values[..., :width], weights.mT).mT
        answers = answers + (weights[..., self.shared :, None] * self.own_values[:, :, : self.own]).sum(-2)
        return answers.unflatten(0, self.heads)
