"""Ask questions of a memory that `tessera memorize` stored: print the model's continuation of each.

Every question is asked of the same memory: one does not know of the others. --interactive reads questions line by line
from standard input, until its end.
"""

import argparse
import sys

from tessera.cli.generate import add_sampling, sampling_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera ask`."""
    parser.add_argument("model", help="folder of the model that memorized")
    parser.add_argument("questions", nargs="*", default=[], metavar="question", help="text to continue")
    parser.add_argument("--memory", required=True, help="file that `tessera memorize` stored")
    parser.add_argument("--interactive", action="store_true", help="read questions from standard input, one a line")
    add_sampling(parser, max_new_tokens=50, default_temperature=0.0)


def run(arguments: argparse.Namespace) -> int:
    """Load, then answer question by question."""
    from tessera.errors import expect
    from tessera.generation.memory import segmented_model, stored_memory
    from tessera.generation.sampling import continuation
    from tessera.models.loading import load_tokenizer

    expect(
        bool(arguments.questions) != arguments.interactive,
        "ask",
        "QUESTION",
        "be given, or --interactive, and not both",
        f"{len(arguments.questions)} questions",
    )
    model, tokenizer = segmented_model(arguments.model, "ask"), load_tokenizer(arguments.model)
    memory = stored_memory(model, arguments.memory, "ask")
    sampling = sampling_of(arguments)
    for question in _typed_questions() if arguments.interactive else arguments.questions:
        if len(arguments.questions) > 1:
            print(f"> {question}")
        print(continuation(model, tokenizer, question, sampling, where="ask", memory_state=memory), flush=True)
    return 0


def _typed_questions():
    """Lines of standard input that hold something."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")
