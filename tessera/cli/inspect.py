"""See what every memory of a model stored, recalled and predicted while it read a text: one HTML page.

The page opens from disk in any browser and asks no network for anything. Several models are set side by side. --save
keeps the trace itself, for Python: tessera.inspection.Trace.load.
"""

import argparse
from pathlib import Path

from tessera.cli.arguments import positive_int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera inspect`."""
    parser.add_argument("models", nargs="+", metavar="model", help="folder of a model")
    parser.add_argument("--text", required=True, type=Path, metavar="FILE", help="the text to read")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="PAGE", help="the page to write (.html)")
    parser.add_argument("--tokens", type=positive_int, default=512, help="read so many tokens of it (default: 512)")
    parser.add_argument("--last", type=positive_int, help="trace only the last so many tokens (default: all)")
    parser.add_argument("--share", type=float, default=0.99, help="list the pairs with this share (default: 0.99)")
    parser.add_argument(
        "--without",
        choices=("none", "memories", "heads"),
        default="memories",
        help="measure the loss without each memory, or also without each head (default: memories)",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="also keep the trace (one model)")


def run(arguments: argparse.Namespace) -> int:
    """Read, trace, write."""
    from tessera.errors import expect
    from tessera.inspection import trace
    from tessera.inspection.page import write_page
    from tessera.inspection.text import read_tokens
    from tessera.models.loading import load_model, load_tokenizer

    single = arguments.save is None or len(arguments.models) == 1
    expect(single, "inspect", "--save", "be given with one model", f"{len(arguments.models)} models")
    traces = []
    for folder in arguments.models:
        model, tokenizer = load_model(folder), load_tokenizer(folder)
        input_ids = read_tokens(model, tokenizer, arguments.text, arguments.tokens)
        steps = input_ids.shape[1]
        queries = range(max(0, steps - (arguments.last or steps)), steps)
        options = {"queries": queries, "share": arguments.share, "removals": arguments.without, "progress": True}
        traces.append(trace(model, input_ids, tokenizer, **options))
    write_page(arguments.output, traces, [str(folder).rstrip("/") for folder in arguments.models])
    print(f"{arguments.output}: {arguments.output.stat().st_size / 1e6:.1f} MB; open it in a browser")
    if arguments.save:
        traces[0].save(arguments.save)
        print(f"{arguments.save}: the trace, for tessera.inspection.Trace.load")
    return 0
