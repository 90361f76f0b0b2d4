"""The prompts of many-shot classification, as Memory Mosaics v2 prints them (appendix G)."""

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.base.errors import expect
from tessera.papers.many_shot.files import Example

DELIMITERS = {"newline": "\n", "space": " "}
ANONYMOUS = "class {number}"
_FORMAT = " The predict answer must come from the demonstration examples with the exact format."


@dataclass(frozen=True)
class Template:
    """How examples of one data set are written.

    Attributes:
        instruction: comes first. text_name, label_name: stand before a text and before its label; `label_name` may
            name the fields of an example's `details`.
    """

    instruction: str
    text_name: str
    label_name: str

    def prompt(self, demonstrations: Sequence[Example], query: Example, delimiter: str) -> str:
        """Instruction, demonstrations with their labels, and the query up to its label's name.

        `delimiter` ("newline" or "space") stands between a name and what it names; as printed, the first
        demonstration follows the instruction after a space where the delimiter is a newline, and after a newline where
        it is a space. The label is expected behind `DELIMITERS[delimiter]`.
        """
        expect(delimiter in DELIMITERS, "many_shot", "delimiter", "be newline or space", repr(delimiter))
        between = DELIMITERS[delimiter]
        lines = [f"{self.question(one, delimiter)}{between}{one.label}" for one in demonstrations]
        first = " " if delimiter == "newline" else "\n"
        return self.instruction + first + "\n".join([*lines, self.question(query, delimiter)])

    def question(self, example: Example, delimiter: str) -> str:
        """One text with the names before it and behind it, without its label."""
        between, label_name = DELIMITERS[delimiter], self.label_name.format(**dict(example.details))
        return f"{self.text_name}:{between}{example.text}\n{label_name}:"


TEMPLATES = {
    "banking77": Template(
        "Given a customer service query, please predict the intent of the query."
        + _FORMAT
        + " The examples are as follows:",
        "service query",
        "intent category",
    ),
    "goemotions": Template(
        "Given a comment, please predict the emotion category of this comment."
        + _FORMAT
        + " The examples are as follows:",
        "comment",
        "emotion category",
    ),
    "tacred": Template(
        "Given a sentence and a pair of subject and object entities within the sentence, please predict the relation"
        " between the given entities. The examples are as follows:",
        "sentence",
        "the relation between {subject} and {object} is",
    ),
}
