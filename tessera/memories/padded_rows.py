"""Rows with padding between their tokens, read as if it were not there, and packed documents behind a prefix.

What memories and layers compute takes padding in front of a row's tokens, and behind them where no state is kept.
Everything else is brought into the first form: each row's padding is moved to its front, and rows that go on behind a
state are read without any. A model does so once for all its layers.
A prefix stands in front of each document, as many steps before it as windows and delays count: documents become rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tessera.base.devices import has_values, is_transformed
from tessera.base.errors import expect
from tessera.base.state import State, first_tensor

Function = TypeVar("Function", bound=Callable)


class LayersRead(NamedTuple):
    """The input (B, T, hidden) of each layer and the output of the last norm, and the layers' states."""

    inputs: tuple[Tensor, ...]
    states: tuple[Any, ...]


@dataclass(frozen=True)
class HeldByMemory(State):
    """A memory's state as that of a stack of one layer, and the rest of what it is called with, row by row."""

    layers: tuple[Any, ...]


# of hidden (B, T, hidden), the layers' states before, if any, and documents (B, T)
ReadLayers = Callable[[Tensor, tuple[Any, ...] | None, Tensor], LayersRead]
# of n documents, their rows (n,) and numbers (n,): the states in front of them
StatesBefore = Callable[[Tensor, Tensor], Any]


def is_between_tokens(documents: Tensor, has_past: bool = False, keeps_state: bool = False) -> bool:
    """Whether padding (negative `documents` (B, T)) lies between tokens of its row.

    With `has_past` tokens were read before the first step, with `keeps_state` some will be read after the last.
    """
    is_token = (documents >= 0).int()
    begun = torch.ones_like(is_token) if has_past else is_token.cummax(1).values
    goes_on = torch.ones_like(is_token) if keeps_state else is_token.flip(1).cummax(1).values.flip(1)
    return bool((begun * goes_on > is_token).any())


def without_gaps(hidden: Tensor, labels: Tensor, documents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All three with padding moved to the rows' fronts where it lies between tokens: each stands before its target."""
    if not torch.compiler.is_compiling() and not is_between_tokens(documents):
        return hidden, labels, documents
    order = padding_first(documents)
    return in_order(hidden, order), in_order(labels, order), in_order(documents, order)


def padding_first(documents: Tensor) -> Tensor:
    """The order (B, T) of each row's steps in which its padding comes first."""
    return (documents >= 0).int().argsort(dim=1, stable=True)


def in_order(values: Tensor, order: Tensor) -> Tensor:
    """The steps `order` (B, n) of each row of `values` (B, T, ...)."""
    index = order.reshape(*order.shape, *[1] * (values.dim() - 2))
    return values.gather(1, index.expand(-1, -1, *values.shape[2:]))  # `take_along_dim` fixes the sizes of an export


def read_rows(read: ReadLayers, hidden: Tensor, past: Any, documents: Tensor, keeps_state: bool) -> LayersRead:
    """`read` behind the state `past`, if any, wherever the padding lies.

    A compiled program cannot look where it lies: without `past` it always moves it, behind `past` never.
    """
    is_unknown = torch.compiler.is_compiling() or is_transformed() or not has_values(documents)
    moves = is_unknown or is_between_tokens(documents, past is not None, keeps_state)
    if not moves or (is_unknown and past is not None):
        return read(hidden, None if past is None else past.layers, documents)
    if past is None:
        return _read_padding_first(read, hidden, documents)
    return _read_apart(read, hidden, past, documents, keeps_state)


def _read_padding_first(read: ReadLayers, hidden: Tensor, documents: Tensor) -> LayersRead:
    order = padding_first(documents)
    back = order.argsort(1)
    inputs, states = read(in_order(hidden, order), None, in_order(documents, order))
    return LayersRead(tuple(in_order(hidden_states, back) for hidden_states in inputs), states)


def read_each_document(
    read: ReadLayers, hidden: Tensor, before: StatesBefore, documents: Tensor, last: Tensor, keeps_state: bool
) -> LayersRead:
    """`read` with each document as a row of its own, behind the state that is `before` it.

    last: the document (B, 1) that the state of each row is of afterwards, also of one of nothing but padding.
    """
    row_of_step = torch.arange(len(documents), device=documents.device)[:, None].expand_as(documents)
    steps = torch.stack([row_of_step, documents], -1)[documents >= 0]
    rows, numbers = torch.cat([steps, torch.cat([row_of_step[:, :1], last], 1)]).unique(dim=0).unbind(1)
    past, apart = before(rows, numbers), documents[rows]
    apart = apart.masked_fill(apart != numbers[:, None], -1)
    inputs, states = _read_apart(read, hidden, past, apart, keeps_state, rows)
    is_last = (numbers == last[rows, 0]).nonzero()[:, 0]
    return LayersRead(inputs, replace(past, layers=states).select_batch(is_last).layers)


def _read_apart(
    read: ReadLayers, hidden: Tensor, past: Any, documents: Tensor, keeps_state: bool, of: Tensor | None = None
) -> LayersRead:
    """Rows of equally many tokens together, without their padding, at which the outputs are 0.

    of: the row of `hidden` that each of `documents` is a part of; None: all of its own.
    """
    order, counts = padding_first(documents), (documents >= 0).sum(1)
    of = torch.arange(len(documents), device=documents.device) if of is None else of
    inputs = [torch.zeros_like(hidden)] * (len(past.layers) + 1)
    groups, states = [], []
    for count in counts.unique().tolist():
        rows = (counts == count).nonzero()[:, 0]
        state, steps = past.select_batch(rows), order[rows, order.shape[1] - count :]
        if count:
            places = of[rows][:, None], steps
            of_rows, layers = read(hidden[places], state.layers, in_order(documents[rows], steps))
            pairs = zip(inputs, of_rows)
            inputs = [of_all.to(values.dtype).index_put(places, values) for of_all, values in pairs]
            state = replace(state, layers=layers)
        groups.append(rows)
        states.append(state)
    if not keeps_state:
        return LayersRead(tuple(inputs), ())
    after = type(past).joined(states).select_batch(torch.cat(groups).argsort())
    return LayersRead(tuple(inputs), after.layers)


def takes_padding_anywhere(read: Function) -> Function:
    """Decorate a memory's `read(x, state, documents, keep_state, *more)`, which takes padding in front.

    Not in a model, which has brought its rows into that form: there `padding_is_in_front` is set.
    """

    @wraps(read)
    def anywhere(
        memory: Any, x: Tensor, state: Any = None, documents: Any = None, keep_state: bool = False, *more: Any
    ) -> tuple[Tensor, Any]:
        if documents is None or memory.padding_is_in_front:
            return read(memory, x, state, documents, keep_state, *more)

        def read_padding_first(x: Tensor, held: tuple[Any, ...] | None, documents: Tensor) -> LayersRead:
            before, *rest = (None, *more) if held is None else held
            answers, after = read(memory, x, before, documents, keep_state, *rest)
            return LayersRead((answers,), (after, *rest))

        held = None if state is None else first_tensor(state)
        if held is not None:
            expect(len(held) == len(x), type(memory).__name__, "state", f"have {len(x)} rows, as x", len(held))
        past = None if state is None else HeldByMemory((state, *more))
        answers, states = read_rows(read_padding_first, x, past, documents, keep_state)
        return answers[0], states[0] if keep_state else None

    return anywhere  # type: ignore[return-value]
