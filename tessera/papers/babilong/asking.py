"""What `tessera ask` does with BABILong: texts behind one another with facts planted in them, and scored samples."""

import io
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from types import TracebackType
from typing import IO, TYPE_CHECKING, NamedTuple, Self

from tessera.generation.answering import answer, answers_questions
from tessera.generation.memory import Readable, token_stream
from tessera.generation.sampling import Sampling, continuation
from tessera.models.recurrence import SegmentedForCausalLM, read_stream
from tessera.papers.babilong.benchmark import TextSample, exact_match, published_match
from tessera.papers.babilong.noise import SENTENCE_END

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class JoinedText:
    """Reads files in UTF-8 in their order, an empty line between two; one of them is open at a time.

    Attributes:
        path: the file that is being read. size: bytes of them all.
    Raises:
        OSError: at once, for any of the files that cannot be opened.
    """

    path: Path
    _file: IO[str]

    def __init__(self, paths: Sequence[Path]) -> None:
        for path in paths:
            path.open("rb").close()
        self.size = sum(path.stat().st_size for path in paths)
        self._waiting = [path for path in paths if path.stat().st_size] or [paths[0]]
        self._open_next()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, count: int) -> str:
        """About `count` characters; "" at the end of the last file."""
        piece = self._file.read(count)
        if piece or not self._waiting:
            return piece
        self._file.close()
        self._open_next()
        return "\n\n"

    def _open_next(self) -> None:
        self.path = self._waiting.pop(0)
        self._file = self.path.open(encoding="utf-8")


class PlantedText:
    """Reads as `file` does, with `facts` in their order between its sentences, at random places.

    Attributes:
        places: where each fact was planted so far, as a share of the text.
    """

    def __init__(self, file: Readable, size: int, facts: Sequence[str], seed: int = 0) -> None:
        """`size`: bytes of the text. The same seed gives the same places."""
        random = Random(seed)
        self.file, self.size = file, max(1, size)
        self.position = 0
        self.places: list[float] = []
        self._pending = list(zip(sorted(random.random() for _ in facts), facts))

    def read(self, count: int) -> str:
        """About `count` characters; "" at the end."""
        piece = self.file.read(count)
        if not piece:
            rest = [fact for _, fact in self._pending]
            self.places += [1.0] * len(rest)
            self._pending = []
            return "".join(f" {fact}" for fact in rest)
        data = piece.encode()
        parts, begin = [], 0
        while self._pending and self._pending[0][0] * self.size <= self.position + len(data):
            place, fact = self._pending[0]
            before = data[: max(0, int(place * self.size) - self.position)].decode(errors="ignore")
            end = SENTENCE_END.search(piece, max(begin, len(before)))
            if end is None:  # the sentence goes on in the next piece
                break
            parts += [piece[begin : end.end()], f"{fact} "]
            begin = end.end()
            self.places.append((self.position + len(piece[:begin].encode())) / self.size)
            del self._pending[0]
        self.position += len(data)
        return "".join([*parts, piece[begin:]])


class Right(NamedTuple):
    """By exact match (ARMT, section 4), and by the benchmark's rule (Kuratov et al. 2024)."""

    exact: bool
    published: bool


def is_right(
    model: SegmentedForCausalLM,
    tokenizer: "PreTrainedTokenizerFast",
    sample: TextSample,
    answers: Collection[str],
    sampling: Sampling,
) -> Right:
    """Read the sample's text, ask its question in a segment of its own, and compare.

    Args:
        answers: all that the benchmark's rule looks for in what the model says; it takes those of the file.
        sampling: of models that were not trained on questions: they continue the text after the question.
    Raises:
        TesseraError: a text or a question without tokens, or logits that are not finite.
    """
    memory = read_stream(model, token_stream(io.StringIO(sample.input), tokenizer, "ask: input"), precision="auto")
    if answers_questions(tokenizer):
        said = answer(model, tokenizer, sample.question, memory).word
    else:
        said = continuation(model, tokenizer, sample.question, sampling, where="ask", memory_state=memory)
    match = published_match(said, sample.question, sample.target, answers)
    return Right(exact_match(said, sample.target), match)
