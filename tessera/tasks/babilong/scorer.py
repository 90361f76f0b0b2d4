"""Right or wrong: the paper's exact match, and the scorer of the public benchmark."""

import re
from collections.abc import Sequence


def exact_match(output: str, target: str) -> bool:
    """Whether the generated text is the answer, up to case and outer white space (ARMT, section 4)."""
    return output.strip().lower() == target.strip().lower()


def published_match(output: str, question: str, target: str, labels: Sequence[str]) -> bool:
    """The public benchmark's rule (Kuratov et al. 2024): its labels must be the target's and no others.

    Counted are the labels in the first sentence of the lower-case output that the question does not name itself.
    """
    first = re.split(r"[.\n]", output.lower().strip(), maxsplit=1)[0]

    def named(text: str) -> set[str]:
        return {label for label in labels if re.search(rf"\b{re.escape(label.lower())}\b", text.lower())}

    targets = {part.strip().lower() for part in target.split(",")}
    return named(first) - named(question) == targets
