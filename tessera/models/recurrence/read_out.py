"""From last hidden states to logits: computed once, straight into the place where they are returned."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

# Families whose logits are their output embedding of the last hidden state and nothing else (no cap, no scale).
PLAIN = frozenset({"gpt2", "gpt_neo", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"})


def plain_read_out(base: PreTrainedModel) -> nn.Linear | None:
    """The base's output embedding where its logits are `weight @ last hidden state` and nothing more, else None.

    Adapters, quantised layers and hooks make it something more.
    """
    head = base.get_output_embeddings()
    plain = base.config.model_type in PLAIN and type(head) is nn.Linear and head.bias is None
    hooked = plain and (head._forward_hooks or head._forward_pre_hooks)
    return head if plain and not hooked else None


class Logits:
    """Collects the logits (B, steps, vocabulary) of a text piece by piece.

    Without gradients they have their final place from the start: logits of a long text are gigabytes, and a second
    copy of them costs more time than the products.
    """

    def __init__(self, steps: int):
        self.steps, self.filled = steps, 0
        self.place: Tensor | None = None
        self.pieces: list[Tensor] = []

    def add(self, given: Tensor, head: nn.Linear | None) -> Tensor:
        """Take and return logits (B, n, vocabulary): the given ones, or those that `head` reads from `given`."""
        if head is None:
            return self._take(given)
        same = given.dtype == head.weight.dtype and not torch.is_autocast_enabled(given.device.type)
        if not (same and len(given) == 1 and self._in_place(given)):
            return self._take(linear(given, head.weight))
        place = self._next(given, head.out_features)
        torch.mm(given[0], head.weight.T, out=place[0])
        return place

    def _take(self, logits: Tensor) -> Tensor:
        if self._in_place(logits):
            return self._next(logits, logits.shape[-1]).copy_(logits)
        self.pieces.append(logits)
        return logits

    def value(self) -> Tensor | None:
        """All of them."""
        if self.pieces:
            return torch.cat(self.pieces, 1)
        return self.place

    def _in_place(self, given: Tensor) -> bool:
        return not torch.is_grad_enabled() and given.shape[1] < self.steps

    def _next(self, given: Tensor, vocabulary: int) -> Tensor:
        if self.place is None:
            self.place = given.new_empty(given.shape[0], self.steps, vocabulary)
        start, self.filled = self.filled, self.filled + given.shape[1]
        return self.place[:, start : self.filled]
