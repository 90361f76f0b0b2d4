"""What the model would predict from a part of its residual stream: the output layer applied early."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError

BLOCK = 1024  # rows whose logits are in memory at once
FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_norm")


class Lens:
    """`log softmax(scale * W_out Norm(x))` of vectors x of the residual stream.

    Raises:
        TesseraError: the model's final norm or output layer is not where such models have them.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        stack = model.base_model
        norms = [getattr(stack, name) for name in FINAL_NORMS if isinstance(getattr(stack, name, None), nn.Module)]
        head = model.get_output_embeddings()
        if not norms or head is None:
            raise TesseraError(f"inspection: {type(model).__name__} must have a final norm and an output layer.")
        self.norm, self.head = norms[0], head
        self.scale = getattr(model.config, "logit_scale", None) or 1.0

    @torch.no_grad()
    def __call__(self, stream: Tensor) -> Tensor:
        """Log-probabilities (..., V) of the next token from x (..., hidden)."""
        return (self.scale * self.head(self.norm(stream)).float()).log_softmax(-1)

    def likeliest(self, stream: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` likeliest tokens of x (N, hidden) and their log-probabilities, (N, count) each."""
        parts = [self(block).topk(count, -1) for block in stream.split(BLOCK)]
        return torch.cat([tokens for _, tokens in parts]), torch.cat([values for values, _ in parts])
