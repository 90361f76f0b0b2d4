"""See what every memory of a model stored, recalled and predicted while it read a text: one HTML page.

The page opens from disk in any browser and asks no network for anything. Several models, or several texts, are set side
by side. --memory reads the text behind a memory that `tessera memorize` stored; without a text the page shows what that
memory holds. --save keeps the trace itself, for Python: tessera.inspection.Trace.load.
"""

import argparse
import sys
from pathlib import Path

from tessera.base.errors import expect
from tessera.base.files import expect_output
from tessera.cli.arguments import positive_int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera inspect`."""
    parser.add_argument("models", nargs="+", metavar="model", help="folder of a model")
    parser.add_argument("--text", nargs="+", default=[], type=Path, metavar="FILE", help="the text, or texts, to read")
    parser.add_argument("--memory", metavar="FILE", help="a memory of the model, stored by tessera memorize")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="PAGE", help="the page to write (.html)")
    parser.add_argument("--tokens", type=positive_int, default=512, help="read so many tokens of it (default: 512)")
    parser.add_argument("--last", type=positive_int, default=512, help="trace the last so many of them (default: 512)")
    parser.add_argument(
        "--share",
        type=float,
        default=0.99,
        help="of kernels that give weight to every pair, list the heaviest with this share of it (default: 0.99)",
    )
    parser.add_argument(
        "--most-pairs", type=positive_int, default=1000, help="but at most so many per query and head (default: 1000)"
    )
    parser.add_argument(
        "--without",
        choices=("none", "memories", "heads"),
        default="memories",
        help="measure the loss without each memory, or also without each head (default: memories)",
    )
    parser.add_argument(
        "--without-pairs",
        nargs="+",
        type=int,
        default=[],
        metavar="PAIR",
        help="also measure the loss without these stored pairs (numbers of tokens), in each memory",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="also keep the trace (of one model and one text)")


def run(arguments: argparse.Namespace) -> int:
    """Read, trace, write."""
    from tessera.inspection import trace, trace_memory
    from tessera.inspection.page import is_page, write_page
    from tessera.inspection.text import read_tokens
    from tessera.inspection.trace import is_trace
    from tessera.memory_files.memory import Memory
    from tessera.models.saving.loading import load_model, load_tokenizer

    expect(arguments.text or arguments.memory, "inspect", "--text or --memory", "be given", "neither")
    pages = len(arguments.models) * max(1, len(arguments.text))
    expect(arguments.save is None or pages == 1, "inspect", "--save", "be given with one model and one text", pages)
    expect_output(arguments.output, "inspect", "--output", is_page, "a page")
    if arguments.save is not None:
        expect_output(arguments.save, "inspect", "--save", is_trace, "a trace")
    traces, titles = [], []
    for folder in arguments.models:
        model, tokenizer, memory = load_model(folder), load_tokenizer(folder), None
        if arguments.memory is not None:
            memory = Memory(model, tokenizer).load(arguments.memory, "inspect", "--memory").state
        for path in arguments.text:
            input_ids = read_tokens(model, tokenizer, path, arguments.tokens)
            steps = input_ids.shape[1]
            queries = range(max(0, steps - arguments.last), steps)
            options = {
                "queries": queries,
                "share": arguments.share,
                "most_pairs": arguments.most_pairs,
                "removals": arguments.without,
                "removed_pairs": arguments.without_pairs,
                "memory": memory,
                "progress": sys.stderr.isatty(),
            }
            traces.append(trace(model, input_ids, tokenizer, **options))
            titles.append(str(folder).rstrip("/") + (f", {path.name}" if len(arguments.text) > 1 else ""))
        if memory is not None and not arguments.text:
            traces.append(trace_memory(model, memory, tokenizer))
            titles.append(f"{folder}, {arguments.memory}")
    write_page(arguments.output, traces, titles)
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if arguments.save:
        traces[0].save(arguments.save)
        print(f"{arguments.save}: the trace, for tessera.inspection.Trace.load")
    return 0
