"""Whether a model answers a sample of the public BABILong benchmark, by the paper's rule and by the benchmark's."""

import io
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from tessera.generation.answering import answer, answers_questions
from tessera.generation.memory import token_stream
from tessera.generation.sampling import Sampling, continuation
from tessera.models.recurrence import SegmentedForCausalLM, read_stream
from tessera.papers.babilong.public_files import TextSample
from tessera.papers.babilong.scorer import exact_match, published_match

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


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
