"""RegBench as a task: in-context learning of random regular languages; their automata; counting, a baseline."""

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.base.errors import TesseraError, expect
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.task import SPLITS, TASKS, Task, TokenExamples, generator_of

Edges = tuple[tuple[int, int], ...]
MAX_TRIES = 1000


class Automaton(NamedTuple):
    """`edges[state]`: (symbol, next state) of each allowed symbol, in order of the symbols; it starts in state 0.

    All states accept, and each allowed symbol of a state is equally likely. Canonical: no two states allow the same
    strings, and states are numbered as they are first reached, smaller symbols first. So two automata generate the
    same strings exactly if they are equal.
    """

    edges: tuple[Edges, ...]

    def string(self, length: int, draws: random.Random) -> list[int]:
        """`length` symbols, each uniform over those allowed."""
        state, symbols = 0, []
        for _ in range(length):
            allowed = self.edges[state]
            symbol, state = allowed[int(draws.random() * len(allowed))]
            symbols.append(symbol)
        return symbols

    def digest(self) -> int:
        """64 bits that depend on the automaton alone, the same in every process."""
        return int.from_bytes(blake2b(repr(self.edges).encode(), digest_size=8).digest())


def random_automaton(
    draws: random.Random, states: tuple[int, int], alphabet: tuple[int, int], num_symbols: int, max_edges: int
) -> Automaton:
    """Sizes uniform in the (inclusive) bounds; per state 1 to `max_edges` edges, to other states, all different.

    Symbols of a state differ too, and all come from the automaton's alphabet. The result is canonical, which can leave
    fewer states and an edge from a state to itself.
    """
    num_states = draws.randint(*states)
    symbols = draws.sample(range(num_symbols), draws.randint(*alphabet))
    edges = []
    for state in range(num_states):
        count = draws.randint(1, max_edges)
        targets = [target + (target >= state) for target in draws.sample(range(num_states - 1), count)]
        edges.append(dict(zip(draws.sample(symbols, count), targets, strict=True)))
    return canonical(edges)


def canonical(edges: list[dict[int, int]]) -> Automaton:
    """The canonical automaton that generates what `edges[state] = {symbol: next state}` does from state 0.

    Moore's algorithm: states stay in one class while they allow the same symbols into the same classes.
    """
    moves = [sorted(of_state.items()) for of_state in edges]
    order = [0]  # states that can be reached, breadth first, smaller symbols first
    for state in order:
        order += dict.fromkeys(target for _, target in moves[state] if target not in order)
    classes, count = dict.fromkeys(order, 0), 1
    while True:
        edges_of = {state: tuple((symbol, classes[target]) for symbol, target in moves[state]) for state in order}
        numbers = {edges: number for number, edges in enumerate(dict.fromkeys(edges_of.values()))}
        if len(numbers) == count:
            return Automaton(tuple(numbers))
        classes, count = {state: numbers[edges_of[state]] for state in order}, len(numbers)


class Problems(NamedTuple):
    """Of each example its automaton, and its length in tokens without padding (B,)."""

    automata: tuple[Automaton, ...]
    lengths: Tensor


