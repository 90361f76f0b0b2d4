"""What stands beside saved weights: README.md with what the model is, and, where asked for, the code that loads it.

`save_pretrained(folder, with_code=True)` makes a model that loads without `import tessera.models`: transformers has no
entry points for model types. It reads classes of a type that it does not know from a Python file beside the weights,
and only if the user says `trust_remote_code=True`. That file imports them from this package, and from the modules of
its author that define a class or a kernel of the model. These must be installed: no code of the model itself is copied.
Our command line never runs such files.
"""

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Template
from transformers import GenerationMixin, PreTrainedModel

import tessera
from tessera.base.errors import expect
from tessera.base.files import write_text_atomically
from tessera.kernels import Kernel
from tessera.models.sizes import num_parameters

CARD = "README.md"
CAUSAL = "AutoModelForCausalLM"
TEMPLATE = """---
{{ card_data }}
---
{{ mark }}
# {{ name }}

A {{ "causal language model" if auto == "AutoModelForCausalLM" else "model" }} of type `{{ model_type }}` with {{
"{:,}".format(parameters) }} parameters, {{ origin }}.

## How to load

```python
{% if not with_code -%}
import tessera.models  # makes its model types known to transformers
{% for name in own -%}
import {{ name }}  # classes or kernels of this model, which are its author's: not in Tessera
{% endfor -%}
{% endif -%}
from transformers import {{ auto }}{{ ", AutoTokenizer" if run }}

model = {{ auto }}.from_pretrained("FOLDER"{{ ", trust_remote_code=True" if with_code }})
{% if run -%}
tokenizer = AutoTokenizer.from_pretrained("FOLDER")
{% endif -%}
```
{% if run %}
On the command line: `{{ command or 'tessera generate FOLDER --prompt "Once upon a time"' }}{%
for name in own %} --import {{ name }}{% endfor %}`.
{% elif with_code %}
The package `tessera` must be installed: `modeling_tessera.py` in this folder imports the model's classes from it
{%- if own %}, and from code of the model's author, which must be installed, too: `{{ own | join("`, `") }}`{% endif %}.
A program that says `import tessera.models`{% if own %} and imports these{% endif %} needs no `trust_remote_code`.
{% endif %}
## Training

{{ training or "Not recorded here: say which text the weights were trained on, for how long and with which settings." }}

## Evaluation

{{ evaluation or "Not recorded here: say on what the weights were measured, with which command, and what came out." }}

## Licence

Nothing is said here about the weights: state a licence of yours, and mind that of the text they were trained on. The
code that reads them is under Apache-2.0.
"""
TASKS = ("ForCausalLM", "ForSequenceClassification", "ForTokenClassification")  # endings of classes
QUOTED = "From the card of the folder that these weights were loaded from; later training is not in it."


def render_card(model_type: str, auto: str = CAUSAL, **values: Any) -> str:
    """The text of `TEMPLATE` with these values; those that are left out stay empty."""
    data = ModelCardData(library_name="transformers", tags=["tessera", model_type])
    return _template(TEMPLATE).render(card_data=data.to_yaml(), model_type=model_type, auto=auto, **values) + "\n"


_template = cache(Template)  # to compile one takes longer than to save a small model


def write_missing_card(folder: Path, model: PreTrainedModel, with_code: bool) -> None:
    """Write README.md into `folder` unless there is one: whoever wrote that knew more.

    Tables of training and evaluation come from where the model was loaded. Beside an adapter alone there is no model.
    """
    path = folder / CARD
    if not folder.is_dir() or path.exists() or (folder / "adapter_config.json").is_file():
        return
    known = _tables(Path(model.name_or_path) / CARD) if model.name_or_path else {}
    card = render_card(
        model.config.model_type,
        auto_class(type(model)),
        name=type(model).__name__,
        parameters=num_parameters(model),
        origin=f"saved by Tessera {tessera.__version__}",
        with_code=with_code,
        own=own_modules(model),
        training=known.get("Training"),
        evaluation=known.get("Evaluation"),
    )
    write_text_atomically(path, card)


