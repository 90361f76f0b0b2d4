"""What a segmented model's `base_model` is: the base, read in segments with the memory, down to its hidden states."""

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput


class SegmentedBackbone:
    """Called as `model.base_model(input_ids, ...)`: the hidden states that the head makes logits of, (B, T, hidden).

    Tools that compute the loss themselves (TRL's SFTTrainer) call it in place of `forward`. The base alone would read
    without the memory, over all positions at once. Other attributes are the base's.
    """

    def __init__(self, base: PreTrainedModel, read: Callable[..., Any]) -> None:
        self._base, self._read = base, read

    def __call__(self, *arguments: Any, **keywords: Any) -> BaseModelOutput:
        """Arguments as those of the model's `forward`, without labels."""
        keywords |= {"output_hidden_states": True, "skip_logits": True, "return_dict": True}
        output = self._read(*arguments, **keywords)
        return BaseModelOutput(last_hidden_state=output.hidden_states[-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)
