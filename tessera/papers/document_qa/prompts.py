"""Prompts of many documents and a question, with as many documents as fit (RULER, Hsieh et al. 2024)."""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from tessera.base.errors import TesseraError
from tessera.papers.document_qa.files import DocumentQuestion, QuestionFile

_ORDER = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
TEMPLATE = (
    f"{_ORDER}\n\nThe following are given documents.\n\n{{documents}}\n\n{_ORDER}\n\nQuestion: {{question}} Answer:"
)
DOCUMENT = "Document {number}:\n{document}"
ANSWER_TOKENS = 32


@dataclass(frozen=True)
class DocumentPrompt:
    """A prompt, the answers that count as right, and how many documents it holds."""

    text: str
    answers: tuple[str, ...]
    num_documents: int


def write_prompt(file: QuestionFile, question: DocumentQuestion, num_documents: int, random: Random) -> str:
    """`num_documents` of the file, shuffled, then the question.

    Among them are the question's own; then come other paragraphs of the same article, then any others.
    """
    own, near = list(question.golden), list(question.nearest)
    num_others = num_documents - len(own)
    if num_others > len(near):
        known = {*own, *near}
        others = [place for place in range(len(file.documents)) if place not in known]
        near += random.sample(others, min(num_others - len(near), len(others)))
    else:
        near = random.sample(near, max(0, num_others))
    chosen = own + near
    random.shuffle(chosen)
    numbered = (DOCUMENT.format(number=n, document=file.documents[place]) for n, place in enumerate(chosen, 1))
    return TEMPLATE.format(documents="\n\n".join(numbered), question=question.question)


def longest_prompt(
    file: QuestionFile,
    question: DocumentQuestion,
    length: int,
    count_tokens: Callable[[str], int],
    seed: int,
    answer_tokens: int = ANSWER_TOKENS,
) -> DocumentPrompt:
    """The prompt with as many documents as fit into `length` tokens together with the answer, found by bisection.

    Raises:
        TesseraError: the question's own documents alone do not fit; it says how long they are.
    """

    def prompt(num_documents: int) -> str:
        return write_prompt(file, question, num_documents, Random(f"{seed} {question.question}"))

    def tokens(num_documents: int) -> int:
        return count_tokens(prompt(num_documents)) + answer_tokens

    fewest, most = len(question.golden), len(file.documents)
    if tokens(fewest) > length:
        raise TesseraError(
            f"document_qa: length must be at least {tokens(fewest)} tokens for this question and its own documents; "
            f"got {length}: {question.question[:60]!r}."
        )
    while fewest < most:
        middle = (fewest + most + 1) // 2
        fewest, most = (middle, most) if tokens(middle) <= length else (fewest, middle - 1)
    return DocumentPrompt(prompt(fewest), question.answers, fewest)


def contains_answer(output: str, answers: Sequence[str]) -> bool:
    """RULER's score: one of the answers stands in the output, whatever the case."""
    return any(answer.lower() in output.lower() for answer in answers)


def exact_match(output: str, answers: Sequence[str]) -> bool:
    """SQuAD's score: the first line of the output is an answer, up to case, articles, punctuation and white space."""
    first = output.strip().split("\n")[0]
    return any(_normalized(first) == _normalized(answer) for answer in answers)


def _normalized(text: str) -> str:
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
