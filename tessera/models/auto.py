"""Registration with the Auto classes of transformers."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.classification import CLASSIFIERS
from tessera.models.linear_attention import (
    LinearAttentionConfig,
    LinearAttentionForCausalLM,
    LinearAttentionModel,
)
from tessera.models.lstm import LSTMConfig, LSTMForCausalLM
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicModel
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, MemoryMosaicV2Model
from tessera.models.prmt import PRMTConfig, PRMTForCausalLM
from tessera.models.rmt import RMTConfig, RMTForCausalLM

MODELS = [
    (MemoryMosaicConfig, MemoryMosaicModel, MemoryMosaicForCausalLM),
    (MemoryMosaicV2Config, MemoryMosaicV2Model, MemoryMosaicV2ForCausalLM),
    (LinearAttentionConfig, LinearAttentionModel, LinearAttentionForCausalLM),
    (ARMTConfig, None, ARMTForCausalLM),
    (RMTConfig, None, RMTForCausalLM),
    (PRMTConfig, None, PRMTForCausalLM),
]


TASKS = {
    "SequenceClassification": (
        AutoModelForSequenceClassification,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ),
    "TokenClassification": (AutoModelForTokenClassification, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
}


def register() -> None:
    """Make every model of the library known to transformers' Auto classes, also those of classifiers."""
    for config, base, causal in MODELS:
        register_model(config, causal, base)
    _register_name(LSTMConfig, LSTMForCausalLM)  # a baseline that is built, not loaded
    for config, (base, classifiers) in CLASSIFIERS.items():
        if base is not None:
            AutoModel.register(config, base, exist_ok=True)
            MODEL_MAPPING_NAMES[config.model_type] = base.__name__
        for task, classifier in classifiers.items():
            auto_class, names = TASKS[task]
            auto_class.register(config, classifier, exist_ok=True)
            names[config.model_type] = classifier.__name__


def register_model(
    config: type[PreTrainedConfig], causal: type[PreTrainedModel], base: type[PreTrainedModel] | None = None
) -> None:
    """Make one model type known to them; `base` is the model without its head, if there is one."""
    AutoConfig.register(config.model_type, config, exist_ok=True)
    if base is not None:
        AutoModel.register(config, base, exist_ok=True)
        MODEL_MAPPING_NAMES[config.model_type] = base.__name__  # for those that ask which models have no loss
    AutoModelForCausalLM.register(config, causal, exist_ok=True)
    _register_name(config, causal)


def _register_name(config: type[PreTrainedConfig], causal: type[PreTrainedModel]) -> None:
    """Tell those that ask by name, not by class, that the model predicts the next token.

    The Trainer shifts labels that it smooths for these names alone; lm-eval and pipelines choose by them too.
    """
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type] = causal.__name__
