"""ARMT, RMT and PRMT: what each segment wrote, erased and read, and what a stored memory holds without any text."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError, expect
from tessera.inspection.text import Reading
from tessera.inspection.trace import SegmentTrace, StoredMemory
from tessera.layers.dpfp import dpfp
from tessera.memories.association import AssociationMemory, AssociationState
from tessera.models.causality import evaluating, trial_tokens
from tessera.models.recurrence import MemoryState, SegmentedForCausalLM
from tessera.ops.association_matrix import read_association
from tessera.ops.kernel_regression.interception import of_this_thread


class SegmentObserver:
    """Watches the memory of a segmented model while a text is read: `after_segment` after each segment, then `trace`.

    RMT and PRMT have no matrix: there `written` is the length of the change of the tokens that are carried, `norm`
    their length, and the rest is NaN. O(1) memory per segment, and one number per token and layer.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading, model = reading, reading.model
        memories = getattr(model, "memories", None)
        self.memories = None if memories is None else memories.in_order()
        self.state = model.empty_memory(1) if reading.state is None else reading.state
        self.rows: list[list[tuple[float, ...]]] = []
        self.reads = torch.full((reading.input_ids.shape[1], model.config.num_hidden_layers), torch.nan)
        self.outputs: dict = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While it lasts, the last outputs of every memory and of its projections are kept."""

        @of_this_thread
        def keep(module: nn.Module, arguments: tuple, output: Tensor) -> None:
            self.outputs[module] = output

        with ExitStack() as stack:
            for memory in self.memories or ():
                for part in (memory, memory.key, memory.value, memory.gate):
                    stack.enter_context(part.register_forward_hook(keep))
            yield

    def after_segment(self, after: MemoryState) -> None:
        """Measure what the segment did."""
        part = self.reading.part
        for layer, memory in enumerate(self.memories or ()):
            read = self.outputs.get(memory)  # nothing before the first writing
            lengths = 0.0 if read is None else read[0, : part.end - part.start].float().norm(dim=-1).cpu()
            self.reads[part.start : part.end, layer] = lengths
        self.rows.append([self._row(index, *pair) for index, pair in enumerate(zip(self.state.layers, after.layers))])
        self.state = after
        self.outputs.clear()

    def _row(self, index: int, before: Any, after: Any) -> tuple[float, ...]:
        """written, erased, read, norm, gamma of one layer in the segment that lies between its two states."""
        part = self.reading.part
        if self.memories is None:
            return _length(after.tokens - before.tokens), math.nan, math.nan, _length(after.tokens), math.nan
        memory, read = self.memories[index], float(self.reads[part.start : part.end, index].mean())
        strengths = self.outputs[memory.gate].unsqueeze(-1)
        keys = dpfp(self.outputs[memory.key], memory.num_rolls)
        written = keys.transpose(1, 2) @ (strengths * self.outputs[memory.value])
        # What the update took away is what it wrote less what came of it; so it holds in either order of writing.
        erased = written - (after.matrix - before.matrix)
        if memory.update_order != "sequential":
            known = read_association(before.matrix, before.normaliser, keys, eps=memory.epsilon)
            erased = keys.transpose(1, 2) @ (strengths * known)
        gamma = _gamma(memory, before, keys)
        if memory.gate_normalizer and memory.gate.can_close:
            gamma = gamma * (strengths.squeeze(-1) > 0)
        return _length(written), _length(erased), read, _length(after.matrix), float(gamma.mean())

    def trace(self) -> SegmentTrace:
        """What was measured."""
        written, erased, read, norm, gamma = (column.contiguous() for column in torch.tensor(self.rows).unbind(-1))
        starts = torch.tensor([part.start for part in self.reading.parts])
        return SegmentTrace(written, erased, read, norm, gamma, starts, None if self.memories is None else self.reads)


def _gamma(memory: AssociationMemory, before: AssociationState, keys: Tensor) -> Tensor:
    """`clip(1 - (z . phi(k) + eps) / (|phi(k)|^2 + eps), 0, 1)`; 1 for an empty memory and without the correction."""
    if not memory.correction or bool(before.empty.all()):
        return torch.ones(keys.shape[:2])
    known = (keys * before.normaliser[:, None]).sum(-1) + memory.epsilon
    return (1 - known / (keys.square().sum(-1) + memory.epsilon)).clamp(0, 1)


def _length(tensor: Tensor) -> float:
    return float(tensor.float().norm())


BLOCK = 1024  # rows whose logits are in memory at once
FINAL_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "final_norm", "norm_f", "layer_norm")


class Lens:
    """`log softmax(f(W_out Norm(x)))` of vectors x of the residual stream; f scales and caps as the model does.

    Raises `TesseraError`: the model's final norm or output layer is not where such models have them, or its logits are
    not these.
    """

    @torch.no_grad()
    def __init__(self, model: PreTrainedModel) -> None:
        stack = model.get_decoder()
        norms = [getattr(stack, name) for name in FINAL_NORMS if isinstance(getattr(stack, name, None), nn.Module)]
        head, kind = model.get_output_embeddings(), type(model).__name__
        if not norms or head is None:
            raise TesseraError(f"inspection: {kind} must have a final norm and an output layer.")
        self.norm, self.head, config = norms[0], head, model.config.get_text_config()
        self.scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
        self.cap = getattr(config, "final_logit_softcapping", None)
        normed: list[Tensor] = []
        take = of_this_thread(lambda *call: normed.append(call[2]))
        with evaluating(model), self.norm.register_forward_hook(take):
            logits = model(trial_tokens(model), use_cache=False).logits
        rounding = 1e-4 + 4 * torch.finfo(logits.dtype).eps * logits.abs().max()
        expected = logits.float().log_softmax(-1)
        differs = not normed or bool((self._read_out(normed[-1]) - expected).abs().max() > rounding)
        needed = "make logits of its final norm by one matrix, scaled or capped as its configuration says"
        expect(not differs, "inspection", "the model", needed, f"{kind}, which does not")

    @torch.no_grad()
    def __call__(self, stream: Tensor) -> Tensor:
        """Log-probabilities (..., V) of the next token from x (..., hidden)."""
        return self._read_out(self.norm(stream))

    def _read_out(self, normed: Tensor) -> Tensor:
        logits = self.scale * self.head(normed).float()
        return (logits if self.cap is None else self.cap * (logits / self.cap).tanh()).log_softmax(-1)

    def likeliest(self, stream: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` likeliest tokens of x (N, hidden) and their log-probabilities, (N, count) each."""
        parts = [self(block).topk(count, -1) for block in stream.split(BLOCK)]
        return torch.cat([tokens for _, tokens in parts]), torch.cat([values for values, _ in parts])


