"""The input of one forward pass: its tokens, which of them exist, its labels, and how it is cut into segments."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tessera.base.errors import TesseraError, expect

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
    """The last n segments of `tokens` (B, T, ...), n uniform in `least`..`most` (default: up to all complete ones).

    For training: models trained on varying numbers of segments generalise better (ARMT, appendix A.4). The end is kept,
    where a question stands.
    """
    available = tokens.shape[1] // size
    most = available if most is None else most
    is_range = 1 <= least <= most <= available
    expect(is_range, "random_segments", "least and most", f"lie in 1..{available}", (least, most))
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


@dataclass(frozen=True)
class SegmentedInput:
    """Rows of text of equal or different lengths, padding on the right.

    Attributes:
        tokens: indices (B, T), or embeddings (B, T, hidden). embed: indices -> embeddings. padding: None when every
            position of every row exists and is visible. labels, loss_mask: (B, T) or None.
    """

    tokens: Tensor
    embed: Callable[[Tensor], Tensor]
    padding: Padding | None = None
    labels: Tensor | None = None
    loss_mask: Tensor | None = None

    @classmethod
    def of(
        cls,
        embed: Callable[[Tensor], Tensor],
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        labels: Tensor | None,
        loss_mask: Tensor | None,
    ) -> "SegmentedInput":
        """Check the arguments of `forward`, and move padding on the left to the right."""
        both = (input_ids is None) == (inputs_embeds is None)
        expect(not both, "forward", "input_ids or inputs_embeds", "be given", "both or neither")
        tokens = inputs_embeds if input_ids is None else input_ids
        assert tokens is not None
        sizes, dims = tuple(tokens.shape), 2 if inputs_embeds is None else 3
        expect(len(sizes) == dims, "forward", "input_ids", "be (B, T) (inputs_embeds (B, T, hidden))", sizes)
        batch, steps = sizes[:2]
        expect(batch > 0 and steps > 0, "forward", "input_ids", "hold at least one token per row", (batch, steps))
        for name, rows in (("labels", labels), ("loss_mask", loss_mask)):
            got = sizes[:2] if rows is None else tuple(rows.shape)
            expect(got == sizes[:2], "forward", name, f"be {(batch, steps)}", got)
        text = cls(tokens, embed, Padding.of(attention_mask, batch, steps), labels, loss_mask)
        if text.padding is not None and bool(text.padding.shift.any()):
            shift = text.padding.shift
            return replace(
                text,
                tokens=roll_rows(tokens, shift),
                labels=None if labels is None else roll_rows(labels, shift),
                loss_mask=None if loss_mask is None else roll_rows(loss_mask, shift),
            )
        return text

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        return self.tokens.shape[0], self.tokens.shape[1]

    @property
    def uneven(self) -> bool:
        """Whether some row is shorter than T."""
        return self.padding is not None and not self.padding.even

    def embeddings(self, start: int, end: int) -> Tensor:
        """Embeddings (B, end - start, hidden) of these positions."""
        part = self.tokens[:, start:end]
        if part.is_floating_point():
            return part
        try:
            return self.embed(part)
        except IndexError:
            got = f"values from {int(part.min())} to {int(part.max())}"
            raise TesseraError(
                f"forward: input_ids must lie below the vocabulary size; got {got}. "
                "Does the tokenizer belong to this model?"
            ) from None

    def visible(self, start: int, end: int) -> Tensor | None:
        """Booleans (B, end - start), or None when nothing there is hidden or missing."""
        if self.padding is None or self.padding.visible is None:
            return None
        part = self.padding.visible[:, start:end]
        return None if bool(part.all()) else part

    def lengths(self, start: int, end: int) -> Tensor | None:
        """How many of these positions exist in each row (B,); None for all in all rows."""
        if self.padding is None or self.padding.even:
            return None
        return (self.padding.lengths - start).clamp(0, end - start)

    def restore(self, rows: Tensor) -> Tensor:
        """`rows` (B, T, ...) with the padding where the caller had it."""
        if self.padding is None or not bool(self.padding.shift.any()):
            return rows
        return roll_rows(rows, -self.padding.shift)

    def select(self, rows: Tensor) -> "SegmentedInput":
        """Some rows of a text without padding and labels."""
        return SegmentedInput(self.tokens[rows], self.embed)

    def groups(self) -> list[tuple[Tensor, "SegmentedInput"]]:
        """Rows of equal length, each set without its padding and labels, with their indices."""
        assert self.padding is not None
        groups = []
        for length in self.padding.lengths.unique().tolist():
            rows = (self.padding.lengths == length).nonzero().squeeze(1)
            visible = self.padding.visible[rows, :length] if self.padding.visible is not None else None
            padding = None
            if visible is not None and not bool(visible.all()):
                none = torch.zeros_like(rows)
                padding = Padding(none, none + length, visible, True)
            groups.append((rows, SegmentedInput(self.tokens[rows, :length], self.embed, padding)))
        return groups
