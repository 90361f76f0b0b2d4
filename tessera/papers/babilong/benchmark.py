"""The public benchmark: its files of samples as text, and its rule of what is right beside the paper's exact match."""

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.base.errors import TesseraError
from tessera.base.files import write_text_atomically, writing
from tessera.data.text_files import text_of_file
from tessera.papers.babilong.stories import LENGTHS, labels

FIELDS = ("input", "question", "target")
ASKED = "\nQuestion: {question}\nAnswer:"  # how a model of text is asked


@dataclass(frozen=True)
class TextSample:
    """A context with facts in it, a question, and its answer."""

    input: str
    question: str
    target: str


def read_samples(path: Path, names: Sequence[str] = FIELDS) -> list[TextSample]:
    """The samples of a file: a JSON list of rows, or JSON lines, with three texts, called `names`.

    Raises `TesseraError`: the file is missing or no JSON, a row lacks one of the texts, or there is no row.
    """
    text = "".join(text_of_file(path))
    # Not splitlines: a string may hold other separators of lines, such as U+2028.
    is_list, rows = text.lstrip().startswith("["), []
    for number, part in enumerate([text] if is_list else text.split("\n"), 1):
        try:
            rows += [json.loads(part)] if part.strip() else []
        except (ValueError, RecursionError) as error:
            got = str(error) if is_list else f"in line {number}: {str(error).split(': line 1 ')[0]}"
            raise TesseraError(f"{path}: must be a JSON list or JSON lines of samples; got {got}.") from None
    rows = rows[0] if is_list else rows
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not all(_is_text(row.get(name)) for name in names):
            raise TesseraError(f"{path}: row {number} must hold the texts {', '.join(names)}; got {repr(row)[:80]}.")
    if not rows:
        raise TesseraError(f"{path}: must hold at least one sample; got none.")
    return [TextSample(*(row[name] for name in names)) for row in rows]


def _is_text(value: Any) -> bool:
    """Whether it is a string with something in it that `expect_text` takes."""
    if not isinstance(value, str) or not value.strip():
        return False
    return "\0" not in value and value == value.encode(errors="ignore").decode()


def exact_match(output: str, target: str) -> bool:
    """Whether the generated text is the answer, up to case and the white space around words (ARMT, section 4).

    A vocabulary of words sets marks apart: it says "rome , italy".
    """
    return words_of(output) == words_of(target)


def words_of(text: str) -> list[str]:
    """Words and marks, as the vocabulary of words divides them."""
    return re.findall(r"\w+|[^\w\s]+", text.lower())


def subtargets(target: str) -> list[str]:
    """The answers that a target lists: "apple,milk" has two; targets of up to three characters ("n,e") are one."""
    target = target.strip().lower()
    return [part.strip() for part in target.split(",")] if len(target) > 3 else [target]


def benchmark_labels(path: Path, targets: Iterable[str]) -> tuple[str, Collection[str]]:
    """The task that a file of samples is of, and its labels: of QA1 to QA5 the task's, not those that the file holds.

    It is named last in the path, as in `qa1/4k.json`; where none is, it is the first whose labels have all `targets`.
    Files of other tasks of the benchmark, or of none (""), have their own labels.
    """
    answers = {part for target in targets for part in subtargets(target)}
    fitting = (kind for kind in LENGTHS if answers <= set(labels(kind)))
    kind = [next(fitting, ""), *re.findall(r"qa\d+", str(path))][-1]
    return kind, labels(kind) if kind in LENGTHS else answers


def results_file(folder: Path, path: Path, kind: str, has_examples: bool) -> Path:
    """Where the benchmark's evaluation keeps the answers to the samples in `path`: task, length and prompt in its name.

    Raises `TesseraError`: a path that does not name task and length.
    """
    lengths = re.findall(r"(?<![\w.])\d+[kM](?![a-zA-Z])", str(path).replace("_", "/"))
    if not kind or not lengths:
        raise TesseraError(f"ask: --results needs samples named by task and length, as qa1/4k.json; got {path}.")
    prompt = f"instruction_no_examples_{'yes' if has_examples else 'no'}_post_prompt_no"
    return folder / f"{kind}_{lengths[-1]}_{prompt}.csv"


def write_results(
    file: Path, samples: Sequence[TextSample], outputs: Sequence[str], shots: str | None, sampling: dict[str, Any]
) -> None:
    """The table of targets, outputs and questions that the benchmark's evaluation writes and collects.

    Beside it lies the prompt, with what was given to `generate`, as JSON.
    """
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["", "target", "output", "question"])
    for number, (sample, output) in enumerate(zip(samples, outputs)):
        writer.writerow([number, sample.target, output, sample.question])
    template = "{context}\n{question}" if shots is None else "{examples}{context}" + ASKED
    prompt = {"instruction": "", "examples": shots or "", "post_prompt": "", "template": template}
    settings = json.dumps({"prompt": prompt, "generate_kwargs": sampling}, indent=4)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(file.with_suffix(".json"), settings + "\n")
        write_text_atomically(file, table.getvalue())


def published_match(output: str, question: str, target: str, answers: Collection[str]) -> bool:
    """The public benchmark's rule (Kuratov et al. 2024): the answers that are named must be the target's and no others.

    Counted are those of the task's `answers` that stand, in any case and also inside of words, in the output up to its
    first full stop (and to `<context>` or `<example>`), but not those that the question names.
    """
    first = re.split(r"\.|<context>|<example>", output.lower(), maxsplit=1)[0]

    def named(text: str) -> set[str]:
        return {label for label in (answer.strip().lower() for answer in answers) if label in text.lower()}

    return named(first) - named(question) == set(subtargets(target))
