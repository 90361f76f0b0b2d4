"""Read texts into a model's memory, and store the memory.

MODEL is a folder with a causal language model and its tokenizer: a Memory Mosaic, ARMT, RMT, PRMT, a recurrent model
or any decoder of transformers. Each FILE is a document: text in UTF-8, packed by gzip or not; "-" is standard input;
PDF, docx, HTML and EPUB with the package markitdown. `tessera ask` answers from the stored memory, and `tessera
memories` merges and forgets documents. --append adds to the memory that --out names; --memory, in its place, goes on
from an earlier one. A text that is there already is not read again. What is read is stored on the way, and a run that
was stopped goes on with --append.
"""

import argparse
import sys
from pathlib import Path

from tessera.cli.options import of_each, standard_texts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera memorize`."""
    add = parser.add_argument
    add("model", help="folder of the model that reads")
    meaning = 'a text file, a folder of them, a bundled book, or "-" for standard input'
    add("files", nargs="+", metavar="file", help=meaning)
    add("--out", required=True, help="store the memory in this file (safetensors)")
    first = parser.add_mutually_exclusive_group()  # of two memories one would be lost
    first.add_argument("--memory", metavar="FILE", help="begin with what this stored memory holds")
    meaning = "begin with what the file of --out holds, and replace it by the longer memory"
    first.add_argument("--append", action="store_true", help=meaning)
    meaning = "number format of the products; auto (default): bf16 where the hardware multiplies in it"
    add("--precision", choices=("auto", "bf16", "fp32"), default="auto", help=meaning)
    add("--overwrite", action="store_true", help="replace the memory that the file of --out holds")


def run(arguments: argparse.Namespace) -> int:
    """Read, store, say what was read."""
    from tessera.memory_files.document import document_paths, free_name
    from tessera.memory_files.memory import memory_of
    from tessera.memory_files.storing import MemoryWriter, require_place

    out = Path(arguments.out)
    typed: tuple = (standard_texts("memorize"),) if "-" in arguments.files else ()
    sources: dict[str, tuple] = {}
    for name in arguments.files:  # in their order, which most models' memories depend on
        paths = [] if name == "-" else document_paths(name, "memorize", "FILE")
        sources |= {str(path): (path,) for path in paths} or {"-": typed}
    mark = require_place(out, arguments.overwrite or arguments.append)
    memory = memory_of(arguments.model)
    before = arguments.memory or (arguments.out if arguments.append and out.exists() else None)
    if before is not None:
        memory.load(before, "memorize", "--memory")
    sources |= {"-": (*typed, free_name("standard input", memory.names))} if typed else {}
    options = {"progress": sys.stderr.isatty(), "precision": arguments.precision}
    writer = MemoryWriter(memory, out, mark, is_stored=before == arguments.out)
    words = ["memorize", arguments.model, *arguments.files]
    words += [] if arguments.precision == "auto" else ["--precision", arguments.precision]
    words += [word for name in arguments.imports for word in ("--import", name)]
    with writer.storing_when_stopped(words):
        _, status = of_each(sources, lambda name: memory.read(*sources[name], **options), writer.after_document)
        writer.finish()
    if memory.documents:
        print(f"{out}: {memory.described()}, {out.stat().st_size / 1e6:.2f} MB")
    return status
