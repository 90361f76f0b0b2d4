"""Several text files, read one behind the other as one text."""

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class JoinedText:
    """Reads files in UTF-8 in their order, an empty line between two; one of them is open at a time.

    Attributes:
        path: the file that is being read. size: bytes of them all.
    Raises:
        OSError: at once, for any of the files that cannot be opened.
    """

    path: Path
    _file: IO[str]

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.open("rb").close()
        self.size = sum(path.stat().st_size for path in paths)
        self._waiting = [path for path in paths if path.stat().st_size] or [paths[0]]
        self._open_next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, count: int) -> str:
        """About `count` characters; "" at the end of the last file."""
        piece = self._file.read(count)
        if piece or not self._waiting:
            return piece
        self._file.close()
        self._open_next()
        return "\n\n"

    def _open_next(self) -> None:
        self.path = self._waiting.pop(0)
        self._file = self.path.open(encoding="utf-8")
