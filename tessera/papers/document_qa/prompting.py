"""Questions about many documents, asked of any language model (RULER's question answering, Hsieh et al. 2024).

For the published files of SQuAD and HotpotQA as they lie on a disk; `tessera eval --tasks` has the harness's tasks.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.beginnings import prompt_tokens
from tessera.base.errors import TesseraError, expect
from tessera.data.text_files import text_of_file
from tessera.generation.sampling import Sampling
from tessera.models.transformer import expect_positions
from tessera.tasks.task import estimate

_ORDER = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
TEMPLATE = (
    f"{_ORDER}\n\nThe following are given documents.\n\n{{documents}}\n\n{_ORDER}\n\nQuestion: {{question}} Answer:"
)
ANSWER_TOKENS = 32


class DocumentQuestion(NamedTuple):
    """A question, the right answers, and by their index in `QuestionFile.documents` its own documents (`golden`) and
    further ones of the same article, which distract first (`nearest`)."""

    question: str
    answers: tuple[str, ...]
    golden: tuple[int, ...]
    nearest: tuple[int, ...] = ()


class QuestionFile(NamedTuple):
    """All documents of a file, each once, and the questions about them."""

    documents: tuple[str, ...]
    questions: tuple[DocumentQuestion, ...]


def _squad(content: Any) -> QuestionFile:
    """SQuAD 1.1 or 2.0: a document is a paragraph; questions without an answer are left out."""
    articles = [article["paragraphs"] for article in content["data"]]
    index = _indices(paragraph["context"] for paragraphs in articles for paragraph in paragraphs)
    questions = []
    for paragraphs in articles:
        of_article = dict.fromkeys(index[paragraph["context"]] for paragraph in paragraphs)
        for paragraph in paragraphs:
            own = index[paragraph["context"]]
            nearest = tuple(other for other in of_article if other != own)
            for entry in paragraph["qas"]:
                answers = tuple(dict.fromkeys(answer["text"] for answer in entry["answers"]))
                if answers and not entry.get("is_impossible", False):
                    questions.append(DocumentQuestion(entry["question"], answers, (own,), nearest))
    return QuestionFile(tuple(index), tuple(questions))


def _hotpotqa(content: Any) -> QuestionFile:
    """A document is a title and its sentences; the ten paragraphs given with a question belong to it."""
    contexts = [[f"{title}\n{''.join(sentences)}" for title, sentences in entry["context"]] for entry in content]
    index = _indices(document for documents in contexts for document in documents)
    questions = (
        DocumentQuestion(entry["question"], (entry["answer"],), tuple(dict.fromkeys(map(index.__getitem__, own))))
        for entry, own in zip(content, contexts)
    )
    return QuestionFile(tuple(index), tuple(questions))


def _indices(documents: Iterable[str]) -> dict[str, int]:
    return {document: index for index, document in enumerate(dict.fromkeys(documents))}


READERS: dict[str, Callable[[Any], QuestionFile]] = {"squad": _squad, "hotpotqa": _hotpotqa}


def read_questions(kind: str, path: Path) -> QuestionFile:
    """A file of one of `READERS`. Raises `TesseraError` if it is missing, or not of this form."""
    text = "".join(text_of_file(path))
    try:
        file = READERS[kind](json.loads(text))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TesseraError(f"{path}: must be a file of {kind}; got {error!r}.") from None
    expect(bool(file.questions), str(path), "the file", "hold questions with answers", "none")
    for question, answers, *_ in file.questions:  # an empty answer would stand in every output
        is_text = isinstance(question, str) and all(isinstance(text, str) and text.strip() for text in answers)
        expect(is_text, str(path), "a question and its answers", "be texts", repr((question, *answers))[:80])
    return file


def write_prompt(file: QuestionFile, question: DocumentQuestion, num_documents: int, random: Random) -> str:
    """`num_documents` of the file, shuffled, then the question: its own documents, the nearest, then any others."""
    own, near = list(question.golden), list(question.nearest)
    num_others = max(0, num_documents - len(own))
    if num_others > len(near):
        others = sorted({*range(len(file.documents))} - {*own, *near})
        near += random.sample(others, min(num_others - len(near), len(others)))
    else:
        near = random.sample(near, num_others)
    chosen = random.sample(own + near, len(own + near))
    numbered = (f"Document {n}:\n{file.documents[index]}" for n, index in enumerate(chosen, 1))
    return TEMPLATE.format(documents="\n\n".join(numbered), question=question.question)


def longest_prompt(
    file: QuestionFile,
    question: DocumentQuestion,
    length: int,
    count_tokens: Callable[[str], int],
    seed: int,
    answer_tokens: int = ANSWER_TOKENS,
) -> tuple[str, int]:
    """The prompt with as many documents as fit into `length` tokens beside the answer, by bisection; and how many."""

    def prompt(num_documents: int) -> str:
        return write_prompt(file, question, num_documents, Random(f"{seed} {question.question}"))

    def tokens(num_documents: int) -> int:
        return count_tokens(prompt(num_documents)) + answer_tokens

    fewest = len(question.golden)
    _expect_fits(tokens(fewest), length, question)
    most = fewest + bisect_right(range(fewest + 1, len(file.documents) + 1), length, key=tokens)
    return prompt(most), most


def contains_answer(output: str, answers: Sequence[str]) -> bool:
    """RULER's score: one of the answers stands in the output, whatever the case."""
    return any(answer.lower() in output.lower() for answer in answers)


