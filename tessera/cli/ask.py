"""Ask questions of a text that an ARMT, RMT or PRMT model reads, or of a memory that `tessera memorize` stored.

Of a model that was trained on questions (a recipe with data.task, such as armt-babilong-qa1) the answer is one word,
with the probability that the model gives it; other models continue the question. Every question is asked of the same
memory: one does not know of the others. --plant hides sentences in the text before it is read; several texts, each with
a --text of its own, are read one behind the other:

  tessera ask runs/armt-babilong-qa1 "Where is Mary?" --text book.txt --text another.txt \\
      --plant "Mary went to the kitchen."

--interactive reads questions line by line from standard input, until its end.

--samples scores the model on a file of the public BABILong benchmark, such as qa1/4k.json: the share of right answers
by the paper's exact match and by the benchmark's own rule, which looks for the answers that the file holds.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.base.errors import TesseraError, expect
from tessera.cli.arguments import standard_input
from tessera.cli.generate import add_sampling, refuse_sampling, sampling_of
from tessera.data.sources import STORIES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tessera.models.recurrence import MemoryState, SegmentedForCausalLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera ask`."""
    parser.add_argument("model", help="folder of the model that memorized")
    parser.add_argument("questions", nargs="*", default=[], metavar="question", help="text to continue")
    parser.add_argument("--memory", help="file that `tessera memorize` stored")
    parser.add_argument(
        "--text",
        action="append",
        metavar="FILE",
        help="text file to read first, in place of --memory, or the name of a bundled book; given again, the next one",
    )
    parser.add_argument(
        "--plant",
        action="append",
        default=[],
        metavar="SENTENCE",
        help="hide this sentence in --text, at a place that --seed decides; several keep their order",
    )
    parser.add_argument("--interactive", action="store_true", help="read questions from standard input, one a line")
    parser.add_argument(
        "--samples",
        metavar="FILE",
        help="JSON or JSON lines with input, question and target in each row: score the model's answers",
    )
    add_sampling(parser, max_new_tokens=50, default_temperature=0.0)


def run(arguments: argparse.Namespace) -> int:
    """Load, then answer question by question."""
    from tessera.generation.answering import answer, answers_questions, unknown_words
    from tessera.generation.memory import segmented_model, stored_memory
    from tessera.generation.sampling import continuation
    from tessera.models.saving.loading import load_tokenizer

    if arguments.samples is not None:
        return _score(arguments)
    expect(
        bool(arguments.questions) != arguments.interactive,
        "ask",
        "QUESTION",
        "be given, or --interactive, and not both",
        f"{len(arguments.questions)} questions",
    )
    sources = [name for name in ("memory", "text") if getattr(arguments, name) is not None]
    expect(len(sources) == 1, "ask", "--memory or --text", "be given, and not both", " and ".join(sources) or "neither")
    expect(arguments.text is not None or not arguments.plant, "ask", "--plant", "come with --text", "no --text")
    files = [text_file(name) for name in arguments.text or ()]
    model, tokenizer = segmented_model(arguments.model, "ask"), load_tokenizer(arguments.model)
    _refuse_ignored(arguments, tokenizer)
    if files:
        memory = _read(model, tokenizer, files, arguments.plant, arguments.seed)
    else:
        memory = stored_memory(model, arguments.memory, "ask")
    sampling = sampling_of(arguments)
    for question in _typed_questions() if arguments.interactive else arguments.questions:
        if len(arguments.questions) > 1:
            print(f"> {question}")
        if answers_questions(tokenizer):
            if unknown := unknown_words(tokenizer, question):
                print(f"ask: the model knows no word {', '.join(unknown)}", file=sys.stderr)
            word, probability = answer(model, tokenizer, question, memory)
            print(f"{word} ({100 * probability:.1f} %)", flush=True)
        else:
            print(continuation(model, tokenizer, question, sampling, where="ask", memory_state=memory), flush=True)
    return 0


def _score(arguments: argparse.Namespace) -> int:
    """Answer the questions of a file of samples, and print how many answers are right."""
    from tqdm import tqdm

    from tessera.generation.memory import segmented_model
    from tessera.models.saving.loading import load_tokenizer
    from tessera.papers.babilong.asking import is_right
    from tessera.papers.babilong.benchmark import read_samples, subtargets

    others = [name for name in ("memory", "text") if getattr(arguments, name) is not None]
    others += [name for name in ("questions", "plant", "interactive") if getattr(arguments, name)]
    expect(not others, "ask", "--samples", "come without questions, texts and memories", " and ".join(others))
    samples = read_samples(Path(arguments.samples))
    model, tokenizer = segmented_model(arguments.model, "ask"), load_tokenizer(arguments.model)
    _refuse_ignored(arguments, tokenizer)
    answers = {answer for sample in samples for answer in subtargets(sample.target)}
    sampling = sampling_of(arguments)
    bar = tqdm(samples, desc="samples", disable=not sys.stderr.isatty())
    scores = [is_right(model, tokenizer, sample, answers, sampling) for sample in bar]
    print(f"{len(samples)} samples of {Path(arguments.samples).name}, right in per cent:")
    print(f"exact match      {100 * sum(one.exact for one in scores) / len(scores):5.1f}")
    print(f"benchmark's rule {100 * sum(one.published for one in scores) / len(scores):5.1f}")
    return 0


def _refuse_ignored(arguments: argparse.Namespace, tokenizer: "PreTrainedTokenizerFast") -> None:
    from tessera.generation.answering import answers_questions

    if answers_questions(tokenizer):
        refuse_sampling(arguments, "ask", "this model answers questions, with its likeliest word")


def text_file(name: str) -> Path:
    """The file called `name`, here or among the bundled stories."""
    for path in (Path(name), STORIES / name):
        if path.is_file():
            return path
    books = ", ".join(sorted(path.name for path in STORIES.glob("*.txt")))
    raise TesseraError(f"ask: --text must be a text file, or a bundled book ({books}); got {name!r}.")


def _read(
    model: "SegmentedForCausalLM", tokenizer: "PreTrainedTokenizerFast", paths: list[Path], facts: list[str], seed: int
) -> "MemoryState":
    """The memory after the texts with the facts planted in them; says on standard error what was read."""
    from tessera.generation.memory import token_stream
    from tessera.models.recurrence import read_stream
    from tessera.papers.babilong.asking import JoinedText, PlantedText

    with JoinedText(paths) as joined:
        text = PlantedText(joined, joined.size, facts, seed)
        try:
            stream = token_stream(text, tokenizer, "ask: --text")
            memory = read_stream(model, stream, progress=sys.stderr.isatty(), precision="auto")
        except UnicodeDecodeError as error:
            raise TesseraError(f"ask: --text must be UTF-8; got {str(joined.path)!r} ({error.reason}).") from None
    for fact, place in zip(facts, text.places):
        print(f"planted after {100 * place:.0f} % of the text: {fact}", file=sys.stderr)
    tokens, segments = int(memory.tokens_read), int(memory.segments_read)
    print(f"{', '.join(path.name for path in paths)}: {tokens:,} tokens read in {segments:,} segments", file=sys.stderr)
    return memory


def _typed_questions():
    """Lines of standard input that hold something."""
    lines = standard_input("ask")
    while True:
        if lines.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = lines.readline()
        except UnicodeDecodeError as error:
            raise TesseraError(f"ask: standard input must be text in UTF-8 ({error.reason}).") from None
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")
