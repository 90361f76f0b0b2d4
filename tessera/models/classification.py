"""Classifiers of texts and of tokens on every model: transformers' own heads on the hidden states.

As with transformers' models: a text is judged by its last token that is not `pad_token_id`, and a causal language
model's folder loads into a classifier whose head is new.
"""

from typing import Any

from transformers import (
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
)
from transformers.utils import can_return_tuple

from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.linear_attention import LinearAttentionConfig, LinearAttentionPreTrainedModel
from tessera.models.lstm import LSTMConfig, LSTMPreTrainedModel
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


# Configuration -> what its models have in common.
CLASSIFIED: dict[type[PreTrainedConfig], type[PreTrainedModel]] = {
    MemoryMosaicConfig: MemoryMosaicPreTrainedModel,
    MemoryMosaicV2Config: MemoryMosaicV2PreTrainedModel,
    LinearAttentionConfig: LinearAttentionPreTrainedModel,
    LSTMConfig: LSTMPreTrainedModel,
    **dict.fromkeys((ARMTConfig, RMTConfig, PRMTConfig), SegmentedPreTrainedModel),
}


def register() -> None:
    """Make classifiers, which this module offers by their names, known to the Auto classes of transformers."""
    for config, plumbing in CLASSIFIED.items():
        model = config.__name__.removesuffix("Config")
        for task, (head, auto_class, names) in HEADS.items():
            body: dict[str, Any] = {"__module__": __name__, "__doc__": f"transformers' head for {task} on {model}."}
            # transformers' heads take the mean, whatever number of items they are told
            body |= {"base_model_prefix": "model", "config_class": config, "accepts_loss_kwargs": False}
            classifier = type(f"{model}For{task}", (head, plumbing), body)
            globals()[classifier.__name__] = classifier
            auto_class.register(config, classifier, exist_ok=True)
            names[config.model_type] = classifier.__name__