CONTENTS = 16  # directions that are listed of a matrix


@torch.no_grad()
def describe_memory(model: PreTrainedModel, state: MemoryState, predictions: int = 5) -> StoredMemory:
    """See `StoredMemory`. One singular value decomposition per layer.

    Raises `TesseraError`: a model that does not read in segments, or a state that is not one of its own, or of several
    rows.
    """
    where = "describe_memory"
    is_segmented = isinstance(model, SegmentedForCausalLM)
    expect(is_segmented, where, "model", "be an ARMT, RMT or PRMT model", model.config.model_type)
    state.expect_fits(model.empty_memory(1), where)
    expect(state.batch_size == 1, where, "state", "be of one row", state.batch_size)
    lens = Lens(model.base)
    norms, strengths, vectors = zip(*map(_contents, state.layers))
    tokens, scores = map(torch.stack, zip(*(lens.likeliest(contents, predictions) for contents in vectors)))
    sizes = torch.tensor(norms), torch.stack(strengths).float().cpu()
    counts = int(state.tokens_read), int(state.segments_read)
    return StoredMemory(state.kind, *counts, *sizes, tokens.int().cpu(), scores.cpu())


def _contents(layer) -> tuple[float, Tensor, Tensor]:
    """The norm, strengths (K,) and vectors (K, V) of what a layer holds, the strongest first in a matrix."""
    if not isinstance(layer, AssociationState):
        return _length(layer.tokens), layer.tokens[0].norm(dim=-1), layer.tokens[0]
    left, values, right = torch.linalg.svd(layer.matrix[0].float(), full_matrices=False)
    count = min(CONTENTS, len(values))
    # Features are positive, so a query reads a direction with the sign of the sum of its row weights.
    signs = torch.where(left[:, :count].sum(0) < 0, -1.0, 1.0)
    return _length(layer.matrix), values[:count], (signs[:, None] * right[:count]).to(layer.matrix.dtype)
