"""How a text is cut into segments, and which of its positions exist."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.errors import expect

ALIGNMENTS = ("left", "right", "center")


def segment_borders(length: int, size: int, alignment: str = "left") -> list[tuple[int, int]]:
    """Start and end of every segment of a text of `length` tokens.

    left: `[0, S), [S, 2 S), ...`, a short one last. right: a short one first. center: `n = ceil(T / S)` segments of
    `ceil(T / n)` tokens, the last possibly shorter.

    >>> segment_borders(7, 3), segment_borders(7, 3, "right"), segment_borders(7, 5, "center")
    ([(0, 3), (3, 6), (6, 7)], [(0, 1), (1, 4), (4, 7)], [(0, 4), (4, 7)])
    """
    if alignment == "right":
        cuts = [0, *range(length % size or size, length + 1, size)]
    else:
        if alignment == "center":
            size = math.ceil(length / math.ceil(length / size))
        cuts = [*range(0, length, size), length]
    return list(itertools.pairwise(cuts))


def random_segments(
    tokens: Tensor, size: int, generator: torch.Generator | None = None, least: int = 1, most: int | None = None
) -> Tensor:
    """The last n segments of `tokens` (B, T, ...), n uniform in `least`..`most` (default: up to all whole ones).

    For training: models trained on varying numbers of segments generalise better (ARMT, appendix A.4). The end is kept,
    where a question stands.
    """
    whole = tokens.shape[1] // size
    most = whole if most is None else most
    expect(1 <= least <= most <= whole, "random_segments", "least and most", f"lie in 1..{whole}", (least, most))
    count = int(torch.randint(least, most + 1, (), generator=generator))
    return tokens[:, -count * size :]


@dataclass(frozen=True)
class Padding:
    """What an attention mask (B, T) says: how far each row is shifted, how long it is, which positions are hidden.

    Zeros before a row's first one and after its last one are padding: the row's text starts and ends there. Zeros in
    between hide a position from the others, as in every Hugging Face model, but it keeps its place.
    """

    shift: Tensor  # (B,) steps of padding on the left
    lengths: Tensor  # (B,)
    visible: Tensor | None  # (B, T) booleans after the shift; None when nothing inside a row is hidden
    even: bool  # whether all rows fill all of T

    @classmethod
    def of(cls, attention_mask: Tensor | None, batch: int, steps: int) -> "Padding | None":
        """None when every position exists and is visible."""
        if attention_mask is None:
            return None
        shape = tuple(attention_mask.shape)
        expect(shape == (batch, steps), "forward", "attention_mask", f"be {(batch, steps)} of zeros and ones", shape)
        real = attention_mask.bool()
        if bool(real.all()):
            return None
        expect(bool(real.any(1).all()), "forward", "attention_mask", "show a token in every row", "a row of zeros")
        shift = real.int().argmax(1)
        lengths = steps - real.flip(1).int().argmax(1) - shift
        real = roll_rows(real, shift)
        inside = torch.arange(steps, device=real.device) < lengths[:, None]
        hidden = bool((inside & ~real).any())
        even = bool((lengths == steps).all())
        return cls(shift, lengths, real if hidden or not even else None, even)


def roll_rows(rows: Tensor, shift: Tensor) -> Tensor:
    """`rows` (B, T, ...) with row b rolled to the left by `shift[b]` (to the right where negative)."""
    steps = rows.shape[1]
    index = (torch.arange(steps, device=rows.device) + shift[:, None]) % steps
    return rows.gather(1, index.view(*index.shape, *[1] * (rows.dim() - 2)).expand(rows.shape))
