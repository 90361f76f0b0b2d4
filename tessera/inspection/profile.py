"""Pictures for papers: how a memory's weight falls with age, and where each query looked."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tessera.errors import expect
from tessera.inspection.trace import MemoryTrace, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def recency_profile(memory: MemoryTrace, axes: "Axes | None" = None) -> "Axes":
    """Draw the mean weight per pair over its age in tokens: one line per head, and their mean dotted.

    Memory Mosaics, figures 14 and 15, show the same of the last query; here all traced queries are averaged, in bins of
    doubling age.

    Raises:
        TesseraError: the memory recalls no pair of the text (a persistent one, a feed-forward network).
    """
    expect(memory.ages is not None, "recency_profile", "memory", "recall pairs of the text", memory.name)
    axes = _axes() if axes is None else axes
    ages = 2.0 ** torch.arange(memory.ages.shape[1])
    for head, weights in enumerate(memory.ages):
        axes.plot(ages, weights, linewidth=1, label=f"head {head}")
    axes.plot(ages, memory.ages.mean(0), linestyle=":", linewidth=2, color="black", label="mean")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("age of the pair, tokens")
    axes.set_ylabel("weight per pair")
    axes.set_title(f"layer {memory.layer}, {memory.kind}", loc="left")
    return axes


def recall_map(trace: Trace, memory: MemoryTrace, head: int, axes: "Axes | None" = None) -> "Axes":
    """Draw which pair (across) each traced query (down) recalled with one head, darker for more weight.

    Raises:
        TesseraError: the memory has no such head.
    """
    has_head = 0 <= head < memory.num_heads
    expect(has_head, "recall_map", "head", f"lie in 0..{memory.num_heads - 1} of {memory.name}", head)
    axes = _axes() if axes is None else axes
    axes.imshow(_dense(trace, memory, head).numpy(), aspect="auto", cmap="Blues", interpolation="nearest")
    axes.set_xlabel("stored pair")
    axes.set_ylabel("query, in the order traced")
    axes.set_title(f"layer {memory.layer}, {memory.kind}, head {head}", loc="left")
    return axes


def _dense(trace: Trace, memory: MemoryTrace, head: int) -> Tensor:
    width = int(memory.pairs.max()) + 1 if len(memory.pairs) else 1
    weights = torch.zeros(len(trace.queries), width)
    for query in range(len(trace.queries)):
        pairs, values = memory.recalled(query, head)
        weights[query, pairs.long()] = values
    return weights


def _axes() -> "Axes":
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    return Figure(figsize=(5, 3.5), dpi=150, layout="constrained").subplots()
