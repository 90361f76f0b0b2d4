"""Prompts that several models continue, and the table of their continuations."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.base.errors import TesseraError
from tessera.data.text_files import text_of_file
from tessera.generation.sampling import Sampling, continuation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

STORIES = "stories"
STORY_PROMPTS = Path(__file__).parent / "story_prompts.txt"


def read_prompts(name: str) -> list[str]:
    """The lines of a text file that hold something; "stories" names the 24 prompts of Eldan and Li (2023).

    Raises `TesseraError`: no such file, not UTF-8, or no line in it.
    """
    path = STORY_PROMPTS if name == STORIES else Path(name)
    try:
        lines = "".join(text_of_file(path)).splitlines()
    except TesseraError as error:
        message = f"generate: --prompts must be a text file with a prompt in each line, or {STORIES!r}; got {error}"
        raise TesseraError(message) from None
    prompts = [line.rstrip() for line in lines if line.strip()]
    if not prompts:
        raise TesseraError(f"generate: --prompts must hold a prompt in each line; got {name!r}, which holds none.")
    return prompts


def continuations(
    models: Mapping[str, tuple["PreTrainedModel", "PreTrainedTokenizerFast"]],
    prompts: Sequence[str],
    sampling: Sampling,
    **options: Any,
) -> dict[str, list[str]]:
    """What each model (with its tokenizer, by its name) writes after each prompt; `options` go to `generate`."""
    return {
        name: [continuation(model, tokenizer, prompt, sampling, **options) for prompt in prompts]
        for name, (model, tokenizer) in models.items()
    }


def markdown_table(prompts: Sequence[str], continuations: Mapping[str, Sequence[str]]) -> str:
    """A row for each prompt, a column for each model; text is escaped, so that it cannot be read as Markdown or HTML.

    >>> print(markdown_table(["a|b"], {"model": ["<c>"]}))
    | prompt | model |
    |---|---|
    | a\\|b | &lt;c&gt; |
    """
    columns = [prompts, *continuations.values()]
    rows = [["prompt", *map(_escaped, continuations)], *([_escaped(cell) for cell in row] for row in zip(*columns))]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def _escaped(text: str) -> str:
    text = html.escape(" ".join(text.strip().splitlines()), quote=False)
    for mark in "\\|`*_[]":
        text = text.replace(mark, "\\" + mark)
    return text
