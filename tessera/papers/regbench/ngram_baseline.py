"""An n-gram model of each problem by itself: what counting in the context achieves without training."""

from collections import Counter, defaultdict

import torch
from torch import Tensor

from tessera.papers.regbench.task import RegBench
from tessera.tasks.task import TokenExamples


def ngram_log_probabilities(task: RegBench, examples: TokenExamples, order: int) -> Tensor:
    """Log-probabilities (B, T, V) of an n-gram model of each problem itself, which needs no training.

    At each position: how often each symbol has followed so far the longest context that has occurred before, of at
    most `order` tokens of the current string (its separator included); all symbols alike before any has. With 0 it is
    how often each symbol has occurred.
    """
    shares = torch.zeros(*examples.tokens.shape, task.vocab_size, dtype=torch.float64)
    for row, length in enumerate(examples.details.lengths.tolist()):
        for column, counts in enumerate(_counts(task, examples.tokens[row, :length].tolist(), order)):
            for symbol, count in counts.items():
                shares[row, column, symbol] = count
    shares[..., : task.num_symbols] += (shares.sum(-1, keepdim=True) == 0).double()
    return (shares / shares.sum(-1, keepdim=True)).log()


def _counts(task: RegBench, tokens: list[int], order: int) -> list[dict[int, int]]:
    """For each position, the counts of what has followed its longest known context; empty if nothing has."""
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    following_counts: list[dict[int, int]] = []
    context: tuple[int, ...] = ()
    for token, following in zip(tokens, [*tokens[1:], task.separator], strict=True):
        context = (token,) if token == task.separator else (*context, token)
        context = context[max(0, len(context) - order) :]
        suffixes = [context[start:] for start in range(len(context) + 1)]
        following_counts.append(dict(next((counts[suffix] for suffix in suffixes if suffix in counts), {})))
        if following != task.separator:
            for suffix in suffixes:
                counts[suffix][following] += 1
    return following_counts
