"""Right or wrong: the paper's exact match, and the scorer of the public benchmark."""

import re
from collections.abc import Collection


def exact_match(output: str, target: str) -> bool:
    """Whether the generated text is the answer, up to case and outer white space (ARMT, section 4)."""
    return output.strip().lower() == target.strip().lower()


def subtargets(target: str) -> list[str]:
    """The answers that a target lists: "apple,milk" has two; targets of up to three characters ("n,e") are one."""
    target = target.strip().lower()
    return [part.strip() for part in target.split(",")] if len(target) > 3 else [target]


def published_match(output: str, question: str, target: str, labels: Collection[str]) -> bool:
    """The public benchmark's rule (Kuratov et al. 2024): the labels that are named must be the target's and no others.

    Counted are the labels that stand, in any case and also inside of words, in the output up to its first full stop
    (and to `<context>` or `<example>`), but not those that the question names.
    """
    first = re.split(r"\.|<context>|<example>", output.lower(), maxsplit=1)[0]

    def named(text: str) -> set[str]:
        return {label for label in (one.strip().lower() for one in labels) if label in text.lower()}

    return named(first) - named(question) == set(subtargets(target))
