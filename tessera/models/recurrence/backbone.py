"""What a segmented model's `base_model` is: the base, read in segments with the memory, down to its hidden states."""

from typing import TYPE_CHECKING, Any

from transformers.modeling_outputs import BaseModelOutput

if TYPE_CHECKING:
    from tessera.models.recurrence.modeling import SegmentedForCausalLM


class SegmentedBackbone:
    """Called as `model.base_model(input_ids, ...)`: the hidden states that the head makes logits of, (B, T, hidden).

    Tools that compute the loss themselves (TRL's SFTTrainer) call it in place of `forward`. The base alone would read
    without the memory, over all positions at once. Other attributes are the base's.
    """

    def __init__(self, model: "SegmentedForCausalLM") -> None:
        self._model = model

    def __call__(self, *arguments: Any, **keywords: Any) -> BaseModelOutput:
        """Arguments as those of the model's `forward`, without labels."""
        # Such tools replace `forward` of the model with one that calls this.
        forward = type(self._model).forward
        output = forward(self._model, *arguments, **keywords, output_hidden_states=True, skip_logits=True)
        return BaseModelOutput(last_hidden_state=output.hidden_states[-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model.base, name)
