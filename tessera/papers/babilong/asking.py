"""What `tessera ask` does with BABILong: facts planted in a text, and scored samples."""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from tessera.data.encoding import PIECE
from tessera.data.text_files import text_of_files
from tessera.generation.sampling import Sampling
from tessera.memory_files.answering import answer
from tessera.memory_files.memory import Memory
from tessera.papers.babilong.benchmark import TextSample, benchmark_labels, exact_match, published_match, read_samples
from tessera.papers.babilong.noise import SENTENCE_END

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class PlantedText:
    """The pieces of a text, with `facts` in their order between its sentences, at random places.

    Attributes:
        places: where each fact was planted so far, as a share of the text.
    """

    def __init__(self, texts: Iterable[str], size: int, facts: Sequence[str], seed: int = 0) -> None:
        """`size`: bytes of the text. The same seed gives the same places."""
        random = Random(seed)
        self.texts, self.size = texts, max(1, size)
        self.places: list[float] = []
        self._pending = list(zip(sorted(random.random() for _ in facts), facts))

    def __iter__(self) -> Iterator[str]:
        position = 0
        for piece in self.texts:
            data = piece.encode()
            parts, begin = [], 0
            while self._pending and self._pending[0][0] * self.size <= position + len(data):
                place, fact = self._pending[0]
                before = data[: max(0, int(place * self.size) - position)].decode(errors="ignore")
                end = SENTENCE_END.search(piece, max(begin, len(before)))
                if end is None:  # the sentence goes on in the next piece
                    break
                parts += [piece[begin : end.end()], f"{fact} "]
                begin = end.end()
                self.places.append((position + len(piece[:begin].encode())) / self.size)
                del self._pending[0]
            position += len(data)
            yield "".join([*parts, piece[begin:]])
        for _, fact in self._pending:
            self.places.append(1.0)
            yield f" {fact}"


class Answered(NamedTuple):
    """What a model says; whether it is right by exact match (ARMT, section 4), and by the benchmark's rule."""

    said: str
    exact: bool
    published: bool


def answered(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    sample: TextSample,
    answers: Collection[str],
    sampling: Sampling,
) -> Answered:
    """Read the sample's text, ask its question in a segment of its own, and compare.

    Args:
        answers: all that the benchmark's rule looks for in what the model says (`benchmark_labels`).
        sampling: of models that were not trained on questions: they continue the text after the question.
    Raises:
        TesseraError: a text or a question without tokens, or logits that are not finite.
    """
    memory = Memory(model, tokenizer).read([sample.input], "input", precision="auto")
    said = answer(model, tokenizer, sample.question, memory.state, sampling).text
    match = published_match(said, sample.question, sample.target, answers)
    return Answered(said, exact_match(said, sample.target), match)


def score_samples(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerFast", path: Path, sampling: Sampling
) -> tuple[list[dict[str, Any]], str]:
    """A row for each sample of a file (prompt, question, target, answer, and whether it is right), and a summary."""
    samples = read_samples(path)
    kind, labels = benchmark_labels(path, [sample.target for sample in samples])
    bar = tqdm(samples, desc="samples", disable=not sys.stderr.isatty())
    scores = [answered(model, tokenizer, sample, labels, sampling) for sample in bar]
    exact, published = (
        100 * sum(getattr(one, name) for one in scores) / len(scores) for name in ("exact", "published")
    )
    rule = f"answers of {kind}" if kind else "answers of the file, which is of none of its tasks"
    summary = (
        f"{len(samples)} samples of {path.name}, right in per cent:\n"
        f"exact match      {exact:5.1f}\nbenchmark's rule {published:5.1f}  ({rule})"
    )
    rows = [
        {"prompt": sample.input, "question": sample.question, "target": sample.target, "answer": one.said}
        | {"exact_match": one.exact, "published_match": one.published}
        for sample, one in zip(samples, scores)
    ]
    return rows, summary


def read_planted(memory: Memory, paths: Sequence[Path], facts: Sequence[str], seed: int) -> None:
    """Read the texts with the facts planted in them, as one document; says on standard error what was read.

    Texts without facts are documents of their own where documents are kept apart.
    """
    options = {"progress": sys.stderr.isatty(), "precision": "auto"}
    names = ", ".join(path.name for path in paths)
    if memory.is_of_pairs and not facts:
        for path in paths:
            memory.read(path, **options)
    else:
        size = sum(len(text.encode()) for text in text_of_files(paths)) if facts else 0
        text = PlantedText(text_of_files(paths, PIECE), size, facts, seed)
        memory.read(text, names, where="ask: --text", **options)
        for fact, place in zip(facts, text.places):
            print(f"planted after {100 * place:.0f} % of the text: {fact}", file=sys.stderr)
    print(f"{names}: {memory.described().replace('tokens', 'tokens read', 1)}", file=sys.stderr)
