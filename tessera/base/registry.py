"""A name -> object table, the only list of what exists of its kind."""

import importlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tessera.base import plugins
from tessera.base.errors import TesseraError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Named objects of one kind; `kind` is the word that error messages use.

    When the table is first read, modules are imported that register what they have: `filled_by`, the name of one of the
    library's own that stands above the table's room, and those that installed packages announce under `entry_points`.

    >>> colours = Registry("colour")
    >>> colours.add("red", 0xFF0000)
    16711680
    >>> colours["rad"]
    Traceback (most recent call last):
        ...
    tessera.base.errors.TesseraError: unknown colour 'rad'. Did you mean 'red'? Known: red.
    """

    def __init__(self, kind: str, entry_points: str | None = None, filled_by: str | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._unread = (filled_by, entry_points)
        self._takes_plugins = entry_points is not None

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
        if name not in self:
            own = f" {plugins.ADVICE}" if self._takes_plugins else ""
            raise TesseraError(f"unknown {self.kind} {name!r}. {did_you_mean(str(name), self)}{own}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._with_plugins()

    def holds(self, name: str, entry: T) -> bool:
        """Whether `entry` is registered under `name`. No plugin is read, which a compiled program cannot do."""
        return self._entries.get(name) is entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._with_plugins())

    def __len__(self) -> int:
        return len(self._with_plugins())

    def items(self) -> list[tuple[str, T]]:
        """All (name, entry) pairs, in order of registration."""
        return list(self._with_plugins().items())

    def _with_plugins(self) -> dict[str, T]:
        unread, self._unread = self._unread, (None, None)  # first: who registers may read the table
        module, group = unread
        try:
            if module:
                importlib.import_module(module)
            for point in plugins.entry_points(group) if group else ():
                plugins.load(point)
        except TesseraError:
            self._unread = unread
            raise
        return self._entries
