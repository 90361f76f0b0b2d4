"""A memory of documents: read once, kept as a file, asked any number of questions."""

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tessera.base.errors import TesseraError, expect, first_line
from tessera.base.files import expect_plain_file, writing
from tessera.base.locks import folder_held
from tessera.base.precision import resolve_precision
from tessera.base.state import State
from tessera.data.sources import FILE_ENDINGS
from tessera.generation.sampling import Sampling
from tessera.memory_files.answering import (
    GREEDY,
    Answer,
    answer,
    answers_questions,
    expect_answers,
    require_known_words,
)
from tessera.memory_files.document import CONVERTED, Document, is_of_pairs, read_document_text, together
from tessera.memory_files.storing import StoredBesideError, digest, made_by, mark_of
from tessera.models.carried_state import grows, read_document
from tessera.models.fingerprint import Fingerprint, difference
from tessera.models.recurrence.state import MADE_BY
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.saving.state_file import StateFile, save_values
from tessera.models.stack import StackForCausalLM

log = logging.getLogger(__name__)
ANY_FILE = (-1,)  # no file has this mark


class Memory:
    """What `model` has read: documents, one behind the other, and the state behind them.

    Memories of pairs (v1, v2) keep what each document left alone: they are merged and forgotten exactly, at no cost.
    All other states (ARMT, RMT, PRMT, recurrent models, the cache of a transformer) hold documents in their order: to
    forget one, what came after it is read again from the tokens that the memory keeps.

    >>> memory = Memory(model, tokenizer).read(Path("book.txt"))  # doctest: +SKIP
    >>> memory.ask("Where is Mary?").text  # doctest: +SKIP
    """

    def __init__(self, model: PreTrainedModel | None = None, tokenizer: PreTrainedTokenizerFast | None = None) -> None:
        """Without a model, a file can be looked at; one of pairs can be merged with others, and forget."""
        expect(model is not None or tokenizer is None, "Memory", "model", "be given with its tokenizer", None)
        is_fast = model is None or hasattr(tokenizer, "backend_tokenizer")
        expect(is_fast, "Memory", "tokenizer", "be the model's, a fast one of transformers", type(tokenizer).__name__)
        self.model: Any = model
        self.tokenizer: Any = tokenizer
        self.documents: tuple[Document, ...] = ()
        self._joined: tuple[tuple[Document, ...], Any] = (), None  # documents, and the state behind them all
        self.kind = "" if model is None else model.config.model_type
        self.marks: dict[str, tuple[int, ...] | None] = {}  # of the files that it was loaded from and stored in
        self._owner: Any = None
        self._read_by: str | None = None  # what the model was when it read the documents
        self._unchecked: StateFile | None = None

    @property
    def owner(self) -> Any:
        """What `made_by` says of the model and tokenizer. Raises `TesseraError`: none, or the model was changed."""
        self._expect_same_model()
        if self._owner is None:
            self._expect_model("says whose memory this is")
            self._owner = made_by(self.model, self.tokenizer)
        return self._owner

    @property
    def is_of_pairs(self) -> bool:
        """Whether documents are kept apart."""
        if self.model is not None:
            is_stack = isinstance(self.model, StackForCausalLM)
            if not (is_stack and all(hasattr(layer, "begun_with") for layer in self.model.model.layers)):
                return False
        return all(is_of_pairs(document.state) for document in self.documents)

    def expect_pairs(self, where: str) -> None:
        """Raise `TesseraError` unless passages can be named."""
        expect(self.is_of_pairs, where, "the model", "keep pairs (v1, v2)", f"{self.kind}, whose state has no passages")

    def expect_answers(
        self, questions: Sequence[str], sampling: Sampling = GREEDY, cite: int = 0, where: str = "ask"
    ) -> None:
        """Raise `TesseraError` for what `ask` would refuse behind any text: called before a long one is read."""
        if cite:
            self._expect_citations(cite, sampling)
        expect_answers(self.model, self.tokenizer, questions, sampling, where)

    def _expect_citations(self, count: int, sampling: Sampling = GREEDY) -> None:
        """Raise `TesseraError` unless `count` passages can be named of answers by `sampling`."""
        self.expect_pairs("cite")
        expect(count >= 1, "cite", "the number of citations", "be at least 1", count)
        is_one_by_one = sampling.num_beams == 1 or answers_questions(self.tokenizer)
        got = f"{sampling.num_beams} beams"
        expect(is_one_by_one, "cite", "the answer", "hold tokens that were chosen one by one", got)

    @property
    def state(self) -> Any:
        """The state behind all documents; None of an empty memory. Raises as `verify` does."""
        self.verify()
        if not self.documents:
            return None
        if not self.is_of_pairs:
            return self.documents[-1].state
        documents, state = self._joined
        if documents is not self.documents:  # to join them for each question would copy, and file, all pairs each time
            documents = self.documents
            state = together([document.state for document in documents])
            if len(documents) == 1:  # held once
                documents = (replace(documents[0], state=state),)
            self.documents, self._joined = documents, (documents, state)
        return state

    def verify(self) -> None:
        """Read the file that was loaded, once. Raises `TesseraError` where it is not as it was stored."""
        if (unchecked := self._unchecked) is not None:  # another thread may read it, too
            values = unchecked.values("cpu" if self.model is None else self.model.device)
            self.documents, self._unchecked = _documents(values, unchecked.path), None

    def read(
        self,
        source: Path | str | Iterable[str],
        name: str | None = None,
        where: str = "memorize: FILE",
        progress: bool = False,
        precision: str | None = None,
    ) -> Self:
        """Read a document behind the others: a file, a text (a string that is no path), or pieces of a text.

        `name`: to forget it by; default the file's, of two files of one name the path. `progress`, `precision`: see
        `read_streams`. A text that is there already is not read again; a warning names its document.
        Raises `TesseraError`: no text, the name of a document of another text (as of a file that was changed since),
        more than the model has positions for, the name of a file that is not there, a model in training mode.
        """
        self._expect_reader("reads")
        if isinstance(source, str) and _is_path(source):
            source = Path(source)
        is_text, advice = not (isinstance(source, str) and _is_file_name(source)), "If it is a text: read([text])."
        expect(is_text, where, "a string that ends as names of files do", "name one that is there", source, advice)
        origin = digest(os.path.abspath(source)) if isinstance(source, Path) else ""
        if name is None and isinstance(source, Path):
            name = source.name
            if name in self.names:  # of another file, or of this one, whose text may have changed
                name = next((known.name for known in self.documents if known.origin == origin), str(source))
        elif name is None:
            name = next(text for n in count(len(self.documents) + 1) if (text := f"text {n}") not in self.names)
        if precision is not None:  # to forget one is to read those behind it again in their own
            precision = resolve_precision(precision, self.model.device.type)
        document = replace(read_document_text(source, self.tokenizer, name, where), origin=origin, precision=precision)
        if self._is_there(document, "memorize"):
            return self
        got, advice = f"{name!r}, that of another text", "Forget it first, or give this one another name."
        expect(name not in self.names, "memorize", "the name of a document", "be new", got, advice)
        largest, size = int(document.tokens.max()), self.model.config.get_text_config().vocab_size
        expect(largest < size, "memorize", "the tokenizer", f"fit the model (vocab_size {size})", f"token id {largest}")
        self._append(document, progress)
        return self

    def ask(self, question: str, sampling: Sampling = GREEDY, *, cite: int = 0, **options: Any) -> Answer:
        """The answer to `question`, which the memory does not keep. `cite`: name so many passages that carried it.

        `options`: fields of `Sampling` (`max_new_tokens=20`), and see `answer`. Raises `TesseraError` for a question
        without words, or with words that a model that was trained on questions does not know, for `cite` with beams or
        where states are not of pairs, and for a model in training mode.
        """
        self._expect_reader("answers")
        sampling = replace(sampling, **{name: options.pop(name) for name in vars(sampling) if name in options})
        unknown, known = ", ".join(sorted(options.keys() - {"where", "write"})), ", ".join(vars(sampling))
        expect(not unknown, "Memory.ask", "keywords", f"be cite, where, write or of {known}", unknown)
        if answers_questions(self.tokenizer):
            require_known_words(self.tokenizer, question, "QUESTION")
        if cite:
            self._expect_citations(cite, sampling)
        answered = answer(self.model, self.tokenizer, question, self.state, sampling, **options)
        return self.cited(answered, cite) if cite else answered

    def cited(self, answered: Answer, count: int = 3) -> Answer:
        """`answered` with the passages that carried it."""
        from tessera.memory_files.citations import citations

        self._expect_citations(count)
        return replace(answered, citations=citations(self, self.state, answered, count))

    @property
    def names(self) -> list[str]:
        """The names of the documents, in their order."""
        return [document.name for document in self.documents]

    def described(self) -> str:
        """How much was read."""
        last: Any = self.documents[-1].state if self.documents else None
        tokens = sum(len(document.tokens) for document in self.documents)
        if hasattr(last, "segments_read"):
            tokens, count, kind = int(last.tokens_read), int(last.segments_read), "segment"
        else:
            count, kind = len(self.documents), "document"
        return f"{tokens:,} tokens in {count:,} {kind}{'s' * (count != 1)}"

    def forget(self, name: str) -> Self:
        """Take out a document: the memory is then that of a model that never read it, bit for bit.

        Raises `TesseraError`: no such document, or one whose tokens a file of an earlier version does not have.
        """
        known = ", ".join(map(repr, self.names)) or "none"
        expect(name in self.names, "forget", "the document", f"be one of {known}", repr(name))
        self.verify()
        index = self.names.index(name)
        before, after = self.documents[:index], self.documents[index + 1 :]
        if self.is_of_pairs:
            self.documents = before + after
            return self
        if after:
            _expect_tokens("forget", self.documents)
        kept = max((i + 1 for i, document in enumerate(before) if document.state is not None), default=0)
        return self._read_again(before[:kept], before[kept:] + after)

    def merge(self, other: "Memory") -> Self:
        """Also remember what `other`, of the same model, has read, behind the own documents.

        A text that both have read is kept once; a warning names it.
        Raises `TesseraError`: two texts of one name, or a document without its tokens: see `forget`.
        """
        of_one, kinds = self.owner == other.owner, f"{self.kind} and another {other.kind}"
        expect(of_one, "merge", "memories", "be of one model", kinds)
        self.verify()
        other.verify()  # what is mapped from its file would change with that
        new = tuple(document for document in other.documents if not self._is_there(document, "merge"))
        both = ", ".join(repr(document.name) for document in new if document.name in self.names)
        advice = "Forget one of the two first."
        expect(not both, "merge", "documents", "have different names", f"two of {both}", advice)
        if self.is_of_pairs:
            self.documents += new
            return self
        _expect_tokens("merge", new)
        return self._read_again(self.documents, new)

    def save(self, path: str | Path, replaces: tuple[int, ...] | None = ANY_FILE) -> Self:
        """Write the file, complete or not at all. `replaces`: the `mark_of` the file that may be replaced.

        Where `path` is a symbolic link, the file that it leads to is written.
        Raises `TesseraError`: a memory that is not finite, or a file that cannot be written; `StoredBesideError` where
        another process has stored another file there: this memory is then beside it.
        """
        self.verify()  # what was changed must not be written again with a right checksum
        path = place = Path(path)
        documents = [vars(document) for document in self.documents]
        with writing(path), folder_held(Path(os.path.realpath(path)).parent):
            if replaces is not ANY_FILE and mark_of(path) != replaces:
                names = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
                place = next(name for name in names if not name.exists())
            save_values(place, self.kind, {MADE_BY: self.owner, "documents": documents}, finite=True)
            self.marks[str(place)] = mark_of(place)
        if place != path:
            raise StoredBesideError(path, place)
        return self

    def load(self, path: str | Path, where: str = "load", argument: str = "path") -> Self:
        """The memory in a file, in place of this one. Its tensors are read when they are needed.

        Raises `TesseraError`: no memory, one of another model, tokenizer or version, or one that was changed.
        """
        expect_plain_file(Path(path), where, argument)
        self.marks[str(path)] = mark_of(Path(path))
        file = StateFile.open(path, where, argument)
        if self.model is not None:
            expect(file.kind == self.kind, where, argument, f"be a stored {self.kind} memory", f"{file.kind} file")
        owner = file.content.get(MADE_BY)
        if not isinstance(owner, dict):
            self._load_state(path, where, argument)
            return self
        if self.model is not None:
            other = [name for name, mark in self.owner.items() if owner.get(name) != mark]
            got = f"{str(path)!r}, of other {' and '.join(other)}"
            expect(not other, where, argument, "be one that this model read", got, "Read the text again.")
        values = file.values(is_used=False)
        self.documents, self._unchecked = _documents(values, file.path), file
        self.kind, self._owner = file.kind, owner
        return self

    def _load_state(self, path: str | Path, where: str, argument: str) -> None:
        """A state without its tokens: what `MemoryState.save` and earlier versions write."""
        advice = "It is a state without its tokens."
        expect(self.model is not None, where, argument, "come with its model", repr(str(path)), advice)
        state = self.model.empty_memory(1).load(path, self.model.device)
        state.expect_fits(self.model.empty_memory(1), where)
        nothing = torch.zeros(0, dtype=torch.int32)
        self.documents, self._unchecked = (Document("", 0, nothing, nothing, state),), None

    def _expect_model(self, what: str) -> None:
        advice = f"It {what}: give it to Memory(model, tokenizer), or --model."
        expect(self.model is not None, "memories", "the model", "be given", "none", advice)
        self._expect_same_model()

    def _expect_reader(self, what: str) -> None:
        """A model, in evaluation mode: dropout and random delays would be in what it reads and says."""
        self._expect_model(what)
        needed, got, advice = "be in evaluation mode", "one in training mode", "Call model.eval() first."
        expect(not self.model.training, "memories", "the model", needed, got, advice)

    def _expect_same_model(self) -> None:
        """Caches of transformers do not tell of which weights and adapters they are."""
        if self.model is None:
            return
        now = Fingerprint().of(self.model, begins=True)  # a new one: it also sees what `weight.data` was written into
        other = difference(self._read_by, now)
        if not self.documents:
            self._owner, self._read_by = (None if other else self._owner), now
            return
        needed, got = "be as it was when it read the documents", f"one of {other}"
        expect(other is None, "memories", "the model", needed, got, "Read the text again.")

    def _read_again(self, kept: tuple[Document, ...], others: tuple[Document, ...]) -> Self:
        """Hold `kept` and behind them `others`; where that fails, or is stopped, the documents are those of before."""
        held = self.documents, self._owner, self._read_by
        self.documents = kept
        try:
            for document in others:
                self._append(document)
        except BaseException:
            self.documents, self._owner, self._read_by = held
            raise
        return self

    def _is_there(self, document: Document, where: str) -> bool:
        """Whether the text of `document` was read already, which is said."""
        name = next((known.name for known in self.documents if known.has_text_of(document)), None)
        if name is not None:
            known_as = "" if name == document.name else f", as {name!r}"
            log.warning(f"{where}: {document.name!r} is there already{known_as}, with the same text; it is kept once")
        return name is not None

    def _append(self, document: Document, progress: bool = False) -> None:
        """Read `document` behind the others."""
        self.verify()
        self._expect_reader("reads documents again")
        before = None if self.is_of_pairs else self.state
        state = read_document(self.model, document.tokens, before, "memorize", progress, document.precision)
        documents = self.documents
        if not isinstance(state, State) and grows(state) and documents:  # the new state holds the one before it
            documents = (*documents[:-1], replace(documents[-1], state=None))
        self.documents = (*documents, replace(document, state=state))


