"""Make the library's model types known to the Auto classes of transformers, without importing transformers.

transformers has no entry points for model types, and a registration needs the configuration class, whose import costs
seconds. So the table that transformers looks types up in gets entries whose classes are imported when they are looked
up. If transformers is imported later than tessera, a finder on `sys.meta_path` waits for that one module.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from tessera.base import plugins

MODEL_TYPES = ("memory_mosaic", "memory_mosaic_v2", "linear_attention", "armt", "rmt", "prmt")
AUTO_CONFIGURATION = "transformers.models.auto.configuration_auto"


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


class _WaitForTransformers(MetaPathFinder):
    """Extends transformers' table of configurations as soon as its module has been executed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `MetaPathFinder`; answers once, for the module of the table."""
        if name != AUTO_CONFIGURATION:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_extend(module: ModuleType) -> None:
            execute(module)
            _extend(module)

        spec.loader.exec_module = execute_and_extend  # type: ignore[method-assign]  # of this one loader
        return spec


def register_on_demand() -> None:
    """After this, `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` know the library's models and the plugins'."""
    if AUTO_CONFIGURATION in sys.modules:
        _extend(sys.modules[AUTO_CONFIGURATION])
    else:
        sys.meta_path.insert(0, _WaitForTransformers())


def _extend(module: ModuleType) -> None:
    """`_extra_content` is where `AutoConfig.register` puts classes: the one private name of transformers used here."""
    loaders: dict[str, Callable[[], object]] = {}
    loaders |= dict.fromkeys(MODEL_TYPES, lambda: importlib.import_module("tessera.models"))
    loaders |= {point.name: plugins.model_loader(point) for point in plugins.entry_points("tessera.models")}
    module.CONFIG_MAPPING._extra_content = ConfigurationTable(module.CONFIG_MAPPING._extra_content, loaders)
