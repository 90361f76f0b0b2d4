"""Documents and questions from the public files of SQuAD and HotpotQA."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.base.errors import TesseraError


@dataclass(frozen=True)
class DocumentQuestion:
    """A question, the answers that count as right, and documents by their place in `QuestionFile.documents`.

    Attributes:
        golden: the documents that belong to the question. nearest: further documents of the same article, which
            distract first.
    """

    question: str
    answers: tuple[str, ...]
    golden: tuple[int, ...]
    nearest: tuple[int, ...] = ()


@dataclass(frozen=True)
class QuestionFile:
    """All documents of a file, each once, and the questions about them."""

    documents: tuple[str, ...]
    questions: tuple[DocumentQuestion, ...]


def read_squad(path: Path) -> QuestionFile:
    """SQuAD 1.1 or 2.0: a document is a paragraph; questions without an answer are left out.

    Raises:
        TesseraError: the file is missing, or not of this form.
    """

    def read(content: Any) -> QuestionFile:
        """Paragraphs of all articles, each once; a question's own paragraph is the one it stands with."""
        articles = [article["paragraphs"] for article in content["data"]]
        place = _places(paragraph["context"] for paragraphs in articles for paragraph in paragraphs)
        questions = []
        for paragraphs in articles:
            of_article = [place[paragraph["context"]] for paragraph in paragraphs]
            for paragraph, own in zip(paragraphs, of_article):
                nearest = tuple(dict.fromkeys(other for other in of_article if other != own))
                for entry in paragraph["qas"]:
                    answers = tuple(dict.fromkeys(answer["text"] for answer in entry["answers"]))
                    if answers and not entry.get("is_impossible", False):
                        questions.append(DocumentQuestion(entry["question"], answers, (own,), nearest))
        return QuestionFile(tuple(place), tuple(questions))

    return _read(path, "SQuAD", read)


def read_hotpotqa(path: Path) -> QuestionFile:
    """HotpotQA: a document is a title and its sentences; the ten paragraphs given with a question belong to it.

    Raises:
        TesseraError: the file is missing, or not of this form.
    """

    def read(content: Any) -> QuestionFile:
        """Paragraphs of all questions, each once; a question's own are the ten it comes with."""
        contexts = [[f"{title}\n{''.join(sentences)}" for title, sentences in entry["context"]] for entry in content]
        place = _places(document for documents in contexts for document in documents)
        questions = (
            DocumentQuestion(entry["question"], (entry["answer"],), tuple(dict.fromkeys(map(place.__getitem__, own))))
            for entry, own in zip(content, contexts)
        )
        return QuestionFile(tuple(place), tuple(questions))

    return _read(path, "HotpotQA", read)


def _places(documents: Any) -> dict[str, int]:
    return {document: number for number, document in enumerate(dict.fromkeys(documents))}


def _read(path: Path, kind: str, read: Any) -> QuestionFile:
    try:
        content = read(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise TesseraError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, KeyError, TypeError) as error:
        raise TesseraError(f"{path}: must be a file of {kind}; got {error!r}.") from None
    if not content.questions:
        raise TesseraError(f"{path}: must hold questions with answers; got none.")
    return content


READERS = {"squad": read_squad, "hotpotqa": read_hotpotqa}
