"""Classifiers of texts and of tokens on every model: transformers' own heads on the hidden states.

As with transformers' models: a text is judged by its last token that is not `pad_token_id`, and a causal language
model's folder loads into a classifier whose head is new.
"""

from typing import Any

from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)
from transformers.utils import can_return_tuple

from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.linear_attention import LinearAttentionConfig, LinearAttentionPreTrainedModel
from tessera.models.lstm import LSTMConfig, LSTMModel, LSTMPreTrainedModel
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicPreTrainedModel
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2PreTrainedModel
from tessera.models.prmt import PRMTConfig, PRMTForCausalLM
from tessera.models.recurrence.modeling import SegmentedPreTrainedModel
from tessera.models.recurrence.segment_loss import counted_as_used
from tessera.models.rmt import RMTConfig, RMTForCausalLM


class SegmentedHiddenStates:
    """Stands before a segmented causal language model among the bases: its hidden states in place of logits.

    The weights are those of the causal model, with the base's head, which is not used.
    """

    @can_return_tuple
    def forward(self, *arguments: Any, **keywords: Any) -> BaseModelOutputWithPast:
        """Arguments as those of the causal model, without labels; `last_hidden_state` (B, T, hidden)."""
        shows_layers = keywords.pop("output_hidden_states", None)
        shows_layers = self.config.output_hidden_states if shows_layers is None else shows_layers  # type: ignore[attr-defined]
        options = {**keywords, "output_hidden_states": True, "skip_logits": True, "return_dict": True}
        output = super().forward(*arguments, **options)  # type: ignore[misc]
        return BaseModelOutputWithPast(
            last_hidden_state=counted_as_used(output.hidden_states[-1], self.memory_parameters()),  # type: ignore[attr-defined]
            past_key_values=output.past_key_values,
            hidden_states=output.hidden_states if shows_layers else None,
        )


class ARMTModel(SegmentedHiddenStates, ARMTForCausalLM):
    """ARMT down to the hidden states."""


class RMTModel(SegmentedHiddenStates, RMTForCausalLM):
    """RMT down to the hidden states."""


class PRMTModel(SegmentedHiddenStates, PRMTForCausalLM):
    """PRMT down to the hidden states."""


# Task -> transformers' head, the Auto class, and the names that it goes by.
HEADS = {
    "SequenceClassification": (
        GenericForSequenceClassification,
        AutoModelForSequenceClassification,
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ),
    "TokenClassification": (
        GenericForTokenClassification,
        AutoModelForTokenClassification,
        MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    ),
}


def _classifiers(
    name: str, plumbing: type[PreTrainedModel], config: type[PreTrainedConfig] | None = None
) -> dict[str, type[PreTrainedModel]]:
    """One class for each head, which this module offers by its name."""
    made = {}
    for task, (head, *_) in HEADS.items():
        described = f"transformers' head for {task} on {name}."
        body: dict[str, Any] = {"__module__": __name__, "__doc__": described, "base_model_prefix": "model"}
        body["config_class"] = config or plumbing.config_class
        body["accepts_loss_kwargs"] = False  # transformers' heads take the mean, whatever number of items they are told
        made[task] = globals()[f"{name}For{task}"] = type(f"{name}For{task}", (head, plumbing), body)
    return made


# Configuration -> (the class of the hidden states where it is made here, the classifiers by their task).
CLASSIFIERS: dict[type[PreTrainedConfig], tuple[type[PreTrainedModel] | None, dict[str, type[PreTrainedModel]]]] = {
    MemoryMosaicConfig: (None, _classifiers("MemoryMosaic", MemoryMosaicPreTrainedModel)),
    MemoryMosaicV2Config: (None, _classifiers("MemoryMosaicV2", MemoryMosaicV2PreTrainedModel)),
    LinearAttentionConfig: (None, _classifiers("LinearAttention", LinearAttentionPreTrainedModel)),
    LSTMConfig: (LSTMModel, _classifiers("LSTM", LSTMPreTrainedModel)),
    ARMTConfig: (ARMTModel, _classifiers("ARMT", SegmentedPreTrainedModel, ARMTConfig)),
    RMTConfig: (RMTModel, _classifiers("RMT", SegmentedPreTrainedModel, RMTConfig)),
    PRMTConfig: (PRMTModel, _classifiers("PRMT", SegmentedPreTrainedModel, PRMTConfig)),
}


def register() -> None:
    """Make the classifiers, and the hidden states that are made here, known to the Auto classes of transformers."""
    for config, (base, classifiers) in CLASSIFIERS.items():
        if base is not None:
            AutoModel.register(config, base, exist_ok=True)
            MODEL_MAPPING_NAMES[config.model_type] = base.__name__
        for task, classifier in classifiers.items():
            _, auto_class, names = HEADS[task]
            auto_class.register(config, classifier, exist_ok=True)
            names[config.model_type] = classifier.__name__
