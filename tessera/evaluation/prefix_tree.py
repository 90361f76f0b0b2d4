"""What several sequences have in common at their beginning, so that it can be read once."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class SharedPrefix:
    """The first `end` tokens of several sequences.

    Attributes:
        sequence: the number of one of them. end: how many tokens they share. rows: the sequences that are read on their
            own from here. branches: longer prefixes of some of them.
    """

    sequence: int
    end: int
    rows: list[int] = field(default_factory=list)
    branches: list["SharedPrefix"] = field(default_factory=list)


def prefix_tree(sequences: Sequence[Sequence[int]], worth: int) -> SharedPrefix:
    """The tree of the prefixes that are worth being read once.

    A prefix of n sequences is, if reading it once instead of n times saves at least `worth` tokens. The root has
    `end` 0 unless all sequences share such a prefix.

    >>> tree = prefix_tree([[1, 2, 3, 4], [1, 2, 3, 5], [7, 8]], worth=3)
    >>> tree.end, tree.rows, tree.branches
    (0, [2], [SharedPrefix(sequence=0, end=3, rows=[0, 1], branches=[])])
    """
    order = sorted(range(len(sequences)), key=lambda number: tuple(sequences[number]))
    common = [_common(sequences[one], sequences[next_]) for one, next_ in itertools.pairwise(order)]
    root = SharedPrefix(order[0] if order else 0, 0)
    pending = [(root, 0, len(order))] if order else []
    while pending:  # a range of the sorted sequences, below a node that they share
        node, first, last = pending.pop()
        if last - first == 1:
            node.rows.append(order[first])
            continue
        shared = min(common[first : last - 1])
        if (shared - node.end) * (last - first - 1) >= worth:
            branch = SharedPrefix(order[first], shared)
            node.branches.append(branch)
            node = branch
        cuts = [place + 1 for place in range(first, last - 1) if common[place] == shared]
        pending += [(node, begin, end) for begin, end in zip([first, *cuts], [*cuts, last])]
    if not root.rows and len(root.branches) == 1:
        return root.branches[0]
    return root


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    for place, (mine, theirs) in enumerate(zip(one, other)):
        if mine != theirs:
            return place
    return min(len(one), len(other))