def own_modules(model: PreTrainedModel) -> list[str]:
    """The modules outside of this library that define a class or a kernel of `model`, with "__main__" for a program.

    Who loads the model imports them first.
    """
    parts = list(model.modules())
    models = [part for part in parts if isinstance(part, PreTrainedModel)]
    kernels = [kernel for part in parts if isinstance(kernel := getattr(part, "kernel", None), Kernel)]
    names = dict.fromkeys(type(part).__module__ for part in (*models, *(part.config for part in models), *kernels))
    return [name for name in names if name.partition(".")[0] not in ("tessera", "transformers", "transformers_modules")]


def auto_class(cls: type) -> str:
    """The class of transformers that loads models of `cls`."""
    task = next((task for task in TASKS if cls.__name__.endswith(task)), "")
    return f"AutoModel{task}"


def _tables(card: Path) -> dict[str, str]:
    """The tables in the sections of a card, by title, with the sentence that says whence; no HTML."""
    if not card.is_file():
        return {}
    tables = {}
    for section in re.split("^## ", card.read_text(encoding="utf-8", errors="replace"), flags=re.MULTILINE)[1:]:
        title, *lines = section.splitlines()
        rows = [line.replace("<", "&lt;") for line in lines if line.startswith("|")]
        if rows:
            tables[title.strip()] = "\n".join([QUOTED, "", *rows])
    return tables


MODULE = "modeling_tessera"
CODE = '''"""Where transformers finds the classes of this model: in packages and modules that must be installed."""

try:
    {imports}
except ModuleNotFoundError as error:
    advice = "install it, or put its file on the Python path (PYTHONPATH)."
    raise ImportError(f"this model needs the module {{error.name!r}}: {{advice}}") from error

__all__ = ["{config}", "{model}"]
'''


class SavesWithCode(PreTrainedModel):
    """What all of this library's models add to `PreTrainedModel`: they save a card, and their state is no `Cache`."""

    _is_stateful = True  # the state cannot be cropped, as assisted generation would ask

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    @property
    def loss_function(self) -> Any:
        """What transformers' heads (classifiers) call; the causal models make their loss themselves, in blocks."""
        return super().loss_function

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        advice = "Give it to the Trainer (compute_loss_func), or call it with output.logits."
        is_called, got = not isinstance(self, GenerationMixin), getattr(value, "__name__", type(value).__name__)
        expect(is_called, type(self).__name__, "loss_function", "be the model's own", got, advice)
        self._loss_function = value

    def _returns_dict(self, return_dict: bool | None) -> bool:
        return self.config.return_dict if return_dict is None else return_dict

    def save_pretrained(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        *arguments: Any,
        with_code: bool = False,
        **options: Any,
    ) -> None:
        """As transformers' method, and a model card (README.md) in a folder that has none.

        `with_code` writes modeling_tessera.py beside the weights, named in config.json. What was loaded from a folder
        with code is saved with code.
        """
        folder = Path(save_directory)
        before = vars(self.config).get("auto_map")
        with_code = with_code or before is not None
        if with_code:
            config, model = type(self.config), type(self)
            if is_main_process:
                own, needed = own_modules(self), "be of a module that others can import"
                got, advice = "one of this program", "Write them into a file, and import that."
                expect("__main__" not in own, "save_pretrained", "classes and kernels", needed, got, advice)
                folder.mkdir(parents=True, exist_ok=True)
                imports = [f"import {name}" for name in own]
                imports += [f"from {_package(cls)} import {cls.__name__}" for cls in (config, model)]
                names = {"config": config.__name__, "model": model.__name__, "imports": "\n    ".join(imports)}
                write_text_atomically(folder / f"{MODULE}.py", CODE.format(**names))
            self.config.auto_map = {
                "AutoConfig": f"{MODULE}.{config.__name__}",
                auto_class(model): f"{MODULE}.{model.__name__}",
            }
        try:
            super().save_pretrained(save_directory, is_main_process, *arguments, **options)
        finally:
            self.config.auto_map = before
            if before is None:
                del self.config.auto_map
        if is_main_process:
            write_missing_card(folder, self, with_code)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing: transformers would copy source files of this package at the next saving."""


def _package(cls: type) -> str:
    """The package that offers a class of one of its modules, or that module itself."""
    package = cls.__module__.rpartition(".")[0]
    return package if hasattr(sys.modules.get(package), cls.__name__) else cls.__module__
