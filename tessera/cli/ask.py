"""Ask questions of a text that a model reads, or of a memory that `tessera memorize` stored.

A model that was trained on questions (a recipe with data.task, such as armt-babilong-qa1) answers with one word and the
probability that it gives it; it says first what can be asked, and refuses words that it does not know. Other models
continue the question as a text. Every question is asked of the same memory: one does not know of the others. --plant
hides sentences in the text before it is read; several texts, each with a --text of its own, are read one behind the
other:

  tessera ask runs/armt-babilong-qa1 "Where is Mary?" --text book.txt --text another.txt \\
      --plant "Mary went to the kitchen."

--cite names the passages that carried the answer (models whose memories are pairs: v1, v2), --page writes the documents
with these passages marked. --interactive reads questions line by line from standard input, until its end.

--samples scores a model, with a memory or without, on files of the public BABILong benchmark, such as qa1/4k.json: the
share of right answers by the paper's exact match and by the benchmark's own rule, which looks for the answers of the
task that the path names. --shots puts short stories with an answer before each sample, for models that were not trained
on questions; --results writes the answers where the benchmark's own evaluation finds them:

  tessera ask gpt2 --samples data/qa1/4k.json data/qa2/4k.json --shots 2 --results babilong_evals/own/gpt2
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.base.errors import TesseraError, expect
from tessera.base.files import expect_output
from tessera.cli.arguments import OUTPUT_HELP, standard_texts, write_json_lines
from tessera.cli.generate import add_sampling, refuse_sampling, sampling_of

if TYPE_CHECKING:
    from tessera.memory_files.memory import Memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera ask`."""
    parser.add_argument("model", help="folder of the model that reads or has memorized")
    parser.add_argument("questions", nargs="*", default=[], metavar="question", help="what to ask, each on its own")
    parser.add_argument("--memory", help="file that `tessera memorize` stored with this model")
    parser.add_argument(
        "--text",
        action="append",
        default=[],
        metavar="FILE",
        help="text to read first, in place of --memory: a file, a folder or a bundled book; given again, the next one",
    )
    parser.add_argument(
        "--plant",
        action="append",
        default=[],
        metavar="SENTENCE",
        help="hide this sentence in --text, at a place that --seed decides; several keep their order",
    )
    parser.add_argument("--cite", action="store_true", help="name the passages that carried each answer")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the documents with these passages marked")
    parser.add_argument("--interactive", action="store_true", help="read questions from standard input, one a line")
    parser.add_argument(
        "--samples",
        nargs="+",
        metavar="FILE",
        help="JSON or JSON lines with input, question and target in each row: score the model's answers",
    )
    parser.add_argument("--shots", type=int, metavar="N", help="of --samples: stories with an answer before each")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="of --samples: the benchmark's CSV and JSON")
    parser.add_argument("--output", type=Path, metavar="FILE", help=OUTPUT_HELP)
    add_sampling(parser, max_new_tokens=50, default_temperature=0.0)


def run(arguments: argparse.Namespace) -> int:
    """Load, then answer question by question."""
    from tessera.memory_files.answering import answers_questions
    from tessera.memory_files.document import document_paths
    from tessera.memory_files.memory import Memory
    from tessera.models.saving.loading import load_model, load_tokenizer
    from tessera.papers.babilong.asking import read_planted

    _require_one_way(arguments)
    paths = [path for name in arguments.text for path in document_paths(name, "ask", "--text")]
    typed = standard_texts("ask", by_line=True) if arguments.interactive else iter(())
    memory = Memory(load_model(arguments.model), load_tokenizer(arguments.model))
    if answers_questions(memory.tokenizer):
        refuse_sampling(arguments, "ask", "this model answers questions, with its likeliest word")
    if arguments.samples is not None:
        return _score(arguments, memory)
    ask = _asker(arguments, memory)
    if paths:
        read_planted(memory, paths, arguments.plant, arguments.seed)
    else:
        memory.load(arguments.memory, "ask", "--memory")
    answers: list[dict] = []
    try:
        for question in itertools.chain(arguments.questions, (line.rstrip("\n") for line in typed if line.strip())):
            if len(arguments.questions) > 1:
                print(f"> {question}")
            try:
                answers.append({"question": question, **ask(question)})
            except TesseraError as error:
                if not arguments.interactive:
                    raise
                print(error, file=sys.stderr)
    finally:
        if arguments.output is not None:
            write_json_lines(arguments.output, answers)
    return 0


