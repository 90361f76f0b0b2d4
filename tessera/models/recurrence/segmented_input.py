"""The text of one forward pass: which positions exist, where segments begin, and which rows are read together."""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.models.forward_arguments import embedded, new_steps

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


@dataclass(frozen=True)
class SegmentCut:
    """Where segments begin and end: the arguments of `SegmentedConfig`.

    A position in `ends` stands behind a token that ends a sentence.
    """

    size: int
    alignment: str = "left"
    end_ids: tuple[int, ...] = ()
    window: int = 1

    @classmethod
    def of(cls, config: Any) -> Self:
        """Of a `SegmentedConfig`."""
        ids = tuple(config.segment_end_ids or ())
        return cls(config.segment_size, config.segment_alignment, ids, config.segment_end_window)

    def end(self, begin: int, ends: Sequence[int] = ()) -> int:
        """Where the segment from `begin` on ends: at the first of `ends` (ascending) in its window, else when full."""
        full = begin + self.size
        index = bisect_left(ends, full - self.window + 1)
        return min(ends[index], full) if index < len(ends) else full

    def borders(
        self, length: int, ends: Sequence[int] = (), before: int | None = None, extends: bool = False
    ) -> list[tuple[int, int]]:
        """The segments of `length` tokens: behind `before` tokens of an open one, what fits into that one first.

        An open segment that is full is closed by a part without tokens; one that `extends` is never full.
        """
        if before is None and not ends:
            return segment_borders(length, self.size, self.alignment)
        cuts = [0, length if extends else max(0, min(self.end(-(before or 0), ends), length))]
        while cuts[-1] < length:
            cuts.append(min(self.end(cuts[-1], ends), length))
        return list(itertools.pairwise(cuts))

    def ends_in(self, tokens: Tensor) -> list[int]:
        """The positions behind those of `tokens` (T,) that end a sentence."""
        if not self.end_ids:
            return []
        return (torch.isin(tokens, tokens.new_tensor(self.end_ids)).nonzero().flatten() + 1).tolist()


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
class Span:
    """The next segment, or part of one, of the rows that are read together."""

    rows: tuple[int, ...]  # their numbers, ascending
    starts: tuple[int, ...]  # where it begins in each of them
    lengths: tuple[int, ...]  # how many tokens it has there
    following: tuple[int, ...]  # how many segments follow in each
    close: bool  # whether the segment ends here
    is_full: bool  # of a segment that stays open: whether it ends where the next token comes
    is_all: bool  # whether these are all rows of the text, and the span has the same place in each

    @property
    def steps(self) -> int:
        """The longest of its lengths."""
        return max(self.lengths)

    @property
    def is_even(self) -> bool:
        """Whether it has the same length in all rows."""
        return min(self.lengths) == self.steps

    @property
    def end(self) -> int:
        """The furthest position behind it."""
        return max(map(sum, zip(self.starts, self.lengths)))


