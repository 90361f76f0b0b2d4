"""Several continuations of one text that was read once."""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def fork(state: Any, rows: int | Tensor) -> Any:
    """`state` of one row for `rows` rows, or of those of its rows that `rows` lists: an earlier `past_key_values`.

    The result is apart from `state`, which stays as it is and may be forked again.
    """
    index = rows if isinstance(rows, Tensor) else torch.zeros(rows, dtype=torch.long)
    if hasattr(state, "select_batch"):
        return state.select_batch(index)
    copied = copy.deepcopy(state)  # a cache of transformers changes in place
    copied.reorder_cache(index)
    return copied


def state_bytes(state: Any) -> int:
    """Bytes of all tensors of a state or cache, each counted once."""
    storages = (tensor.untyped_storage() for tensor in state_tensors(state))
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def state_numbers(state: Any) -> int:
    """How many floating-point numbers a state or cache holds: what a model can remember at most."""
    return sum(tensor.numel() for tensor in state_tensors(state) if tensor.is_floating_point())


def state_tensors(state: Any) -> Iterator[Tensor]:
    """Every tensor in a state, a cache, or what holds them, once."""
    pending, seen = [state], set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            pending.extend(value.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(value)
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            pending.extend(vars(value).values())
