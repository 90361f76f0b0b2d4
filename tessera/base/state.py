"""State as a value: what a memory holds is a frozen dataclass, passed in and returned."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._pytree import GetAttrKey, register_pytree_node, tree_iter

from tessera.base.devices import is_frozen
from tessera.base.errors import TesseraError, expect

CLASSES: dict[str, type] = {}  # by name: the values that a file of states may hold


@dataclass(frozen=True)
class State:
    """Base of all memory states: tensors with the batch in their first dimension, other states, or tuples of states.

    Nothing in the library changes a state in place: a step returns a new one, and the old one stays valid. Every
    subclass is a pytree of its `parts`, so that programs of `torch.export` take and return it.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known, place = CLASSES.get(cls.__name__), (cls.__module__, cls.__qualname__)
        if known is not None and (known.__module__, known.__qualname__) != place:  # files name states by their class
            raise TesseraError(f"state {cls.__name__}: {known.__module__} has one of that name. Give it another name.")
        CLASSES[cls.__name__] = cls

        def flatten_with_keys(state: State) -> tuple[list, list[str]]:
            names = list(state.parts())
            return [(GetAttrKey(name), part) for name, part in state.parts().items()], names

        register_pytree_node(
            cls,
            lambda state: (list(state.parts().values()), list(state.parts())),
            lambda parts, names: cls.from_parts(dict(zip(names, parts))),
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
            flatten_with_keys_fn=flatten_with_keys,
        )

    def parts(self) -> dict[str, Any]:
        """What the state consists of, by name: tensors, numbers, None, other states or tuples of these.

        Not the fingerprint of its `model`: an exported program takes a state of whichever model it is for.
        """
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: part for name, part in parts.items() if name != "model" or isinstance(part, Tensor | State)}

    @classmethod
    def from_parts(cls, parts: dict[str, Any]) -> Self:
        """The state of these `parts`."""
        return cls(**parts)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same state with `function` applied to every tensor."""
        return replace(self, **{f.name: _map(getattr(self, f.name), function) for f in fields(self)})

    def detach(self) -> Self:
        """Cut off from the autograd graph."""
        return self.map(torch.detach)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Moved or cast as `Tensor.to` would; integer and boolean tensors keep their type."""
        device_only = {key: value for key, value in kwargs.items() if key == "device"}
        places = [a for a in args if not isinstance(a, torch.dtype)]
        device_only_args: list[Any] = [a.device if isinstance(a, Tensor) else a for a in places]

        def move(tensor: Tensor) -> Tensor:
            if tensor.is_floating_point():
                return tensor.to(*args, **kwargs)
            return tensor.to(*device_only_args, **device_only) if device_only_args or device_only else tensor

        return self.map(move)

    def recordable(self) -> Self:
        """The state itself, or a copy if it was made in inference mode and gradients are recorded now."""
        made = first_tensor(self)
        return self.map(torch.clone) if made is not None and is_frozen(made) else self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """What `copy.deepcopy` gives: tensors of an autograd graph stay in it (PyTorch copies none of them itself)."""
        return self.map(lambda tensor: copy.deepcopy(tensor, memo) if tensor.is_leaf else tensor.clone())

    def select_batch(self, index: Tensor) -> Self:
        """The state of the sequences `index` (integers), in that order, with repetitions: beams, sub-batches."""
        return self.map(lambda tensor: tensor.index_select(0, index.to(tensor.device)))

    @classmethod
    def joined(cls, states: "Sequence[Self]") -> Self:
        """The sequences of all `states`, one after the other. A tensor that only some have is zeros in the others: a
        document that is not given is document 0.
        """
        parts = [state.parts() for state in states]
        rows = [first.shape[0] for state in states if (first := first_tensor(state)) is not None]
        return cls.from_parts({name: _joined([part[name] for part in parts], rows) for name in parts[0]})

    def take_back(self) -> None:
        """Give up every state that was made from this one: they must not be used again, and nothing is copied for it.

        Where reading was tried: to go on from here anew, a state that others were made from would copy its pairs.
        """
        for part in self.parts().values():
            for each in part if isinstance(part, tuple) else (part,):
                if isinstance(each, State):
                    each.take_back()

    def reclaim(self, after: Any) -> None:
        """Give up `after` alone, a state that was made from this one: going on from this one anew copies no pairs.

        Unlike `take_back`, while other threads go on from it, too.
        """
        of_after = after.parts()
        for name, part in self.parts().items():
            _reclaim(part, of_after[name])

    def num_bytes(self) -> int:
        """Bytes held by the tensors of this state."""
        return sum(leaf.nbytes for leaf in tree_iter(self) if isinstance(leaf, Tensor))


def first_tensor(tree: Any) -> Tensor | None:
    """Of a state, or of what consists of states; the others are not looked at, as a decoded token asks for it."""
    return next((leaf for leaf in tree_iter(tree) if isinstance(leaf, Tensor)), None)


def _reclaim(part: Any, after: Any) -> None:
    if isinstance(part, State) and type(after) is type(part):
        part.reclaim(after)
    elif isinstance(part, tuple) and isinstance(after, tuple):
        for one, other in zip(part, after):
            _reclaim(one, other)


def _map(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, State):
        return value.map(function)
    if isinstance(value, tuple):
        return tuple(_map(item, function) for item in value)
    if isinstance(value, (list, dict, set)):  # whose tensors would stay as they are
        expect(False, "State", "what it holds", "be tensors, numbers, states or tuples of these", type(value).__name__)
    return value


def _joined(values: Sequence[Any], rows: Sequence[int]) -> Any:
    known = next((value for value in values if value is not None), None)
    if isinstance(known, State):
        return type(known).joined(values)
    if isinstance(known, tuple):
        return tuple(_joined(parts, rows) for parts in zip(*values, strict=True))
    if not isinstance(known, Tensor):
        return known
    tensors = [known.new_zeros(n, *known.shape[1:]) if value is None else value for value, n in zip(values, rows)]
    return torch.cat(tensors)
