"""What a stored memory of ARMT, RMT or PRMT holds, without any text."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError, expect
from tessera.inspection.trace import StoredMemory
from tessera.memories.association import AssociationState
from tessera.models.recurrence import MemoryState, SegmentedForCausalLM

BLOCK = 1024  # rows whose logits are in memory at once
FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_norm")


class Lens:
    """`log softmax(scale * W_out Norm(x))` of vectors x of the residual stream.

    Raises `TesseraError`: the model's final norm or output layer is not where such models have them.
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


CONTENTS = 16  # directions that are listed of a matrix


@torch.no_grad()
def describe_memory(model: PreTrainedModel, memory: MemoryState, predictions: int = 5) -> StoredMemory:
    """See `StoredMemory`. One singular value decomposition per layer.

    Raises `TesseraError`: a model that does not read in segments, or a memory that is not one of its own, or of several
    rows.
    """
    where = "describe_memory"
    is_segmented = isinstance(model, SegmentedForCausalLM)
    expect(is_segmented, where, "model", "be an ARMT, RMT or PRMT model", model.config.model_type)
    memory.expect_fits(model.empty_memory(1), where)
    expect(memory.batch_size == 1, where, "memory", "be of one row", memory.batch_size)
    lens = Lens(model.base)
    sizes, tokens, scores = [], [], []
    for layer in memory.layers:
        strengths, vectors = _contents(layer)
        words, values = lens.likeliest(vectors, predictions)
        sizes.append(strengths.float().cpu())
        tokens.append(words.int().cpu())
        scores.append(values.cpu())
    norms = torch.stack([_norm(layer) for layer in memory.layers])
    counts = int(memory.tokens_read), int(memory.segments_read)
    return StoredMemory(memory.kind, *counts, norms, torch.stack(sizes), torch.stack(tokens), torch.stack(scores))


def _contents(layer) -> tuple[Tensor, Tensor]:
    """Strengths (K,) and vectors (K, V) of what a layer holds, the strongest first in a matrix."""
    if not isinstance(layer, AssociationState):
        return layer.tokens[0].norm(dim=-1), layer.tokens[0]
    left, values, right = torch.linalg.svd(layer.matrix[0].float(), full_matrices=False)
    count = min(CONTENTS, len(values))
    # Features are positive, so a query reads a direction with the sign of the sum of its row weights.
    signs = torch.where(left[:, :count].sum(0) < 0, -1.0, 1.0)
    return values[:count], (signs[:, None] * right[:count]).to(layer.matrix.dtype)


def _norm(layer) -> Tensor:
    return (layer.matrix if isinstance(layer, AssociationState) else layer.tokens).float().norm().cpu()
