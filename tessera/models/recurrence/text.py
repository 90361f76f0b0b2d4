"""The input of one forward pass: tokens, what of them exists, and labels, each row starting at its first token."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tessera.errors import TesseraError, expect
from tessera.models.recurrence.segments import Padding, roll_rows


@dataclass(frozen=True)
class Text:
    """Rows of text of equal or different lengths, padding on the right.

    Attributes:
        tokens: indices (B, T), or embeddings (B, T, hidden). embed: indices -> embeddings. padding: None when every
            position of every row exists and is visible. labels, labels_mask: (B, T) or None.
    """

    tokens: Tensor
    embed: Callable[[Tensor], Tensor]
    padding: Padding | None = None
    labels: Tensor | None = None
    labels_mask: Tensor | None = None

    @classmethod
    def of(
        cls,
        embed: Callable[[Tensor], Tensor],
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        attention_mask: Tensor | None,
        labels: Tensor | None,
        labels_mask: Tensor | None,
    ) -> "Text":
        """Check what `forward` was given, and move padding on the left to the right."""
        both = (input_ids is None) == (inputs_embeds is None)
        expect(not both, "forward", "input_ids or inputs_embeds", "be given", "both or neither")
        tokens = inputs_embeds if input_ids is None else input_ids
        batch, steps = tokens.shape[:2]
        expect(batch > 0 and steps > 0, "forward", "input_ids", "hold at least one token per row", (batch, steps))
        for name, rows in (("labels", labels), ("labels_mask", labels_mask)):
            fits = rows is None or rows.shape == tokens.shape[:2]
            expect(fits, "forward", name, f"be {(batch, steps)}", None if rows is None else tuple(rows.shape))
        text = cls(tokens, embed, Padding.of(attention_mask, batch, steps), labels, labels_mask)
        if text.padding is None or not bool(text.padding.shift.any()):
            return text
        rows = {name: getattr(text, name) for name in ("tokens", "labels", "labels_mask")}
        return replace(text, **{k: None if v is None else roll_rows(v, text.padding.shift) for k, v in rows.items()})

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
        return (self.padding.lengths - start).clamp(0, end - start) if self.uneven else None

    def restore(self, rows: Tensor) -> Tensor:
        """`rows` (B, T, ...) with the padding where the caller had it."""
        moved = self.padding is not None and bool(self.padding.shift.any())
        return roll_rows(rows, -self.padding.shift) if moved else rows

    def select(self, rows: Tensor) -> "Text":
        """Some rows of a text without padding and labels."""
        return Text(self.tokens[rows], self.embed)

    def groups(self) -> list[tuple[Tensor, "Text"]]:
        """Rows of equal length, each set without its padding and labels, with their indices."""
        assert self.padding is not None
        found = []
        for length in self.padding.lengths.unique().tolist():
            rows = (self.padding.lengths == length).nonzero().squeeze(1)
            visible = self.padding.visible[rows, :length] if self.padding.visible is not None else None
            padding = None
            if visible is not None and not bool(visible.all()):
                none = torch.zeros_like(rows)
                padding = Padding(none, none + length, visible, True)
            found.append((rows, Text(self.tokens[rows, :length], self.embed, padding)))
        return found
