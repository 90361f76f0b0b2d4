"""Several continuations of one text that was read once."""

import copy
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.state import State


def fork(state: Any, rows: int | Tensor) -> Any:
    """`state` of one row for `rows` rows, or of those of its rows that `rows` lists: an earlier `past_key_values`.

    The result is apart from `state`, which stays as it is and may be forked again.
    """
    index = rows if isinstance(rows, Tensor) else torch.zeros(rows, dtype=torch.long)
    if hasattr(state, "select_batch"):
        return state.select_batch(index)
    copied = apart(state)
    copied.reorder_cache(index)
    return copied


def apart(state: Any) -> Any:
    """`state`, or a copy where reading on would change it: a cache of transformers changes in place.

    Tensors of an autograd graph stay in it, although PyTorch refuses to deep-copy them.
    """
    if state is None or isinstance(state, State):
        return state
    return copy.deepcopy(state, {id(tensor): tensor.clone() for tensor in state_tensors(state) if not tensor.is_leaf})


class PastValue:
    """What transformers asks of `past_key_values`, where it is a value; `length`: steps read so far."""

    is_compileable: ClassVar[bool] = False

    def get_seq_length(self: Any, layer_idx: int = 0) -> int:
        """Steps read so far, padding included."""
        return self.length

    def crop(self, maximum_length: int) -> None:
        """Of the state of a drafting model, where a guess was wrong: refused, no value changes in place."""
        advice = "Keep the state from before; an assistant_model must be one of transformers."
        got = "one of this library, which is a value"
        expect(False, type(self).__name__, "what is cropped", "be a cache of transformers", got, advice)


def fitting(cache: Any, weight: Tensor) -> Any:
    """A cache of transformers, or a copy in the dtype and on the device of `weight` where another model has made it.

    Beside its own dtype a model keeps sums in float32, and under autocast it takes both. States cast themselves.
    """
    if cache is None or isinstance(cache, State):
        return cache
    tensors = list(state_tensors(cache))
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    is_known = not kinds or (weight.dtype in kinds and kinds <= {weight.dtype, torch.float32})
    is_known = is_known or torch.is_autocast_enabled(weight.device.type)
    if is_known and all(tensor.device == weight.device for tensor in tensors):
        return cache
    cast = (tensor.to(weight if tensor.is_floating_point() else weight.device) for tensor in tensors)
    return copy.deepcopy(cache, {id(old): new for old, new in zip(tensors, cast)})


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
