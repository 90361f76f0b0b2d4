"""See what every memory of a model stored, recalled and predicted while it read a text: one HTML page.

The page opens from disk in any browser and asks no network for anything. Several models, or several texts, are set side
by side. --memory reads the text behind a memory that `tessera memorize` stored; without a text the page shows what that
of an ARMT, RMT or PRMT holds. --save keeps the trace itself, for Python: tessera.inspection.Trace.load.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from tessera.base.errors import expect
from tessera.base.files import expect_output, expect_plain_file
from tessera.cli.options import expect_two_files, of_each, positive_int, probability, whole_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera inspect`."""
    add = parser.add_argument
    add("models", nargs="+", metavar="model", help="folder of the model; several are set side by side")
    meaning = "the text to read; several are set side by side"
    add("--text", nargs="+", default=[], type=Path, metavar="FILE", help=meaning)
    meaning = "read behind what this memory holds, which tessera memorize stored with the same model"
    add("--memory", metavar="FILE", help=meaning)
    add("-o", "--output", required=True, type=Path, metavar="PAGE", help="write the page into this file (.html)")
    add("--tokens", type=positive_int, default=512, help="read so many tokens of the text (default: 512)")
    meaning = "show what happened at the last so many of these tokens (default: 512)"
    add("--last", type=positive_int, default=512, help=meaning)
    meaning = "where every pair has weight, list the heaviest ones that have this share together (default: 0.99)"
    add("--share", type=probability, default=0.99, help=meaning)
    meaning = "list at most so many pairs for each query and head (default: 1000)"
    add("--most-pairs", type=positive_int, default=1000, help=meaning)
    meaning = "also measure the loss with each memory, or with each head, left out in turn (default: memories)"
    add("--without", choices=("none", "memories", "heads"), default="memories", help=meaning)
    meaning = "also measure the loss without these stored pairs, which are numbered as the tokens are"
    add("--without-pairs", nargs="+", type=whole_number, default=[], metavar="PAIR", help=meaning)
    meaning = "also keep the numbers of the page in this file, for Python (of one model and one text)"
    add("--save", type=Path, metavar="FILE", help=meaning)


def run(arguments: argparse.Namespace) -> int:
    """Read, trace, write."""
    from tessera.inspection import trace, trace_memory
    from tessera.inspection.page import is_page, write_page
    from tessera.inspection.text import read_tokens
    from tessera.inspection.trace import is_trace
    from tessera.memory_files.memory import Memory
    from tessera.models.recurrence import SegmentedForCausalLM
    from tessera.models.saving.loading import load_model, load_tokenizer
    from tessera.models.stack import StackForCausalLM

    expect(arguments.text or arguments.memory, "inspect", "--text or --memory", "be given", "neither")
    pages = len(arguments.models) * max(1, len(arguments.text))
    expect(arguments.save is None or pages == 1, "inspect", "--save", "be given with one model and one text", pages)
    expect_output(arguments.output, "inspect", "--output", is_page, "a page")
    expect_output(arguments.save, "inspect", "--save", is_trace, "a trace")
    expect_two_files(arguments, "inspect", "save", "output")
    for path in arguments.text:
        expect_plain_file(path, "inspect", "--text")
    traces, titles = [], []
    options = {"removals": arguments.without, "removed_pairs": arguments.without_pairs}
    options |= {"share": arguments.share, "most_pairs": arguments.most_pairs, "progress": sys.stderr.isatty()}

    def read(folder: str) -> None:
        """Trace what a model does with each text."""
        model, tokenizer = load_model(folder), load_tokenizer(folder)
        state: Any = None
        if arguments.memory is not None:
            memory = Memory(model, tokenizer).load(arguments.memory, "inspect", "--memory")
            state, is_segmented = memory.state, isinstance(model, SegmentedForCausalLM)
            is_known, got = is_segmented or isinstance(model, StackForCausalLM), f"one of {memory.kind}"
            expect(is_known, "inspect", "--memory", "be of a v1, v2, linear, ARMT, RMT or PRMT model", got)
            needed = f"be given with the memory of a {memory.kind}, which shows what a text recalls from it"
            advice = "tessera memories info lists its documents."
            expect(is_segmented or bool(arguments.text), "inspect", "--text", needed, "none", advice)
        for path in arguments.text:
            input_ids = read_tokens(model, tokenizer, path, arguments.tokens, state is None)
            queries = range(input_ids.shape[1])[-arguments.last :]
            traces.append(trace(model, input_ids, tokenizer, queries=queries, state=state, **options))
            titles.append(str(folder).rstrip("/") + (f", {path.name}" if len(arguments.text) > 1 else ""))
        if not arguments.text:
            traces.append(trace_memory(model, state, tokenizer))
            titles.append(f"{folder}, {arguments.memory}")

    _, status = of_each(arguments.models, read)
    if not traces:
        return status
    write_page(arguments.output, traces, titles)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if arguments.save:
        traces[0].save(arguments.save)
        print(f"{arguments.save}: the trace, for tessera.inspection.Trace.load")
    return status