@TASKS.register("regbench")
@dataclass(frozen=True)
class RegBench(Task):
    """Predict the next symbol of strings of an automaton never seen before (Akyurek et al. 2024).

    A problem is `strings` strings of `length` symbols of one automaton with `states` states over `alphabet` of the
    `num_symbols` symbols and up to `max_edges` edges per state; all bounds are inclusive. Tokens: symbols 0 to
    num_symbols - 1, separator, padding. Which split an automaton belongs to is a function of the automaton, so that no
    two splits share one, whatever the seeds; within a sample all differ.

    Scores of each example, means over the positions whose next token is a symbol: `accuracy`, the most likely token is
    allowed by the state reached in the current string; `tvd`, the total variation distance `1/2 sum_v |p_v - q_v|` of
    the model's distribution p and the uniform one q over the allowed symbols. `last_`: at the last position alone.
    """

    summary = "next symbols of regular languages that only the context shows"
    source = "Akyurek et al. 2024; Memory Mosaics, section 7; Sparse Attention as Compact Kernel Regression, table 1"
    main_score = "accuracy"
    length_setting = "strings"

    states: tuple[int, int] = (4, 12)
    alphabet: tuple[int, int] = (4, 18)
    num_symbols: int = 18
    max_edges: int = 3
    strings: tuple[int, int] = (10, 19)
    length: tuple[int, int] = (1, 49)

    def __post_init__(self) -> None:
        for name, least in (("states", 2), ("alphabet", 1), ("strings", 1), ("length", 1)):
            low, high = getattr(self, name)
            self._require(name, least <= low <= high, f"be (lowest, highest), from {least} on")
        is_possible = self.alphabet[1] <= self.num_symbols
        self._require("alphabet", is_possible, f"be at most num_symbols ({self.num_symbols})")
        most = min(self.states[0] - 1, self.alphabet[0])
        self._require("max_edges", 1 <= self.max_edges <= most, f"lie in 1..{most}")
        self._require("strings", self.strings[1] * self.length[0] > 1, "hold two symbols")

    def at_length(self, length: int) -> "RegBench":
        """Problems of exactly `length` strings."""
        return replace(self, strings=(length, length))

    @property
    def separator(self) -> int:
        """The token between strings."""
        return self.num_symbols

    @property
    def padding(self) -> int:
        """The token after the end."""
        return self.num_symbols + 1

    @property
    def vocab_size(self) -> int:
        """Symbols, separator and padding."""
        return self.num_symbols + 2

    @property
    def max_tokens(self) -> int:
        """The longest problem."""
        return self.strings[1] * (self.length[1] + 1) - 1

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """`count` problems of as many automata; fewer are the first of more."""
        expect(count >= 1, "RegBench", "count", "be at least 1", count)
        draws = _draws(self, seed, split)
        automata: dict[Automaton, list[int]] = {}
        for _ in range(count):
            automaton = self._new_automaton(automata, split, draws)
            automata[automaton] = self._strings(automaton, draws)
        return self._examples(tuple(automata), list(automata.values()))

    def fresh_strings(self, examples: TokenExamples, seed: int) -> TokenExamples:
        """Other strings of the same automata: what a model of these languages should know without a context."""
        draws = _draws(self, seed, "test")
        automata = examples.details.automata
        return self._examples(automata, [self._strings(automaton, draws) for automaton in automata])

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """See the class."""
        logits, allowed = predictions[:, :-1], self._allowed(examples)[:, :-1]
        scored = examples.labels[:, 1:] >= 0
        is_allowed = allowed.gather(-1, logits.argmax(-1, keepdim=True)).squeeze(-1)
        uniform = allowed / allowed.sum(-1, keepdim=True).clamp_min(1).double()
        distance = (torch.where(scored[..., None], logits, 0.0).double().softmax(-1) - uniform).abs().sum(-1) / 2
        last = scored & (scored.flip(1).cumsum(1).flip(1) == 1)
        masks = (("", scored), ("last_", last))
        values = (("accuracy", is_allowed.double()), ("tvd", distance))
        return {prefix + name: (value * mask).sum(1) / mask.sum(1) for prefix, mask in masks for name, value in values}

    def select(self, examples: TokenExamples, rows: Tensor) -> TokenExamples:
        """Some of the examples, without the columns that are padding in all of them."""
        automata, lengths = examples.details.automata, examples.details.lengths[rows]
        width = int(lengths.max())
        details = Problems(tuple(automata[row] for row in rows.tolist()), lengths)
        return TokenExamples(examples.tokens[rows, :width], examples.labels[rows, :width], details)

    def _allowed(self, examples: TokenExamples) -> Tensor:
        """Whether a token may come after position t: booleans (B, T, V), symbols only.

        The state is the one reached inside the current string, that of the start at a separator; past the end of a
        problem nothing is allowed.
        """
        allowed = torch.zeros(*examples.tokens.shape, self.vocab_size, dtype=torch.bool)
        for row, (automaton, length) in enumerate(zip(*examples.details)):
            moves = [dict(edges) for edges in automaton.edges]
            table = torch.zeros(len(moves), self.vocab_size, dtype=torch.bool)
            for state, edges in enumerate(moves):
                table[state, list(edges)] = True
            state, reached = 0, []
            for token in examples.tokens[row, : int(length)].tolist():
                state = moves[state][token] if token < self.num_symbols else 0
                reached.append(state)
            allowed[row, : len(reached)] = table[reached]
        return allowed

    def _new_automaton(self, known: dict[Automaton, list[int]], split: str, draws: random.Random) -> Automaton:
        for _ in range(MAX_TRIES):
            automaton = random_automaton(draws, self.states, self.alphabet, self.num_symbols, self.max_edges)
            if automaton.digest() % len(SPLITS) == SPLITS.index(split) and automaton not in known:
                return automaton
        raise TesseraError(
            f"RegBench: count must be at most the number of automata that these settings give; "
            f"got stuck after {len(known)}. Use more states or symbols."
        )

    def _strings(self, automaton: Automaton, draws: random.Random) -> list[int]:
        while True:
            tokens: list[int] = []
            for index in range(draws.randint(*self.strings)):
                tokens += [self.separator] * (index > 0) + automaton.string(draws.randint(*self.length), draws)
            if len(tokens) > 1:
                return tokens

    def _examples(self, automata: tuple[Automaton, ...], problems: list[list[int]]) -> TokenExamples:
        """Labels leave out padding, separators and the first token."""
        rows = [torch.tensor(problem) for problem in problems]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self.padding)
        labels = tokens.masked_fill(tokens >= self.num_symbols, IGNORED)
        labels[:, 0] = IGNORED
        return TokenExamples(tokens, labels, Problems(automata, torch.tensor([len(row) for row in rows])))


def _draws(task: RegBench, seed: int, split: str) -> random.Random:
    """Python's generator, seeded as every task's are: walking an automaton symbol by symbol is not tensor work."""
    return random.Random(int(torch.randint(2**62, (), generator=generator_of(task, seed, split))))


def ngram_log_probabilities(task: RegBench, examples: TokenExamples, order: int) -> Tensor:
    """Log-probabilities (B, T, V) of an n-gram model of each problem itself, which needs no training.

    At each position: how often each symbol has followed so far the longest context that has occurred before, of at
    most `order` tokens of the current string (its separator included); all symbols alike before any has.
    """
    shares = torch.zeros(*examples.tokens.shape, task.vocab_size, dtype=torch.float64)
    for row, length in enumerate(examples.details.lengths.tolist()):
        tokens, start = examples.tokens[row, :length].tolist(), 0
        counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for column, following in enumerate([*tokens[1:], task.separator]):
            start = column if tokens[column] == task.separator else start
            firsts = range(max(start, column + 1 - order), column + 2)
            contexts = [tuple(tokens[first : column + 1]) for first in firsts]  # the longest first, the empty one last
            for symbol, count in next((counts[context] for context in contexts if context in counts), {}).items():
                shares[row, column, symbol] = count
            for context in contexts if following != task.separator else ():
                counts[context][following] += 1
    shares[..., : task.num_symbols] += (shares.sum(-1, keepdim=True) == 0).double()
    return (shares / shares.sum(-1, keepdim=True)).log()
