"""The one list of models: what a recipe's `type`, an experiment and `tessera info` may name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from tessera.base.arguments import explain_all
from tessera.base.registry import Registry
from tessera.models.strict_config import StrictConfig

if TYPE_CHECKING:
    from tessera.models.small_models import ModelSize


@dataclass(frozen=True)
class ModelEntry:
    """What a name stands for; `AutoModelForCausalLM` builds the model of its configuration.

    Attributes:
        config: makes the configuration from keyword arguments: a class, a function, or a `partial` of one.
        of_size: makes the untrained model that equals a transformer of a `ModelSize`; None: experiments cannot name it.
        is_preset: whether `config()` is a published size.
    """

    config: Callable[..., PreTrainedConfig]
    of_size: "Callable[[ModelSize], PreTrainedModel] | None" = None
    is_preset: bool = False

    @property
    def maker(self) -> Callable[..., PreTrainedConfig]:
        """The class or function behind `config`, without the arguments that are chosen already."""
        return self.config.func if isinstance(self.config, partial) else self.config


MODELS: Registry[ModelEntry] = Registry("model", "tessera.models")


def register_model(
    config: type[PreTrainedConfig],
    causal: type[PreTrainedModel],
    base: type[PreTrainedModel] | None = None,
    **entry: Any,
) -> None:
    """Make a model type known to recipes and to `AutoConfig`, `AutoModel` and `AutoModelForCausalLM`.

    `base` is the model without its head, if there is one; `entry` are further fields of its `ModelEntry`.
    """
    MODELS.add(config.model_type, ModelEntry(config, **entry))
    AutoConfig.register(config.model_type, config, exist_ok=True)
    if base is not None:
        AutoModel.register(config, base, exist_ok=True)
        MODEL_MAPPING_NAMES[config.model_type] = base.__name__  # for those that ask which models have no loss
    AutoModelForCausalLM.register(config, causal, exist_ok=True)
    # The Trainer shifts labels that it smooths for these names alone; lm-eval and pipelines choose by them too.
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] = causal.__name__


def strict_configs() -> list[type[StrictConfig]]:
    """The configuration classes of the library's own models and of plugins that check themselves as these do."""
    makers = {entry.maker: None for _, entry in MODELS.items()}
    return [maker for maker in makers if isinstance(maker, type) and issubclass(maker, StrictConfig)]


explain_all(globals(), ("register_model",))
