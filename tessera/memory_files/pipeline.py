"""`transformers.pipeline("memory-question-answering", model=...)`: a context is read once, then asked."""

from collections.abc import Sequence, Sized
from dataclasses import replace
from typing import Any

from transformers import AutoModelForCausalLM, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect
from tessera.generation.sampling import Sampling
from tessera.memory_files.answering import GREEDY
from tessera.memory_files.memory import Memory

TASK = "memory-question-answering"


class MemoryQuestionAnswering(Pipeline):
    """Called as `(context, question=...)`: one answer, or a list of them for a list of questions.

    `context` is a text, a path, a list of these, or a `Memory`. Each answer is a dictionary with `answer` and `score`,
    its probability, where it was measured `in_text`, the probability that the text says so, and with `cite=n` also
    `citations`. Further keywords are those of `Sampling`.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.model.eval()

    @explains_mistakes
    def __call__(self, context: Any, question: str | Sequence[str], cite: int = 0, **sampling: Any) -> Any:
        """See the class."""
        unknown = ", ".join(sorted(sampling.keys() - vars(Sampling())))
        expect(not unknown, TASK, "keywords", f"be cite or of {', '.join(vars(Sampling()))}", unknown)
        is_given = isinstance(context, Memory) or not isinstance(context, Sized) or len(context) > 0
        expect(is_given, TASK, "context", "hold text", "none")
        chosen = replace(GREEDY, **sampling)
        questions = [question] if isinstance(question, str) else question
        memory = context
        if not isinstance(context, Memory):
            memory = Memory(self.model, self.tokenizer)
            memory.expect_answers(questions, chosen, cite)
            for source in context if isinstance(context, (list, tuple)) else [context]:
                memory.read([source] if isinstance(source, str) else source)  # a string is a text, whatever it says
        answers = [_described(memory.ask(each, chosen, cite=cite)) for each in questions]
        return answers[0] if isinstance(question, str) else answers

    def _sanitize_parameters(self, **keywords: Any) -> tuple[dict, dict, dict]:
        return {}, {}, {}

    preprocess = _forward = postprocess = _sanitize_parameters  # `__call__` needs none of them


def _described(answer: Any) -> dict[str, Any]:
    described = {"answer": answer.text, "score": answer.probability}
    if answer.certainty is not None:
        described["in_text"] = answer.certainty
    if answer.citations is not None:
        described["citations"] = [vars(citation) for citation in answer.citations]
    return described


def register() -> None:
    """Make the task known to `transformers.pipeline`."""
    if TASK not in PIPELINE_REGISTRY.get_supported_tasks():
        PIPELINE_REGISTRY.register_pipeline(TASK, MemoryQuestionAnswering, pt_model=AutoModelForCausalLM, type="text")
