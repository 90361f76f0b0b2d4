"""Make the library's model types known to the Auto classes of transformers, without importing transformers.

transformers has no entry points for model types, and a registration needs the configuration class, whose import costs
seconds. So the table that transformers looks types up in gets entries whose classes are imported when they are looked
up. If transformers is imported later than tessera, a finder on `sys.meta_path` waits for that one module. The same for
PEFT, whose tables say which layers an adapter goes on.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from tessera.base import plugins

MODEL_TYPES = ("memory_mosaic", "memory_mosaic_v2", "linear_attention", "armt", "rmt", "prmt")
AUTO_CONFIGURATION = "transformers.models.auto.configuration_auto"
PEFT_CONSTANTS = "peft.utils.constants"
# What adapters go on where a user names no layers: those of keys and values, as in PEFT's own table for transformers.
_MOSAIC = ["key_extractor.projection", "value_extractor.projection"]
_WRAPPED = ["c_attn", "q_proj", "v_proj", "query_key_value", *_MOSAIC]  # around a base of any of these families
ADAPTED = {
    "memory_mosaic": _MOSAIC,
    "memory_mosaic_v2": _MOSAIC,
    "linear_attention": ["memory.key", "memory.value"],
    **dict.fromkeys(("armt", "rmt", "prmt"), _WRAPPED),
}
_OTHER_LAYERS = ("LNTUNING", "IA3", "BEFT")  # norms, feed-forward networks, biases: their tables name other layers


class ConfigurationTable(MutableMapping):
    """Model type -> configuration class. A type in `loaders` is registered by its loader when it is first looked up."""

    def __init__(self, registered: MutableMapping[str, type], loaders: dict[str, Callable[[], object]]) -> None:
        self._registered, self._loaders = registered, loaders

    def __getitem__(self, model_type: str) -> type:
        if model_type not in self._registered and model_type in self._loaders:
            self._loaders[model_type]()
        return self._registered[model_type]

    def __setitem__(self, model_type: str, config: type) -> None:
        self._registered[model_type] = config

    def __delitem__(self, model_type: str) -> None:
        self._loaders.pop(model_type, None)
        del self._registered[model_type]

    def __contains__(self, model_type: object) -> bool:
        return model_type in self._registered or model_type in self._loaders

    def __iter__(self) -> Iterator[str]:
        return iter({**self._loaders, **self._registered})

    def __len__(self) -> int:
        return len({**self._loaders, **self._registered})


class _Wait(MetaPathFinder):
    """Extends the tables of one module as soon as it has been executed."""

    def __init__(self, name: str, extend: Callable[[ModuleType], None]) -> None:
        self.name, self.extend = name, extend

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `MetaPathFinder`; answers once, for that module."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_extend(module: ModuleType) -> None:
            execute(module)
            self.extend(module)

        spec.loader.exec_module = execute_and_extend  # type: ignore[method-assign]  # of this one loader
        return spec


def register_on_demand() -> None:
    """After this, `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` know the library's models and the plugins'."""
    for name, extend in ((AUTO_CONFIGURATION, _extend_transformers), (PEFT_CONSTANTS, _extend_peft)):
        if name in sys.modules:
            extend(sys.modules[name])
        else:
            sys.meta_path.insert(0, _Wait(name, extend))


def _extend_peft(module: ModuleType) -> None:
    for name, table in vars(module).items():
        if name.endswith("_TARGET_MODULES_MAPPING") and not any(other in name for other in _OTHER_LAYERS):
            table.update(ADAPTED)
    module.TRANSFORMERS_MODELS_TO_PREFIX_TUNING_POSTPROCESS_MAPPING.update(dict.fromkeys(MODEL_TYPES[:3], _prefix))


def _prefix(layers: Sequence[Any]) -> Any:
    return importlib.import_module("tessera.models.prefix").Prefix.of(layers)


def _extend_transformers(module: ModuleType) -> None:
    """`_extra_content` is where `AutoConfig.register` puts classes: the one private name of transformers used here."""
    loaders: dict[str, Callable[[], object]] = {}
    loaders |= dict.fromkeys(MODEL_TYPES, lambda: importlib.import_module("tessera.models"))
    loaders |= {point.name: plugins.model_loader(point) for point in plugins.entry_points("tessera.models")}
    module.CONFIG_MAPPING._extra_content = ConfigurationTable(module.CONFIG_MAPPING._extra_content, loaders)
