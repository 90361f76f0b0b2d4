"""Read a text of any length into a model's memory, and store the memory.

MODEL is a folder with an ARMT, RMT or PRMT model and its tokenizer. FILE is text in UTF-8, read piece by piece: it may
be larger than this machine's memory; "-" is standard input. The stored memory has a few megabytes, however long the
text was; `tessera ask` answers from it. --memory goes on from an earlier one.
"""

import argparse
import sys
from pathlib import Path

from tessera.cli.arguments import standard_texts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera memorize`."""
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("file", help='text file, packed by gzip or not, a folder of such, a bundled book, or "-"')
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
    from tessera.data.encoding import PIECE, token_stream
    from tessera.data.text_files import text_of_files
    from tessera.generation.memory import require_place, segmented_model, store_memory, stored_memory, text_paths
    from tessera.models.recurrence import read_stream
    from tessera.models.saving.loading import load_tokenizer

    out = Path(arguments.out)
    texts = standard_texts("memorize") if arguments.file == "-" else None
    texts = texts or text_of_files(text_paths(arguments.file, "memorize", "FILE"), PIECE)
    require_place(out, arguments.overwrite)
    model, tokenizer = segmented_model(arguments.model, "memorize"), load_tokenizer(arguments.model)
    memory = None if arguments.memory is None else stored_memory(model, tokenizer, arguments.memory, "memorize")
    stream = token_stream(texts, tokenizer)
    state = read_stream(model, stream, memory, sys.stderr.isatty(), precision=arguments.precision)
    store_memory(state, model, tokenizer, out)
    tokens, segments, size = int(state.tokens_read), int(state.segments_read), out.stat().st_size / 1e6
    print(f"{out}: {tokens:,} tokens in {segments:,} segments, {size:.2f} MB")
    return 0
