"""Files that are complete or absent, and every failing write as one line."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tessera.base.errors import TesseraError

# What safetensors, tokenizers and torch say of the system's errors; their exceptions share no class.
_FOREIGN_WRITE_ERRORS = (
    "os error",
    "I/O error",
    "inline_container",
    "PytorchStreamWriter",
    "cannot be opened",
    "Parent directory",
)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """`write(temporary)`, wait for the disk, rename it to `path`: a reader, or a kill, never meets half a file.

    Where `path` is a symbolic link, the file that it leads to is replaced, and the link stays.
    """
    path = Path(os.path.realpath(path))
    temporary = _draft_of(path)
    try:
        write(temporary)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def expect_new_folder(path: Path, where: str, argument: str) -> None:
    """Raise `TesseraError` unless `path` is absent or an empty folder, and can be written: before the work."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise TesseraError(f"{path}: already exists and is not an empty folder. Choose another output.")
    expect_output(path.parent / f"{path.name}.tmp" if path.exists() else path, where, argument)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `path` (absent, or an empty folder) at the end, complete, or is deleted."""
    draft = _draft_of(path)
    draft.mkdir()
    try:
        yield draft
        for file in draft.rglob("*"):
            sync(file)
        os.replace(draft, path)
    finally:
        remove(draft)


def _draft_of(path: Path) -> Path:
    """The name of what will be `path`; what killed processes of this machine have left under such names is deleted."""
    start = f"{path.name}.{socket.gethostname()}-"
    for name in os.listdir(path.parent):
        process = name.removeprefix(start).removesuffix(".tmp")
        if name.startswith(start) and name.endswith(".tmp") and process.isdecimal() and not _is_alive(int(process)):
            remove(path.with_name(name))
    return path.with_name(f"{start}{os.getpid()}.tmp")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def write_text_atomically(path: Path, text: str) -> None:
    """`text` in UTF-8, complete or not at all."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def sync(path: Path) -> None:
    """Wait until a file or folder has reached the disk; a file gets the mode of new ones: safetensors makes its own."""
    if path.is_file():
        mask = os.umask(0)
        os.umask(mask)
        path.chmod(0o666 & ~mask)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path | str, what: str = "", advice: str = "") -> Iterator[None]:
    """Turn what a failing write inside raises (the system's, safetensors', tokenizers' or torch's) into one line.

    Raises `TesseraError`: `{path}: {what} cannot be written ({reason}). {advice}`; every other exception passes.
    """
    try:
        yield
    except TesseraError:
        raise
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        what = f"{what} " if what else ""
        raise TesseraError(f"{path}: {what}cannot be written ({reason})." + (f" {advice}" if advice else "")) from error


def expect_writable(path: Path, where: str, argument: str) -> None:
    """Raise `TesseraError` unless the file `path` could be written: before hours of work, not after them.

    Makes a nameless file in its folder, or in the nearest folder above that exists; nothing is left behind.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        os.fspath(path).encode()  # half of a surrogate pair is no name
        if "\0" in os.fspath(path):
            raise ValueError("its name has a null byte")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TesseraError(f"{where}: {argument} must be a file that can be written; got {path} ({reason}).") from None


def expect_output(
    path: Path | None, where: str, argument: str, is_ours: Callable[[Path], bool] | None = None, what: str = ""
) -> None:
    """Raise `TesseraError` unless the file `path` may be written, as `expect_writable`: in a folder that exists.

    A file that exists is replaced only where it `is_ours`: `what`, such as "a figure", written by this library. None:
    nothing will be written.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise TesseraError(f"{where}: {argument} must lie in an existing folder; got {str(path)!r}.")
    expect_writable(path, where, argument)
    if path.exists() and not (is_ours is not None and path.is_file() and is_ours(path)):
        allowed = f"a new file or {what} to replace" if what else "a new file"
        known = f" and is no {what.removeprefix('a ')} of this library" if what else ""
        raise TesseraError(f"{where}: {argument} must be {allowed}; got {str(path)!r}, which exists{known}.")


def expect_plain_file(path: Path, where: str, argument: str) -> None:
    """Raise `TesseraError` unless `path` is a file: reading a named pipe would wait for ever."""
    try:
        is_there, reason = path.is_file(), "is no plain file" if path.exists() else "does not exist"
    except PermissionError as error:
        is_there, reason = False, f"cannot be read ({error.strerror})"
    except (OSError, ValueError) as error:
        is_there, reason = False, f"is no name ({getattr(error, 'strerror', None) or error})"
    if not is_there:
        raise TesseraError(f"{where}: {argument} must be a file; got {str(path)!r}, which {reason}.")


def is_marked(path: Path, mark: str) -> bool:
    """Whether `path` is a file that holds this text, by which this library knows what it wrote."""
    try:
        return mark.encode() in path.read_bytes()
    except OSError:
        return False


def _reason(error: Exception) -> str | None:
    """Why a write failed, in a few words; None for an exception that is about something else."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, ValueError) and "null byte" in str(error):
        return "its name has a null byte"
    if isinstance(error, ValueError) and "empty name" in str(error):
        return "it is a folder"
    lines = str(error).strip().splitlines()
    is_about_writing = lines and any(mark in lines[0] for mark in _FOREIGN_WRITE_ERRORS)
    return lines[0].rstrip(".") if is_about_writing else None
