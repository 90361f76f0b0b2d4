"""Problems of RegBench: strings of one automaton each, as padded tokens, and what may come next in them."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.regbench.automaton import Automaton


@dataclass(frozen=True)
class Problems:
    """What is known of examples besides their tokens.

    Attributes:
        automata: of each example. lengths: tokens of each example without padding (B,).
    """

    automata: tuple[Automaton, ...]
    lengths: Tensor


def draw_strings(
    automaton: Automaton, strings: tuple[int, int], length: tuple[int, int], separator: int, draws: random.Random
) -> list[int]:
    """A number of strings in the (inclusive) bounds, each of a length in them, joined by the separator."""
    tokens: list[int] = []
    for index in range(draws.randint(*strings)):
        tokens += [separator] * (index > 0) + automaton.string(draws.randint(*length), draws)
    return tokens


def padded(problems: list[list[int]], padding: int, separator: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (B, T), labels (B, T) that leave out padding, separators and the first token, and lengths (B,)."""
    lengths = torch.tensor([len(problem) for problem in problems])
    tokens = torch.full((len(problems), int(lengths.max())), padding)
    for row, problem in enumerate(problems):
        tokens[row, : len(problem)] = torch.tensor(problem)
    labels = tokens.masked_fill((tokens == padding) | (tokens == separator), IGNORED)
    labels[:, 0] = IGNORED
    return tokens, labels, lengths


def allowed_next(tokens: Tensor, problems: Problems, num_symbols: int, vocab_size: int) -> Tensor:
    """Whether a token may come after position t: booleans (B, T, V), symbols only.

    The state is the one reached inside the current string, that of the start at a separator; past the end of a
    problem nothing is allowed. A symbol that its automaton does not allow is an error of whoever made the tokens.
    """
    allowed = torch.zeros(*tokens.shape, vocab_size, dtype=torch.bool)
    for row, automaton in enumerate(problems.automata):
        table = torch.zeros(len(automaton.edges), vocab_size, dtype=torch.bool)
        for state, edges in enumerate(automaton.edges):
            table[state, [symbol for symbol, _ in edges]] = True
        moves = [dict(edges) for edges in automaton.edges]
        state, reached = 0, []
        for token in tokens[row, : int(problems.lengths[row])].tolist():
            state = moves[state][token] if token < num_symbols else 0
            reached.append(state)
        allowed[row, : len(reached)] = table[reached]
    return allowed
