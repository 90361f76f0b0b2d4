"""A name -> object table, the only list of what exists of its kind."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tessera.errors import TesseraError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Named objects of one kind; `kind` is the word that error messages use.

    >>> colours = Registry("colour")
    >>> colours.add("red", 0xFF0000)
    16711680
    >>> colours["rad"]
    Traceback (most recent call last):
        ...
    tessera.errors.TesseraError: unknown colour 'rad'. Did you mean 'red'? Known: red.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        """Register `entry` under `name`; a name is taken once."""
        if name in self._entries:
            raise TesseraError(f"{self.kind} {name!r} is already registered")
        self._entries[name] = entry
        return entry

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator form of `add`."""
        return lambda entry: self.add(name, entry)

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise TesseraError(f"unknown {self.kind} {name!r}. {did_you_mean(name, self._entries)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[tuple[str, T]]:
        """All (name, entry) pairs, in order of registration."""
        return list(self._entries.items())
