"""The words of MQMTAR, and where they stand in a context."""

from functools import lru_cache

import torch
from torch import Tensor

FILLER, PAIR_SEPARATOR, QUERY_SEPARATOR, FIRST_SYMBOL = 0, 1, 2, 3
BLOCK = 6  # k1 k2 1 v1 v2 and at least one filler


def num_pairs(length):
    """Pairs in a context of `length` tokens (an integer, or a tensor of them): `floor(0.8 length / 6)`."""
    return 4 * length // (5 * BLOCK)


@lru_cache(maxsize=8)
def vocabularies(num_symbols: int, num_words: int, seed: int) -> tuple[Tensor, Tensor]:
    """The keys and the values that there are, each (num_words, 2) tokens, distinct."""
    generator = torch.Generator().manual_seed(seed)
    picks = [torch.randperm(num_symbols**2, generator=generator)[:num_words] for _ in range(2)]
    keys, values = (torch.stack([pick // num_symbols, pick % num_symbols], 1) + FIRST_SYMBOL for pick in picks)
    return keys, values


def distinct(rows: int, count: int, of: int, generator: torch.Generator) -> Tensor:
    """Integers (rows, count) in 0..of - 1, distinct in each row and otherwise uniform.

    Entries that repeat an earlier one are drawn again until there is none. No integer is treated differently from
    another, so every choice in every order is equally likely; and few are drawn twice, where a permutation of all
    `of` would cost milliseconds.
    """
    drawn = torch.randint(of, (rows, count), generator=generator)
    if count > of // 4:
        return torch.rand(rows, of, generator=generator).argsort(1)[:, :count]
    while True:
        ordered, places = drawn.sort(dim=1, stable=True)
        again = torch.zeros_like(drawn, dtype=torch.bool)
        again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        if not bool(again.any()):
            return drawn
        again = torch.zeros_like(again).scatter_(1, places, again)
        drawn[again] = torch.randint(of, (int(again.sum()),), generator=generator)


def lay_out(keys: Tensor, values: Tensor, pairs: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Contexts (B, S): blocks of pairs and single fillers in random order."""
    rows, most, longest = len(lengths), keys.shape[1], int(lengths.max())
    fillers = lengths - BLOCK * pairs
    units = torch.arange(most + int(fillers.max()))
    sizes = torch.where(units < pairs[:, None], BLOCK, 1)
    unused = (units >= pairs[:, None]) & ((units < most) | (units - most >= fillers[:, None]))
    order = torch.rand(rows, len(units), generator=generator).masked_fill(unused, 2.0).argsort(1)
    ends = sizes.gather(1, order).cumsum(1)
    starts = torch.zeros_like(ends).scatter_(1, order, ends - sizes.gather(1, order))[:, :most]
    mark = torch.full((rows, most, 1), PAIR_SEPARATOR)
    blocks = torch.cat([keys, mark, values], -1)
    # A column too many takes the pairs of rows that hold fewer.
    columns = torch.where((units[:most] < pairs[:, None])[..., None], starts[..., None] + torch.arange(5), longest)
    context = torch.full((rows, longest + 1), FILLER)
    return context.scatter_(1, columns.flatten(1), blocks.flatten(1))[:, :-1]


def list_words(words: Tensor, places: Tensor) -> Tensor:
    """`2 w1 w2` for each of the words (B, P, 2) at `places` (B, Q): (B, 3 Q)."""
    picked = words.gather(1, places[..., None].expand(-1, -1, 2))
    return torch.cat([torch.full_like(picked[..., :1], QUERY_SEPARATOR), picked], -1).flatten(1)
