"""What a stored memory of ARMT, RMT or PRMT holds, without any text."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.base.errors import expect
from tessera.inspection.lens import Lens
from tessera.inspection.trace import StoredMemory
from tessera.memories.association import AssociationState
from tessera.models.recurrence import MemoryState, SegmentedForCausalLM

CONTENTS = 16  # directions that are listed of a matrix


@torch.no_grad()
def describe_memory(model: PreTrainedModel, memory: MemoryState, predictions: int = 5) -> StoredMemory:
    """See `StoredMemory`. One singular value decomposition per layer.

    Raises:
        TesseraError: a model that does not read in segments, or a memory that is not one of its own, or of several
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
