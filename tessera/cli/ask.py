"""Ask questions about a text, or about a memory that `tessera memorize` stored.

With a book and a question, begin with a model that was trained to answer questions. `tessera train book-reader` makes
one in two minutes: it finds sentences like "The password of the miller is bottle." anywhere in a book, and understands
nothing else of it. `armt-babilong-qa1-uncut` learns in an hour who went where, in texts of a million tokens;
`own-questions` learns what you teach it. With a sentence hidden in the book:

  tessera ask runs/book-reader "What is the password of the miller?" --text book.txt \\
      --plant "The password of the miller is bottle." --cite

Such a model first says what it can be asked. It refuses words that it does not know. It answers with its likeliest
answer, the probability that it gives to it, and how probable it is that the text answers at all, which was measured
when it was trained: a model may be sure of an answer that stands nowhere. Other models continue the question as a text,
as the options at the end say. Every question is asked on its own; none is remembered.

To score models on files of the public BABILong benchmark, by exact match and by the benchmark's own rule:

  tessera ask gpt2 --samples data/qa1/4k.json data/qa2/4k.json --shots 2 --results babilong_evals/own/gpt2
"""

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.base.errors import TesseraError, expect
from tessera.base.files import expect_output, expect_plain_file
from tessera.cli.generate import add_sampling, refuse_sampling, sampling_of
from tessera.cli.options import (
    OUTPUT_HELP,
    expect_two_files,
    hold_output,
    of_each,
    standard_texts,
    whole_number,
    write_json_lines,
)

