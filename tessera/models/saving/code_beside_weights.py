"""`save_pretrained(folder, with_code=True)`: a saved model that loads without `import tessera.models`.

transformers has no entry points for model types. It reads classes of a type that it does not know from a
Python file beside the weights, and only if the user says `trust_remote_code=True`. That file imports them from this
package, which must be installed: no code of the model itself is copied. Our command line never runs such files.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.base.files import write_text_atomically
from tessera.models.saving.model_card import auto_class, write_missing_card

if TYPE_CHECKING:
    from transformers import PreTrainedModel as Base
else:
    Base = object

MODULE = "modeling_tessera"
CODE = '''"""Where transformers finds the classes of this model: in the tessera package, which must be installed."""

from {config_module} import {config}
from {model_module} import {model}

__all__ = ["{config}", "{model}"]
'''


class SavesWithCode(Base):
    """What this library's causal language models add to `PreTrainedModel`; stands before it among the bases."""

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
                folder.mkdir(parents=True, exist_ok=True)
                names = {"config": config.__name__, "model": model.__name__}
                code = CODE.format(config_module=_package(config), model_module=_package(model), **names)
                write_text_atomically(folder / f"{MODULE}.py", code)
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
    return package if hasattr(sys.modules[package], cls.__name__) else cls.__module__
