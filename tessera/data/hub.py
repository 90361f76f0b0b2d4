"""Text of Hugging Face datasets; the `datasets` package is optional and imported at its first use."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tessera.base.errors import TesseraError, did_you_mean, first_line


def dataset_source(
    name: str, subset: str | None, split: str, text_column: str
) -> tuple[str, Callable[[], Iterator[Iterator[str]]], tuple[object, ...]]:
    """Name, documents and identity of one split: every row of `text_column` is a document.

    `name` is a name on the hub, a folder of data files, or a folder written by `save_to_disk`. The rows stay in the
    dataset's memory-mapped files. Raises `TesseraError` for a missing package, dataset, subset, split or column.
    """
    rows = _load(name, subset, split)
    if text_column not in rows.column_names:
        raise TesseraError(f"dataset {name}: no column {text_column!r}. {did_you_mean(text_column, rows.column_names)}")

    def documents() -> Iterator[Iterator[str]]:
        for row in rows:
            if row[text_column]:
                yield iter([row[text_column]])

    return f"{name} ({split})", documents, (name, subset, split, text_column, rows._fingerprint)


def _load(name: str, subset: str | None, split: str) -> Any:
    if not name.strip("./ "):  # the package would read every file below this folder
        raise TesseraError(f"dataset {name!r}: must be a name on the hub or a folder of data files.")
    try:
        import datasets
    except ImportError:
        raise TesseraError(f"dataset {name}: needs the datasets package. Run: pip install 'tessera[hub]'.") from None
    try:
        if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
            saved = datasets.load_from_disk(name)
            return saved[split] if isinstance(saved, datasets.DatasetDict) else saved
        return datasets.load_dataset(name, subset, split=split)
    except Exception as error:  # an odd name makes the package raise anything, down to IndexError
        here = "" if Path(name).exists() else ", and no file or folder here has that name"
        raise TesseraError(f"dataset {name}: split {split!r} cannot be loaded ({first_line(error)}){here}.") from error
