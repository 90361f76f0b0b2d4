"""List stored memories, show what they hold, merge them, forget documents.

  tessera memories ls [FOLDER]                      the memories in a folder
  tessera memories info M ...                       their documents
  tessera memories merge M1 M2 --out M              one memory of the documents of all
  tessera memories forget M DOCUMENT ... [--out M]  without these documents; in place unless --out is given

Memory Mosaics (v1, v2) hold each document apart: to merge and to forget is exact and needs no model. Of other models
the documents that follow are read again, which needs --model.
"""

import argparse
from pathlib import Path

from tessera.base.errors import TesseraError, expect
from tessera.cli.options import of_each, refuse_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera memories`."""
    add = parser.add_argument
    add("action", choices=("ls", "info", "merge", "forget"), help="list, show, merge or forget, as above")
    add("names", nargs="*", metavar="M", help="file of a memory; after forget, the names of documents too")
    add("--out", help="store the result in this file")
    add("--model", help="folder of the model, which must read documents again unless it is a Memory Mosaic")
    add("--overwrite", action="store_true", help="replace the memory that the file of --out holds")


def run(arguments: argparse.Namespace) -> int:
    """Dispatch to the action."""
    from tessera.memory_files.storing import described_file, is_stored_memory

    names, action = arguments.names, arguments.action
    if action in ("ls", "info"):
        refuse_options(arguments, "memories", ("out", "model", "overwrite"), f"with {action}")
    if action == "ls":
        folder = Path(names[0] if names else ".")
        expect(len(names) < 2 and folder.is_dir(), "memories", "ls", "be of one folder", " ".join(names))
        for path in sorted(path for path in folder.iterdir() if path.is_file() and is_stored_memory(path)):
            try:
                print(described_file(path)[0])
            except TesseraError as error:
                print(error)
        return 0
    needed = {"info": "a memory", "merge": "two memories", "forget": "a memory and a document"}[action]
    named = " ".join(names) or "nothing"
    expect(len(names) >= 1 + (action != "info"), "memories", action, f"be followed by {needed}", named)
    if action == "info":
        return of_each(names, lambda name: print(*described_file(Path(name)), sep="\n"))[1]
    return _change(arguments)


def _change(arguments: argparse.Namespace) -> int:
    import tessera.models  # noqa: F401 (what states are made of)
    from tessera.memory_files.memory import Memory, memory_of
    from tessera.memory_files.storing import described_file, mark_of, require_place

    first, *others = arguments.names
    is_merge = arguments.action == "merge"
    expect(arguments.out is not None or not is_merge, "memories", "--out", "be given with merge", "none")
    out = Path(arguments.out or first)
    advice = "Use --overwrite."
    mark = mark_of(out) if arguments.out is None else require_place(out, arguments.overwrite, "memories", advice=advice)
    memory = memory_of(arguments.model).load(first, "memories", "M")
    for name in others:
        if is_merge:
            memory.merge(Memory(memory.model, memory.tokenizer).load(name, "memories", "M"))
        else:
            memory.forget(name)
    expect(bool(memory.documents), "memories", "a document", "be left", "none", f"Delete {first} instead.")
    memory.save(out, mark)
    print(*described_file(out), sep="\n")
    return 0
