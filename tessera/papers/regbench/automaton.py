"""Probabilistic finite automata: drawn at random, reduced to their canonical form, and walked."""

import random
from hashlib import blake2b
from typing import NamedTuple

Edges = tuple[tuple[int, int], ...]


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
    """The canonical automaton that generates what `edges[state] = {symbol: next state}` does from state 0."""
    order = _reached(edges)
    classes = _classes(edges, order)
    numbers: dict[int, int] = {}
    members: list[int] = []
    for state in order:
        if classes[state] not in numbers:
            numbers[classes[state]] = len(members)
            members.append(state)
    return Automaton(
        tuple(
            tuple((symbol, numbers[classes[edges[state][symbol]]]) for symbol in sorted(edges[state]))
            for state in members
        )
    )


def _reached(edges: list[dict[int, int]]) -> list[int]:
    """States that can be reached, breadth first, smaller symbols first."""
    order, seen = [0], {0}
    for state in order:
        for symbol in sorted(edges[state]):
            target = edges[state][symbol]
            if target not in seen:
                seen.add(target)
                order.append(target)
    return order


def _classes(edges: list[dict[int, int]], order: list[int]) -> dict[int, int]:
    """Moore's algorithm: states stay in one class while they allow the same symbols into the same classes."""
    classes, count = dict.fromkeys(order, 0), 1
    while True:
        signatures = {
            state: (classes[state], tuple((symbol, classes[edges[state][symbol]]) for symbol in sorted(edges[state])))
            for state in order
        }
        names: dict[tuple, int] = {}
        classes = {state: names.setdefault(signatures[state], len(names)) for state in order}
        if len(names) == count:
            return classes
        count = len(names)
