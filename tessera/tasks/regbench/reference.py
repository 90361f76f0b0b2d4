"""What counting in the context alone achieves: the yardstick of in-context language learning."""

from collections import Counter, defaultdict
from itertools import pairwise

import torch
from torch import Tensor

from tessera.tasks.regbench.task import RegBench
from tessera.tasks.task import TokenExamples


def backoff_accuracy(task: RegBench, examples: TokenExamples, order: int) -> Tensor:
    """Accuracy (B,) of an n-gram model of the problem itself, without any training.

    The guess is the most frequent symbol so far after the longest context that has occurred, of at most `order` tokens
    of the current string (its separator included).
    """
    return torch.tensor(
        [
            _accuracy(task, automaton.edges, tokens[:length], order)
            for automaton, tokens, length in zip(
                examples.details.automata, examples.tokens.tolist(), examples.details.lengths.tolist(), strict=True
            )
        ],
        dtype=torch.float64,
    )


def _accuracy(task: RegBench, edges, tokens: list[int], order: int) -> float:
    moves = [dict(out) for out in edges]
    counts: dict[tuple[int, ...], Counter] = defaultdict(Counter)
    context: tuple[int, ...] = ()
    state, right, asked = 0, 0, 0
    for token, following in pairwise(tokens):
        state = 0 if token == task.separator else moves[state][token]
        context = (token,) if token == task.separator else (*context, token)[-order:]
        if following == task.separator:
            continue
        suffixes = [context[start:] for start in range(len(context) + 1)]
        known = next((counts[suffix] for suffix in suffixes if suffix in counts), None)
        right += known is not None and known.most_common(1)[0][0] in moves[state]
        asked += 1
        for suffix in suffixes:
            counts[suffix][following] += 1
    return right / asked