def memory_of(folder: str | Path | None) -> Memory:
    """An empty memory of the model and tokenizer in a folder; None: of no model. Raises as `load_model`."""
    return Memory() if folder is None else Memory(load_model(folder), load_tokenizer(folder))


def _documents(values: dict[str, Any], path: Path) -> tuple[Document, ...]:
    """Those in a file. Their tokens and widths stay on the CPU, as those of a text that was read."""

    def document(fields: dict[str, Any]) -> Document:
        return Document(**{**fields, **{name: fields[name].cpu() for name in ("tokens", "widths")}})

    try:
        return tuple(map(document, values["documents"]))
    except (KeyError, TypeError, AttributeError) as error:  # fields that this release does not know
        needed, got = "be a memory as this release stores it", f"{str(path)!r} ({first_line(error)})"
        raise TesseraError(f"load: path must {needed}; got {got}. Read the text again.") from None


def _expect_tokens(where: str, documents: Iterable[Document]) -> None:
    """Raise `TesseraError` unless all can be read again."""
    is_kept, advice = all(len(document.tokens) for document in documents), "It was stored as a state alone."
    expect(is_kept, where, "the tokens of every document", "be kept", "none of the first", advice)


def _is_path(text: str) -> bool:
    try:
        return "\n" not in text and text != "" and Path(text).exists()
    except (OSError, ValueError):  # too long, or with a NUL
        return False


def _is_file_name(text: str) -> bool:
    return "\n" not in text and text.lower().removesuffix(".gz").endswith((*FILE_ENDINGS, *CONVERTED))
