"""Reverse and sort: the target is the source in another order."""

import math
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.papers.length_generalization.sequences import Drawn, SourceTargetTask
from tessera.tasks.task import TASKS, Task


@dataclass(frozen=True)
class Ordering(SourceTargetTask):
    """n symbols, independent and uniform in 0..num_symbols - 1."""

    num_symbols: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(self.num_symbols >= 2, type(self).__name__, "num_symbols", "be at least 2", self.num_symbols)

    @property
    def vocab_size(self) -> int:
        """Symbols and the four special tokens."""
        return self.num_symbols + 4

    @classmethod
    def variants(cls) -> list[Task]:
        """As published, and one so small that a guess is right now and then."""
        return [cls(), cls(length=3, spread=1, num_symbols=2)]

    def _symbols(self, lengths: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randint(self.num_symbols, (len(lengths), int(lengths.max())), generator=generator)


@TASKS.register("reverse")
@dataclass(frozen=True)
class Reverse(Ordering):
    """`y_i = x_(n + 1 - i)`. A guess is n uniform symbols: right with probability `num_symbols^-n`."""

    summary: ClassVar[str] = "write a sequence backwards; exact match at lengths beyond training"

    def draw(self, lengths: Tensor, generator: torch.Generator) -> Drawn:
        """See `SourceTargetTask.draw`."""
        symbols = self._symbols(lengths, generator)
        places = (lengths[:, None] - 1 - torch.arange(symbols.shape[1])).clamp_min(0)
        return Drawn(symbols, lengths, symbols.gather(1, places), lengths)

    def answer(self, source: list[int]) -> list[int]:
        """Backwards."""
        return source[::-1]

    def guess_answer(self, source: list[int], generator: torch.Generator) -> list[int]:
        """Uniform symbols."""
        return torch.randint(self.num_symbols, (len(source),), generator=generator).tolist()

    def chance_of(self, source: list[int]) -> float:
        """`num_symbols^-n`."""
        return float(self.num_symbols) ** -len(source)


@TASKS.register("sort")
@dataclass(frozen=True)
class Sort(Ordering):
    """`y_1 <= ... <= y_n`. A guess is n uniform symbols in order: right with `n! / prod_s c_s! num_symbols^-n`."""

    summary: ClassVar[str] = "write a sequence in ascending order; exact match at lengths beyond training"

    def draw(self, lengths: Tensor, generator: torch.Generator) -> Drawn:
        """See `SourceTargetTask.draw`."""
        symbols = self._symbols(lengths, generator)
        beyond = torch.arange(symbols.shape[1]) >= lengths[:, None]
        return Drawn(symbols, lengths, symbols.masked_fill(beyond, self.num_symbols).sort(1).values, lengths)

    def answer(self, source: list[int]) -> list[int]:
        """Ascending."""
        return sorted(source)

    def guess_answer(self, source: list[int], generator: torch.Generator) -> list[int]:
        """Uniform symbols in order."""
        return torch.randint(self.num_symbols, (len(source),), generator=generator).sort().values.tolist()

    def chance_of(self, source: list[int]) -> float:
        """The multinomial probability of the source's counts c_s."""
        ways = math.lgamma(len(source) + 1) - sum(math.lgamma(count + 1) for count in Counter(source).values())
        return math.exp(ways - len(source) * math.log(self.num_symbols))
