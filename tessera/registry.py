"""A name -> object table, the only list of what exists of its kind."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tessera import plugins
from tessera.errors import TesseraError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Named objects of one kind; `kind` is the word that error messages use.

    With `entry_points`, a group of entry points, the modules that installed packages announce there are imported when
    the table is first read, so that they register what they have.

    >>> colours = Registry("colour")
    >>> colours.add("red", 0xFF0000)
    16711680
    >>> colours["rad"]
    Traceback (most recent call last):
        ...
    tessera.errors.TesseraError: unknown colour 'rad'. Did you mean 'red'? Known: red.
    """

    def __init__(self, kind: str, entry_points: str | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._unread = entry_points

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
            raise TesseraError(f"unknown {self.kind} {name!r}. {did_you_mean(str(name), self)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._with_plugins()

    def __iter__(self) -> Iterator[str]:
        return iter(self._with_plugins())

    def __len__(self) -> int:
        return len(self._with_plugins())

    def items(self) -> list[tuple[str, T]]:
        """All (name, entry) pairs, in order of registration."""
        return list(self._with_plugins().items())

    def _with_plugins(self) -> dict[str, T]:
        group, self._unread = self._unread, None  # first, because a plugin may read the table while it registers
        try:
            for point in plugins.entry_points(group) if group else ():
                plugins.load(point)
        except TesseraError:
            self._unread = group
            raise
        return self._entries