@dataclass(frozen=True)
class SegmentedInput:
    """Rows of text of equal or different lengths.

    A position inside a row's text that is not real keeps its place and is hidden from the others, as in every Hugging
    Face model.
    """

    tokens: Tensor  # indices (B, T), or embeddings (B, T, hidden)
    embed: Callable[[Tensor], Tensor]  # indices -> embeddings
    starts: tuple[int, ...]  # of each row's text; what lies outside of it is padding
    lengths: tuple[int, ...]
    real: Tensor | None = None  # booleans (B, T); None when every position exists and is visible

    @classmethod
    def of(
        cls,
        embed: Callable[[Tensor], Tensor],
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> "SegmentedInput":
        """The arguments of `forward`, checked."""
        both = (input_ids is None) == (inputs_embeds is None)
        expect(not both, "forward", "input_ids or inputs_embeds", "be given", "both or neither")
        tokens = inputs_embeds if input_ids is None else input_ids
        assert tokens is not None
        sizes = tuple(tokens.shape)
        width = getattr(embed, "embedding_dim", sizes[-1])
        is_wide = inputs_embeds is None or sizes[-1] == width
        expect(is_wide, "forward", "inputs_embeds", f"be (B, T, {width})", sizes)
        batch, steps = sizes[:2]
        expect(batch > 0 and steps > 0, "forward", "input_ids", "hold at least one token per row", (batch, steps))
        unpadded = cls(tokens, embed, (0,) * batch, (steps,) * batch)
        if attention_mask is None:
            return unpadded
        real = new_steps("forward", attention_mask, (batch, steps))
        if bool(real.all()):
            return unpadded
        expect(bool(real.any(1).all()), "forward", "attention_mask", "show a token in every row", "a row of zeros")
        starts = real.int().argmax(1)
        lengths = steps - real.flip(1).int().argmax(1) - starts
        return cls(tokens, embed, tuple(starts.tolist()), tuple(lengths.tolist()), real)

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        return self.tokens.shape[0], self.tokens.shape[1]

    @property
    def has_padding(self) -> bool:
        """Whether some row is shorter than T."""
        return min(self.lengths) < self.shape[1]

    def segments(
        self,
        cut: SegmentCut,
        is_together: bool,
        open_segments: Iterable[tuple[tuple[int, ...], int]] = (),  # of each group of a cache: rows, tokens read
        keep_open: bool = False,  # whether each row's last segment stays open
        extend: bool = False,  # whether an open one never ends
    ) -> Iterator[list[Span]]:
        """The first segment of every row, then the second, ...; rows that have ended are left out.

        Rows that cannot be one batch are spans of their own: those whose segment stays open, by its length; and unless
        `is_together` (the base is told positions, and skips padding), those of different lengths. Raises
        `TesseraError`: embeddings, where the tokens say where segments end.
        """
        opened = {row: (group, length) for group, (rows, length) in enumerate(open_segments) for row in rows}
        alike: dict[tuple, list[int]] = {}
        for row, (length, ends) in enumerate(zip(self.lengths, self._sentence_ends(cut))):
            alike.setdefault((opened.get(row, (0, None)), length, ends), []).append(row)
        kinds = [
            (group, before, ends, rows, cut.borders(length, ends, before, extend))
            for ((group, before), length, ends), rows in alike.items()
        ]
        for step in range(max(len(borders) for *_, borders in kinds)):
            batches: dict[tuple, list[tuple[int, int, int, int]]] = {}
            for group, before, ends, rows, borders in kinds:
                if step < len(borders):
                    start, end = borders[step]
                    following = len(borders) - step - 1
                    stays_open = keep_open and not following
                    goes_on = step == 0 and before is not None
                    is_full = stays_open and end == cut.end(start - (before or 0) * goes_on, ends)
                    # The rows of an open segment are equally long, and go on in the group that they are of.
                    apart = stays_open or goes_on or not is_together
                    key = (not stays_open, is_full, end - start if apart else 0, group if step == 0 else 0)
                    batches.setdefault(key, []).extend(
                        (row, self.starts[row] + start, end - start, following) for row in rows
                    )
            yield [self._span(sorted(members), *key[:2]) for key, members in batches.items()]

    def _span(self, members: list[tuple[int, int, int, int]], close: bool, is_full: bool) -> Span:
        rows, starts, lengths, following = map(tuple, zip(*members))
        is_all = len(rows) == len(self.lengths) and len({*zip(starts, lengths)}) == 1
        return Span(rows, starts, lengths, following, close, is_full, is_all)

    def _sentence_ends(self, cut: SegmentCut) -> list[tuple[int, ...]]:
        """Of each row's text the positions behind tokens that end a sentence; a hidden one ends none."""
        if not cut.end_ids:
            return [()] * len(self.lengths)
        needed = "be left out where segment_end_ids says where segments end"
        expect(not self.tokens.is_floating_point(), "forward", "inputs_embeds", needed, tuple(self.tokens.shape))
        tokens = self.tokens.cpu() if self.real is None else self.tokens.masked_fill(~self.real, -1).cpu()
        places = zip(tokens, self.starts, self.lengths)
        return [tuple(cut.ends_in(row[start : start + length])) for row, start, length in places]

    def embeddings(self, span: Span) -> Tensor:
        """Embeddings (b, n, hidden) of a span; anything where a row is shorter."""
        part = columns(self.tokens, span)
        if part.is_floating_point():
            return part
        return embedded("forward", self.embed, part)

    def visible(self, span: Span) -> Tensor | None:
        """Booleans (b, n), or None when nothing there is hidden or missing."""
        if self.real is None and span.is_even:
            return None
        real = torch.ones(self.shape, dtype=torch.bool, device=self.tokens.device) if self.real is None else self.real
        part = columns(real, span)
        if not span.is_even:
            lengths = torch.tensor(span.lengths, device=part.device)
            part = part & (torch.arange(span.steps, device=part.device) < lengths[:, None])
        return None if bool(part.all()) else part


def columns(values: Tensor, span: Span) -> Tensor:
    """`values` (B, T, ...) at the positions of `span`, and at those behind it where a row is shorter."""
    start, steps = span.starts[0], span.steps
    if span.is_all:
        return values[:, start : start + steps]
    rows, positions = _places(span, values.device)
    return values[rows, positions.clamp(max=values.shape[1] - 1)]


def scattered(span: Span, first: int, end: int) -> tuple[Tensor, Tensor]:
    """Which of a span's flattened positions (b * n) give something for `first` to `end` - 1, and where it lies in flat
    (B, end - first).

    Of a row's last segment also the padding behind it, as far as it was computed.
    """
    rows, positions = _places(span, torch.device("cpu"))
    computed = [length if more else span.steps for length, more in zip(span.lengths, span.following)]
    is_in = torch.arange(span.steps) < torch.tensor(computed)[:, None]
    is_in &= (positions >= first) & (positions < end)
    return is_in.flatten().nonzero().squeeze(1), (rows * (end - first) + positions - first)[is_in]


def _places(span: Span, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows (b, 1) and positions (b, n) of a span."""
    rows, starts = torch.tensor((span.rows, span.starts), device=device)[..., None]
    return rows, starts + torch.arange(span.steps, device=device)
