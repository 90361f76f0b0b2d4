"""README.md beside saved weights: what the model is, how to load it, how it was trained, how good it is."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import tessera
from tessera.base.files import write_text_atomically
from tessera.models.sizes import num_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CARD = "README.md"
TEMPLATE = """---
library_name: transformers
tags:
- tessera
- {model_type}
---
{first_line}
# {name}

A {kind} of type `{model_type}` with {parameters:,} parameters, {origin}.

## How to load

{loading}

## Training

{training}

## Evaluation

{evaluation}

## Licence

Nothing is said here about the weights: state a licence of yours, and mind that of the text they were trained on. The
code that reads them is under Apache-2.0.
"""
CAUSAL = "causal language model"
TASKS = ("ForCausalLM", "ForSequenceClassification", "ForTokenClassification")  # endings of classes
LOADING = """```python
import tessera  # makes its model types known to transformers
from transformers import {auto}

model = {auto}.from_pretrained("FOLDER")
```"""
LOADING_WITH_CODE = """```python
from transformers import {auto}

model = {auto}.from_pretrained("FOLDER", trust_remote_code=True)
```

The package `tessera` must be installed: `modeling_tessera.py` in this folder imports the model's classes from it.
A program that says `import tessera` needs no `trust_remote_code`."""
UNKNOWN = {
    "Training": "Not recorded here: say which text the weights were trained on, for how long and with which settings.",
    "Evaluation": "Not recorded here: say on what the weights were measured, with which command, and what came out.",
}
QUOTED = "From the card of the folder that these weights were loaded from; later training is not in it."


def write_missing_card(folder: Path, model: "PreTrainedModel", with_code: bool) -> None:
    """Write README.md into `folder` unless there is one: whoever wrote that knew more."""
    path = folder / CARD
    if folder.is_dir() and not path.exists():
        write_text_atomically(path, saved_model_card(model, with_code))


def saved_model_card(model: "PreTrainedModel", with_code: bool) -> str:
    """The card of a model that a program saves. Tables of training and evaluation come from where it was loaded."""
    known = _tables(Path(model.name_or_path) / CARD) if model.name_or_path else {}
    loading = LOADING_WITH_CODE if with_code else LOADING
    return TEMPLATE.format(
        first_line="",
        name=type(model).__name__,
        model_type=model.config.model_type,
        kind=CAUSAL if auto_class(type(model)) == "AutoModelForCausalLM" else "model",
        parameters=num_parameters(model),
        origin=f"saved by Tessera {tessera.__version__}",
        loading=loading.format(auto=auto_class(type(model))),
        **{
            title.lower(): f"{QUOTED}\n\n{known[title]}" if title in known else unknown
            for title, unknown in UNKNOWN.items()
        },
    )


def auto_class(cls: type) -> str:
    """The class of transformers that loads models of `cls`."""
    task = next((task for task in TASKS if cls.__name__.endswith(task)), "")
    return f"AutoModel{task}"


def _tables(card: Path) -> dict[str, str]:
    """The tables in the sections of a card, by title; none without a card."""
    if not card.is_file():
        return {}
    tables = {}
    for section in re.split("^## ", card.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE)[1:]:
        title, *lines = section.splitlines()
        rows = [line for line in lines if line.startswith("|")]
        if rows:
            tables[title.strip()] = "\n".join(rows)
    return tables
