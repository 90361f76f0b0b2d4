"""Read a text of any length into a model's memory, and store the memory.

MODEL is a folder with an ARMT, RMT or PRMT model and its tokenizer. FILE is read piece by piece: it may be larger than
this machine's memory; "-" is standard input. The stored memory has a few megabytes, however long the text was; `tessera
ask` answers from it. --memory goes on from an earlier one.
"""

import argparse
import sys
from pathlib import Path

from tessera.base.errors import TesseraError
from tessera.cli.arguments import standard_input


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera memorize`."""
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("file", help='text file in UTF-8, or "-"')
    parser.add_argument("--out", required=True, help="file to store the memory in (safetensors)")
    parser.add_argument("--memory", help="go on from this stored memory")
    parser.add_argument(
        "--precision",
        choices=("auto", "bf16", "fp32"),
        default="auto",
        help="of the products; auto (default): bf16 where the hardware multiplies it, else fp32",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the stored memory that --out names")


def run(arguments: argparse.Namespace) -> int:
    """Read, store, say what was read."""
    from tessera.generation.memory import require_place, segmented_model, store_memory, stored_memory, token_stream
    from tessera.models.recurrence import read_stream
    from tessera.models.saving.loading import load_tokenizer

    source, out = Path(arguments.file), Path(arguments.out)
    if arguments.file != "-" and not source.is_file():
        what = "is no plain file; pipe it in with -" if source.exists() else "does not exist"
        raise TesseraError(f"memorize: FILE must be a text file; got {arguments.file!r}, which {what}.")
    require_place(out, arguments.overwrite)
    model, tokenizer = segmented_model(arguments.model, "memorize"), load_tokenizer(arguments.model)
    memory = None if arguments.memory is None else stored_memory(model, tokenizer, arguments.memory, "memorize")
    with standard_input("memorize") if arguments.file == "-" else source.open(encoding="utf-8") as file:
        try:
            stream = token_stream(file, tokenizer)
            state = read_stream(model, stream, memory, sys.stderr.isatty(), precision=arguments.precision)
        except UnicodeDecodeError as error:
            raise TesseraError(
                f"memorize: FILE must be text in UTF-8; got {arguments.file!r} ({error.reason})."
            ) from None
    store_memory(state, model, tokenizer, out)
    tokens, segments, size = int(state.tokens_read), int(state.segments_read), out.stat().st_size / 1e6
    print(f"{out}: {tokens:,} tokens in {segments:,} segments, {size:.2f} MB")
    return 0
