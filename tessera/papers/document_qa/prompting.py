"""Questions about many documents, asked of any language model with its own tokenizer (RULER's question answering)."""

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from tessera.base.errors import expect
from tessera.models.transformer import context_limit
from tessera.papers.document_qa.files import QuestionFile
from tessera.papers.document_qa.prompts import ANSWER_TOKENS, contains_answer, exact_match, longest_prompt
from tessera.tasks.task import estimate

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@torch.no_grad()
def document_scores(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    file: QuestionFile,
    lengths: Sequence[int],
    *,
    questions: int = 100,
    answer_tokens: int = ANSWER_TOKENS,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Length -> `contains_answer`, `exact_match` (mean, standard error, count) and the mean number of `documents`.

    Prompts are as long as `length` tokens allow, the answer included; the answer is the greedy continuation. The same
    questions are asked at every length.

    Raises:
        TesseraError: a question whose own documents do not fit, or a length beyond the model's learned positions.
    """
    chosen = Random(seed).sample(file.questions, min(questions, len(file.questions)))
    longest = context_limit(model.config)
    for length in lengths:
        needed = f"be at most the {longest} positions that this {model.config.model_type} has learned"
        expect(longest is None or length <= longest, "document_qa", "length", needed, length)

    def count_tokens(text: str) -> int:
        return len(tokenizer(text)["input_ids"])

    outcome: dict[str, Any] = {}
    for length in lengths:
        contained, exact, documents = [], [], []
        for question in tqdm(chosen, disable=not progress, unit=" questions", desc=f"{length} tokens"):
            prompt = longest_prompt(file, question, length, count_tokens, seed, answer_tokens)
            ids = torch.tensor([tokenizer(prompt.text)["input_ids"]], device=model.device)
            tokens = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=answer_tokens,
                pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0,
            )  # fmt: skip
            output = tokenizer.decode(tokens[0, ids.shape[1] :], skip_special_tokens=True)
            contained.append(contains_answer(output, prompt.answers))
            exact.append(exact_match(output, prompt.answers))
            documents.append(prompt.num_documents)
        outcome[str(length)] = {
            "contains_answer": estimate(torch.tensor(contained).double())._asdict(),
            "exact_match": estimate(torch.tensor(exact).double())._asdict(),
            "documents": sum(documents) / len(documents),
        }
    return outcome