def expect_room(
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    file: QuestionFile,
    lengths: Sequence[int],
    *,
    questions: int = 100,
    answer_tokens: int = ANSWER_TOKENS,
    seed: int = 0,
) -> None:
    """Raise `TesseraError` unless a model of `config` can be asked at all these lengths: before any is asked."""
    for length in lengths:
        expect_positions(config, length, "document_qa", "length")
    for question in _chosen(file, questions, seed):
        shortest = write_prompt(file, question, len(question.golden), Random(f"{seed} {question.question}"))
        _expect_fits(len(prompt_tokens(tokenizer, shortest)) + answer_tokens, min(lengths), question)


def _chosen(file: QuestionFile, questions: int, seed: int) -> list[DocumentQuestion]:
    return Random(seed).sample(file.questions, min(questions, len(file.questions)))


def _expect_fits(tokens: int, length: int, question: DocumentQuestion) -> None:
    needed = f"be at least {tokens} tokens for this question and its own documents"
    expect(tokens <= length, "document_qa", "length", needed, f"{length}: {question.question[:60]!r}")


@torch.no_grad()
def document_scores(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    file: QuestionFile,
    lengths: Sequence[int],
    *,
    questions: int = 100,
    answer_tokens: int = ANSWER_TOKENS,
    seed: int = 0,
    progress: bool = False,
    rows: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Length -> `contains_answer` (mean, standard error, count) of greedy answers, and the mean number of `documents`.

    Prompts are as long as `length` tokens allow, the answer included. The same questions are asked at every length.
    `rows` gets one for each question: the prompt, the answers, what the model says and its score.
    Raises `TesseraError`: a question whose own documents do not fit, or a length beyond the model's learned positions.
    """
    expect_room(model.config, tokenizer, file, lengths, questions=questions, answer_tokens=answer_tokens, seed=seed)
    chosen = _chosen(file, questions, seed)

    def count_tokens(text: str) -> int:
        return len(prompt_tokens(tokenizer, text))

    likeliest = Sampling(max_new_tokens=answer_tokens, temperature=0.0)
    options = {**likeliest.arguments, "pad_token_id": tokenizer.pad_token_id or 0}
    outcome: dict[str, Any] = {}
    for length in lengths:
        contained, documents = [], []
        for question in tqdm(chosen, disable=not progress, unit=" questions", desc=f"{length} tokens"):
            prompt, num_documents = longest_prompt(file, question, length, count_tokens, seed, answer_tokens)
            ids = torch.tensor([prompt_tokens(tokenizer, prompt)], device=model.device)
            tokens = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
            output = tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)
            contained.append(contains_answer(output, question.answers))
            documents.append(num_documents)
            if rows is not None:
                about = {"length": length, "documents": num_documents, "prompt": prompt, "question": question.question}
                answered = {"target": list(question.answers), "answer": output, "contains_answer": contained[-1]}
                rows.append(about | answered)
        score = estimate(torch.tensor(contained).double())._asdict()
        outcome[str(length)] = {"contains_answer": score, "documents": sum(documents) / len(documents)}
    return outcome