if TYPE_CHECKING:
    from tessera.memory_files.memory import Memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera ask`."""
    add = parser.add_argument
    add("model", help="folder of the model")
    add("questions", nargs="*", default=[], metavar="question", help="a question; each is asked on its own")
    meaning = "ask about what this memory holds, which tessera memorize stored with the same model"
    add("--memory", metavar="FILE", help=meaning)
    meaning = "ask about this text: a file, a folder or a bundled book; may be given several times"
    add("--text", action="append", default=[], metavar="FILE", help=meaning)
    meaning = "hide this sentence in the text, at a place that --seed decides; may be given several times"
    add("--plant", action="append", default=[], metavar="SENTENCE", help=meaning)
    add("--cite", action="store_true", help="also print the passages that the answer came from (Memory Mosaics)")
    add("--page", type=Path, metavar="FILE", help="write the texts with these passages marked into this HTML file")
    meaning = "read questions from the terminal or standard input, one a line, until its end"
    add("--interactive", action="store_true", help=meaning)
    meaning = "count right answers to these files: JSON (lines) with the texts input, question and target in each row"
    add("--samples", nargs="+", metavar="FILE", help=meaning)
    meaning = "with --samples, show so many short stories with question and answer before each"
    add("--shots", type=whole_number, metavar="N", help=meaning)
    meaning = "with --samples, write the answers into this folder as the benchmark's own evaluation does"
    add("--results", type=Path, metavar="FOLDER", help=meaning)
    add("--output", type=Path, metavar="FILE", help=OUTPUT_HELP)
    add_sampling(parser, max_new_tokens=50, default_temperature=0.0, title="models that were not trained on questions")


def run(arguments: argparse.Namespace) -> int:
    """Load, then answer question by question."""
    from tessera.memory_files.answering import answers_questions
    from tessera.memory_files.document import document_paths
    from tessera.memory_files.memory import memory_of
    from tessera.memory_files.planting import read_planted

    _expect_one_way(arguments)
    paths = [path for name in arguments.text for path in document_paths(name, "ask", "--text")]
    typed = standard_texts("ask", by_line=True) if arguments.interactive else iter(())
    memory = memory_of(arguments.model)
    refuse_sampling(arguments, "ask", answers_questions(memory.tokenizer))
    if arguments.samples is not None:
        return _score(arguments, memory)
    ask = _asker(arguments, memory)
    if paths:
        read_planted(memory, paths, arguments.plant, arguments.seed)
    else:
        memory.load(arguments.memory, "ask", "--memory")
    say_length(memory)
    answers: list[dict] = []
    status = 0
    try:
        for question in itertools.chain(arguments.questions, (line.rstrip("\n") for line in typed if line.strip())):
            if len(arguments.questions) > 1:
                print(f"> {question}")
            try:
                answers.append({"question": question, **ask(question)})
            except TesseraError as error:
                if len(arguments.questions) == 1:
                    raise
                print(error, file=sys.stderr)
                status = 0 if arguments.interactive else 2
    finally:
        write_json_lines(arguments.output, answers)
    return status


def _expect_one_way(arguments: argparse.Namespace) -> None:
    """Raise `TesseraError` for options that exclude each other."""
    from tessera.memory_files.page import is_page

    hold_output(arguments, "ask", "output")
    expect_output(arguments.page, "ask", "--page", is_page, "a page")
    expect_two_files(arguments, "ask", "page", "output")
    if arguments.samples is not None:
        others = ("memory", "text", "questions", "plant", "interactive", "cite", "page")
        excluded = " and ".join(name for name in others if getattr(arguments, name))
        expect(not excluded, "ask", "--samples", "come without questions, texts and memories", excluded)
        for name in arguments.samples:
            expect_plain_file(Path(name), "ask", "--samples")
        return
    for name in ("shots", "results"):
        expect(getattr(arguments, name) is None, "ask", f"--{name}", "come with --samples", "none")
    is_one, count = bool(arguments.questions) != arguments.interactive, len(arguments.questions)
    expect(is_one, "ask", "QUESTION", "be given, or --interactive, and not both", f"{count} questions")
    asks = arguments.interactive or any(arguments.questions)  # before a book is read
    expect(asks, "ask", "QUESTION", "have at least one token", "''")
    sources = [name for name in ("memory", "text") if getattr(arguments, name)]
    expect(len(sources) == 1, "ask", "--memory or --text", "be given, and not both", " and ".join(sources) or "neither")
    expect(arguments.text or not arguments.plant, "ask", "--plant", "come with --text", "no --text")
    for sentence in arguments.plant:
        expect(bool(sentence.strip()), "ask", "--plant", "hold a sentence", repr(sentence))


def _asker(arguments: argparse.Namespace, memory: "Memory") -> Callable[[str], dict]:
    """A function that prints the answer to a question, and returns it; says first what can be asked."""
    from tessera.memory_files.answering import answers_questions, require_known_words

    is_trained = answers_questions(memory.tokenizer)
    task = introduced(arguments.model, memory) if is_trained else None
    if is_trained:
        for option, texts in (("--plant", arguments.plant), ("QUESTION", arguments.questions)):
            for text in texts:
                require_known_words(memory.tokenizer, text, option)
        for sentence in arguments.plant:
            if task is not None and not task.is_stated(sentence):
                said = "ask: the model was trained on no such sentence, and may misread it"
                print(f"{said}: {sentence}", file=sys.stderr)
    sampling, cite = sampling_of(arguments), 3 if arguments.cite or arguments.page else 0
    if cite:
        memory.expect_pairs("ask: --cite")
        needed = "be 1 with --cite or --page, which follow one token by one"
        expect(sampling.num_beams == 1, "ask", "--num-beams", needed, sampling.num_beams)
    only = arguments.questions if len(arguments.questions) == 1 else ()  # of several each is answered or refused
    memory.expect_answers(only, sampling)
    answers: list = []

    def ask(question: str) -> dict:
        """Answer, print answer and citations, and draw the page anew; the answer as a row of JSON."""
        say_guess(task, question)
        answer = memory.ask(question, sampling, cite=cite)
        print(answer.said() if is_trained else answer.text, flush=True)
        described: dict = {"answer": answer.text}
        if is_trained:
            described |= {"probability": answer.probability, "in_text": answer.certainty}
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


def say_length(memory: "Memory") -> None:
    """Warn where the texts are far longer than those that the certainty of an answer was measured on."""
    from tessera.memory_files.certainty import Certainty

    certainty, tokens = Certainty.of(memory.model), sum(len(document.tokens) for document in memory.documents)
    if certainty is not None and tokens > 4 * certainty.tokens:
        longer = f"{tokens / certainty.tokens:,.0f} times as many tokens"
        print(f"{longer} were read as those texts have: nothing is known of so long ones", file=sys.stderr)


def say_guess(task: Any, question: str) -> None:
    """Warn of a question of which nothing was learned, where the `task` of the training is known."""
    if task is not None and question.strip() and not task.is_known(question):
        print("ask: the model was trained on no such question; its answer is a guess", file=sys.stderr)


def introduced(folder: str, memory: "Memory"):
    """The task that the run in `folder` was trained on, if it is there; says on standard error what it can be asked."""
    from tessera.memory_files.certainty import Certainty
    from tessera.training.run_data import asked_task

    task, known = asked_task(folder)
    if known:
        print(f"{folder} {known}", file=sys.stderr)
    certainty = Certainty.of(memory.model)
    how = "not measured, so do not trust its probabilities" if certainty is None else certainty.described()
    print(f"whether a text answers at all: {how}", file=sys.stderr)
    return task


def _score(arguments: argparse.Namespace, memory: "Memory") -> int:
    """Answer the questions of files of samples, and print how many answers are right."""
    from tessera.papers.babilong.asking import score_samples

    rows: list[dict] = []

    def score(name: str) -> None:
        """Score a file and print how many are right."""
        path, sampling = Path(name), sampling_of(arguments)
        options = (sampling, arguments.shots, arguments.results)
        of_file, summary = score_samples(memory.model, memory.tokenizer, path, *options)
        print(summary, flush=True)
        rows.extend(of_file)

    _, status = of_each(arguments.samples, score)
    write_json_lines(arguments.output, rows)
    return status
