"""Pictures for papers: how a memory's weight falls with age, where each query looked, and what one of them recalled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.inspection.trace import MemoryTrace, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Told apart by the colour-blind; dashes tell what colours do not.
COLOURS = ("#0072b2", "#d55e00", "#00805e", "#b5508f", "#808080")
DASHES = ("-", "--", ":", "-.")


def recency_profile(memory: MemoryTrace, axes: "Axes | None" = None) -> "Axes":
    """Draw the mean weight per pair over its age in tokens: one line per head, and their mean dotted.

    Memory Mosaics, figures 14 and 15, show the same of the last query; here all traced queries are averaged, in bins of
    doubling age.
    Raises `TesseraError`: the memory recalls no pair of the text (a persistent one, a feed-forward network).
    """
    expect(memory.ages is not None, "recency_profile", "memory", "recall pairs of the text", memory.name)
    assert memory.ages is not None
    axes = _axes() if axes is None else axes
    ages = 2.0 ** torch.arange(memory.ages.shape[1])
    for head, weights in enumerate(memory.ages):
        axes.plot(ages, weights, label=f"head {head}", **head_line(head))
    axes.plot(ages, memory.ages.mean(0), linestyle=":", linewidth=2, color="black", label="mean")
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="age of the pair, tokens", ylabel="weight per pair")
    axes.set_title(f"layer {memory.layer}, {memory.kind}", loc="left")
    return axes


def head_line(head: int) -> dict[str, Any]:
    """Colour and dashes of a head's line."""
    dashes = DASHES[head // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[head % len(COLOURS)], "linestyle": dashes, "linewidth": 1.2}


def recall_map(trace: Trace, memory: MemoryTrace, head: int, axes: "Axes | None" = None) -> "Axes":
    """Draw which pair (across) each traced query (down) recalled with one head, darker for more weight.

    The darkest colour stands for the weight that a fiftieth of the pairs exceeds, as the bar beside it says: the first
    queries see few pairs, and give them weights beside which those of a long text would be blank.
    Raises `TesseraError`: the memory recalls nothing, or has no such head.
    """
    weights, lowest = _dense(trace, memory, head)
    axes = _axes() if axes is None else axes
    darkest = float(np.quantile(weights[weights > 0].numpy(), 0.98)) if bool((weights > 0).any()) else 1.0
    edges = (lowest - 0.5, lowest + weights.shape[1] - 0.5, len(weights) - 0.5, -0.5)
    options: dict[str, Any] = {"aspect": "auto", "cmap": "Blues", "interpolation": "nearest", "extent": edges}
    image = axes.imshow(weights.numpy(), vmin=0, vmax=darkest, **options)
    axes.figure.colorbar(image, ax=axes, extend="max", label="weight")
    axes.set(xlabel="stored pair", ylabel="query, in the order traced")
    axes.set_title(f"layer {memory.layer}, {memory.kind}, head {head}", loc="left")
    return axes


def recalled_text(
    trace: Trace, memory: MemoryTrace, head: int | None, query: int, columns: int = 90, first: int = 0
) -> "Axes":
    """Draw the text up to a traced token, each token shaded by the weight of its pair; the query is framed.

    Args:
        head: its number; None for the mean of all heads. query: position of the token in the text. columns: characters
            per line. first: the token to begin with.
    Raises `TesseraError`: the memory recalls no pair of the text, the token was not traced, or there is no such head.
    """
    expect(memory.ages is not None, "recalled_text", "memory", "recall pairs of the text", memory.name)
    expect(query in trace.queries.tolist(), "recalled_text", "query", "be a traced token", query)
    heads = range(memory.num_heads) if head is None else [head]
    weights = torch.zeros(len(trace.tokens))
    for number in heads:
        pairs, values = memory.recalled(trace.queries.tolist().index(query), number)
        in_text = pairs >= 0
        weights[pairs[in_text].long()] += values[in_text] / len(heads)
    return _draw_text(
        trace.tokens[first : query + 1], (weights[first:] / weights.max().clamp(min=1e-9)).tolist(), columns
    )


def _draw_text(tokens: Sequence[str], shades: Sequence[float], columns: int) -> "Axes":
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    places, line, column = [], 0, 0
    for token in tokens:
        text = "".join(letter if letter.isprintable() else "\N{RETURN SYMBOL}" for letter in token)
        if column + len(text) > columns:
            line, column = line + 1, 0
        places.append((column, line, text))
        column += len(text)
    # Letters of 8 points are 4.82 points wide in the font that matplotlib brings, DejaVu Sans Mono.
    axes = Figure(figsize=(columns * 4.82 / 72, (line + 1) * 14 / 72), dpi=150).add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, columns + 0.5), ylim=(line + 1, 0))
    axes.set_axis_off()
    for number, ((column, line, text), shade) in enumerate(zip(places, shades)):
        is_query = number == len(places) - 1
        box = (column, line + 0.08), len(text), 0.84
        axes.add_patch(Rectangle(*box, facecolor="#0072b2", alpha=0.6 * shade, linewidth=0))
        if is_query:
            axes.add_patch(Rectangle(*box, fill=False, edgecolor="#0b5cad"))
        font: dict[str, Any] = {"family": "DejaVu Sans Mono", "size": 8, "va": "center_baseline", "parse_math": False}
        axes.text(column, line + 0.5, text, **font)
    return axes


def _dense(trace: Trace, memory: MemoryTrace, head: int) -> tuple[Tensor, int]:
    """Weights (Q, N) over pairs from the lowest number on, and that number: pairs before the text are below 0."""
    _, every_pair, _ = memory.all_recalled
    lowest, highest = (int(every_pair.min()), int(every_pair.max())) if len(every_pair) else (0, 0)
    lowest = min(lowest, 0)
    weights = torch.zeros(len(trace.queries), max(highest, 0) + 1 - lowest)
    for query in range(len(trace.queries)):
        pairs, values = memory.recalled(query, head)
        weights[query, pairs.long() - lowest] = values
    return weights, lowest


def _axes() -> "Axes":
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    return Figure(figsize=(5, 3.5), dpi=150, layout="constrained").subplots()
