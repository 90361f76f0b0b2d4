"""Read a text of any length into a model's memory, and store the memory.

MODEL is a folder with an ARMT, RMT or PRMT model and its tokenizer. FILE is read piece by piece: it may be larger than
this machine's memory; "-" is standard input. The stored memory has a few megabytes, however long the text was; `tessera
ask` answers from it. --memory goes on from an earlier one.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PIECE = 1 << 16  # characters tokenized at once


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera memorize`."""
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("file", help='text file in UTF-8, or "-"')
    parser.add_argument("--out", required=True, help="file to store the memory in (safetensors)")
    parser.add_argument("--memory", help="go on from this stored memory")


def run(arguments: argparse.Namespace) -> int:
    """Read, store, say what was read."""
    from tessera.errors import TesseraError
    from tessera.models.loading import load_tokenizer
    from tessera.models.recurrence import read_stream

    path = Path(arguments.file)
    if arguments.file != "-" and not path.is_file():
        raise TesseraError(f"memorize: FILE must be a text file; got {arguments.file!r}, which does not exist.")
    if not Path(arguments.out).resolve().parent.is_dir():
        raise TesseraError(f"memorize: --out must lie in an existing folder; got {arguments.out!r}.")
    model, tokenizer = segmented_model(arguments.model, "memorize"), load_tokenizer(arguments.model)
    memory = None if arguments.memory is None else stored_memory(model, arguments.memory, "memorize")
    with sys.stdin if arguments.file == "-" else path.open(encoding="utf-8") as file:
        try:
            state = read_stream(model, token_stream(file, tokenizer), memory, progress=sys.stderr.isatty())
        except UnicodeDecodeError as error:
            raise TesseraError(
                f"memorize: FILE must be text in UTF-8; got {arguments.file!r} ({error.reason})."
            ) from None
    state.save(arguments.out)
    size = Path(arguments.out).stat().st_size / 1e6
    print(f"{arguments.out}: {int(state.tokens_read):,} tokens in {int(state.segments_read):,} segments, {size:.2f} MB")
    return 0


def segmented_model(folder: str, verb: str):
    """The model in `folder`, which must read in segments."""
    from tessera.errors import TesseraError
    from tessera.models.loading import load_model
    from tessera.models.recurrence import SegmentedForCausalLM

    model = load_model(folder)
    if not isinstance(model, SegmentedForCausalLM):
        kind = model.config.model_type
        raise TesseraError(f"{verb}: MODEL must be an ARMT, RMT or PRMT model; got {kind!r} in {folder!r}.")
    return model


def stored_memory(model, path: str, verb: str):
    """The memory in `path`, which must be one of this model's."""
    state = model.state_class.load(path)
    state.expect_fits(model.empty_memory(1), verb)
    return state


def token_stream(file: IO[str], tokenizer) -> Iterator[int]:
    """Tokens of a text, which is cut at white space into pieces that are tokenized one by one."""
    rest = ""
    while piece := file.read(PIECE):
        rest += piece
        cut = max(rest.rfind(" "), rest.rfind("\n"))
        if cut > 0:  # the white space goes with the word behind it, as byte-level tokenizers have it
            yield from tokenizer(rest[:cut], add_special_tokens=False)["input_ids"]
            rest = rest[cut:]
    if rest:
        yield from tokenizer(rest, add_special_tokens=False)["input_ids"]