def _require_one_way(arguments: argparse.Namespace) -> None:
    """Raise `TesseraError` for options that exclude each other."""
    from tessera.base.files import expect_plain_file

    if arguments.output is not None:
        expect_output(arguments.output, "ask", "--output")
    if arguments.page is not None:
        from tessera.memory_files.page import is_page

        expect_output(arguments.page, "ask", "--page", is_page, "a page")
    if arguments.samples is not None:
        others = ("memory", "text", "questions", "plant", "interactive", "cite", "page")
        given = " and ".join(name for name in others if getattr(arguments, name))
        expect(not given, "ask", "--samples", "come without questions, texts and memories", given)
        expect(arguments.shots is None or arguments.shots >= 0, "ask", "--shots", "be at least 0", arguments.shots)
        for name in arguments.samples:
            expect_plain_file(Path(name), "ask", "--samples")
        return
    for name in ("shots", "results"):
        expect(getattr(arguments, name) is None, "ask", f"--{name}", "come with --samples", "none")
    count = f"{len(arguments.questions)} questions"
    is_one = bool(arguments.questions) != arguments.interactive
    expect(is_one, "ask", "QUESTION", "be given, or --interactive, and not both", count)
    sources = [name for name in ("memory", "text") if getattr(arguments, name)]
    expect(len(sources) == 1, "ask", "--memory or --text", "be given, and not both", " and ".join(sources) or "neither")
    expect(arguments.text or not arguments.plant, "ask", "--plant", "come with --text", "no --text")


def _asker(arguments: argparse.Namespace, memory: "Memory") -> Callable[[str], dict]:
    """A function that prints the answer to a question, and returns it; says first what can be asked."""
    from tessera.memory_files.answering import answers_questions, require_known_words
    from tessera.training.run_data import trained_task

    trained = trained_task(arguments.model) if answers_questions(memory.tokenizer) else None
    task = None if trained is None else trained.task
    if task is not None:
        print(f"{arguments.model} knows {task.understands}", file=sys.stderr)
    if answers_questions(memory.tokenizer):
        for what, texts in (("--plant", arguments.plant), ("QUESTION", arguments.questions)):
            for text in texts:
                require_known_words(memory.tokenizer, text, what)
    cite = 3 if arguments.cite or arguments.page else 0
    if cite:
        memory.expect_pairs("ask: --cite")
    answers: list = []

    def ask(question: str) -> dict:
        if task is not None and not task.is_known(question):
            print("ask: the model was trained on no such question; its answer is a guess", file=sys.stderr)
        answer = memory.ask(question, sampling_of(arguments), cite=cite)
        described: dict = {"answer": answer.text}
        if answers_questions(memory.tokenizer):
            print(f"{answer.text} ({100 * answer.probability:.1f} %)", flush=True)
            described["probability"] = answer.probability
        else:
            print(answer.text, flush=True)
        if arguments.cite:
            print(answer.sources(), flush=True)
        if cite:
            described["citations"] = [vars(citation) for citation in answer.citations or ()]
        if arguments.page:
            from tessera.memory_files.page import write_page

            answers.append((question, answer))
            write_page(arguments.page, memory, answers)
        return described

    return ask


def _score(arguments: argparse.Namespace, memory: "Memory") -> int:
    """Answer the questions of files of samples, and print how many answers are right."""
    from tessera.papers.babilong.asking import score_samples

    sampling, rows = sampling_of(arguments), []
    for name in arguments.samples:
        of_file, summary = score_samples(
            memory.model, memory.tokenizer, Path(name), sampling, arguments.shots, arguments.results
        )
        print(summary)
        rows += of_file
    if arguments.output is not None:
        write_json_lines(arguments.output, rows)
    return 0
