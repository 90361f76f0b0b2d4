"""Talk with a model that remembers what it has read.

A line that ends in a backslash goes on in the next one. What was said stays in the conversation, not in the memory.

  /cite          the passages that carried the last answer (Memory Mosaics)
  /read FILE     read a document into the memory        /documents  what it has read
  /forget NAME   take a document out                    /save [M]   store the memory
  /new           begin the conversation anew            /quit       end; so does the end of the input

Ctrl-C stops an answer, and nothing else.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.base.errors import TesseraError, expect
from tessera.cli.ask import introduced, say_guess, say_length
from tessera.cli.generate import add_sampling, refuse_sampling, sampling_of
from tessera.cli.options import standard_texts

if TYPE_CHECKING:
    from tessera.memory_files.memory import Memory

COMMANDS = ("/cite", "/read FILE", "/documents", "/forget NAME", "/save [M]", "/new", "/quit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera chat`."""
    parser.add_argument("model", help="folder of the model that answers")
    meaning = "begin with what this memory holds, which tessera memorize stored with the same model"
    parser.add_argument("--memory", metavar="FILE", help=meaning)
    add_sampling(parser, max_new_tokens=50, default_temperature=0.0)


def run(arguments: argparse.Namespace) -> int:
    """Read, answer, until the end of the input."""
    from tessera.memory_files.answering import answers_questions
    from tessera.memory_files.memory import memory_of

    memory = memory_of(arguments.model)
    if arguments.memory is not None:
        memory.load(arguments.memory, "chat", "--memory")
    is_trained = answers_questions(memory.tokenizer)
    refuse_sampling(arguments, "chat", is_trained)
    if sys.stdin is not None and sys.stdin.isatty():
        import readline  # noqa: F401 (lines can be edited and called back)

        print(f"Commands: {', '.join(COMMANDS)}. Ctrl-C stops an answer.", file=sys.stderr)
    chat = _Chat(arguments, memory, is_trained)
    for message in _messages():
        if message.strip() == "/quit":
            break
        try:
            chat.take(message)
        except TesseraError as error:
            print(error, file=sys.stderr)
        except OSError as error:  # of a file that a message names; what was said stays
            if error.filename is None:
                raise
            print(f"chat: {error.strerror}: {error.filename}"[:400], file=sys.stderr)
        except KeyboardInterrupt:
            print("\n(stopped)", file=sys.stderr)
    return 0


class _Chat:
    def __init__(self, arguments: argparse.Namespace, memory: "Memory", is_trained: bool) -> None:
        self.memory, self.sampling, self.file = memory, sampling_of(arguments), arguments.memory
        self.is_trained = is_trained  # on questions: it is asked one at a time
        self.task = introduced(arguments.model, memory) if is_trained else None
        if memory.documents:
            memory.expect_answers((), self.sampling, where="chat")
        say_length(memory)
        self.said = ""  # the conversation
        self.last: Any = None  # its last answer

    def take(self, message: str) -> None:
        """Do what a message says, or answer it."""
        word, _, rest = message.strip().partition(" ")
        commands = {"/cite": self._cite, "/read": self._read, "/forget": self._forget, "/save": self._save}
        commands |= {"/documents": self._documents, "/new": self._new}
        if word.startswith("/"):
            expect(word in commands, "chat", "a command", f"be one of {', '.join(COMMANDS)}", repr(word))
            commands[word](rest.strip())
            return
        prompt = message if self.is_trained else self.said + message
        stream = None if self.is_trained else lambda text: print(text, end="", flush=True)
        say_guess(self.task, message)
        answer = self.memory.ask(prompt, self.sampling, write=stream)
        print(answer.said() if self.is_trained else "", flush=True)
        self.said, self.last = f"{prompt}{answer.text}\n", answer

    def _cite(self, _: str) -> None:
        expect(self.last is not None, "chat", "/cite", "follow an answer", "none")
        print(self.memory.cited(self.last).sources())

    def _read(self, name: str) -> None:
        from tessera.memory_files.document import document_paths

        self.memory.expect_answers((), self.sampling, where="chat")
        for path in document_paths(name, "chat", "/read"):
            self.memory.read(path, where="chat: /read")
            self.last = None  # other documents than these carried it
        say_length(self.memory)
        self._documents("")

    def _forget(self, name: str) -> None:
        self.memory.forget(name)
        self.last = None
        self._documents("")

    def _documents(self, _: str) -> None:
        for document in self.memory.documents:
            print(f"{document.name}: {document.size:,} bytes, {len(document.tokens):,} tokens")
        if not self.memory.documents:
            print("no documents")

    def _save(self, name: str) -> None:
        from tessera.memory_files.storing import require_place

        name = name or self.file
        expect(bool(name), "chat", "/save", "name a file", "none")
        marks = self.memory.marks  # of the files that are this memory's own
        mark = require_place(Path(name), name in marks, "chat", "/save", "Name another one.")
        self.memory.save(name, marks.get(name, mark))
        count = len(self.memory.documents)
        print(f"{name}: {count} document{'s' * (count != 1)} stored")

    def _new(self, _: str) -> None:
        self.said, self.last = "", None


def _messages() -> Iterator[str]:
    """Lines, those joined that end in a backslash. Ctrl-C drops what was typed so far."""
    held: list[str] = []
    lines = standard_texts("chat", by_line=True)
    while True:
        try:
            line = input("> ") if sys.stdin.isatty() else next(lines).rstrip("\n")
        except KeyboardInterrupt:
            held = []
            print(file=sys.stderr)
            continue
        except (EOFError, StopIteration):
            break
        held.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            message, held = "\n".join(held), []
            if message.strip():
                yield message
    if "".join(held).strip():
        yield "\n".join(held)
