"""A memory that is written by gradient descent while reading: GradMem, for memory tokens and association matrices."""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect
from tessera.memories.association import AssociationState
from tessera.models.causality import learned_positions
from tessera.models.forward_arguments import check_types, demand, embedded
from tessera.models.loss_per_item import summed_loss
from tessera.models.recurrence.base_model import computes_twice
from tessera.models.recurrence.collector import SegmentedOutput
from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.recurrence.segment_runner import Segment, SegmentRunner
from tessera.models.recurrence.state import CarriedTokens, MemoryState

WRITTEN = {CarriedTokens: "tokens", AssociationState: "matrix"}  # what of a layer's state the gradient changes


class GradientWriter(nn.Module):
    """Writes a text into the memory of `model` by gradient descent on how well `model` tells it again.

    `S_k = S_{k-1} - r_k dL(S_{k-1}) / dS`, k = 1..`steps`, with
    `L(S) = - sum_{t>1} log p(x_t | S, x_1 .. x_{t-1}) / (T - 1)`, the text as one segment (GradMem, Kuratov et al.
    2026, arXiv:2603.13875). The weights stay as they are. In training, gradients flow through
    the steps to the model and to the rates r_k > 0 (second derivatives).

    S is what the model carries from segment to segment: memory tokens, which start as the learned ones (RMT, as
    published; PRMT), or the association matrix of each layer, which starts at 0, with a normaliser z of ones (ARMT).
    What comes out is an ordinary memory of `model`: to be given as its `memory_state`, saved, repeated.

    Args:
        model: ARMT, RMT or PRMT whose base can be differentiated twice: the families of transformers can.
        steps: K. learning_rate: r_k of each step at the start.
    Raises:
        TesseraError: another model, a text of one token, or one that is longer than the base's learned positions, or
            gradient checkpointing in training.

    >>> from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
    >>> from tessera import wrap_rmt
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> writer = GradientWriter(wrap_rmt(GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=20, **sizes))), steps=3)
    >>> memory = writer.write(torch.tensor([[3, 4, 5, 6]]))
    >>> writer.model(input_ids=torch.tensor([[3]]), memory_state=memory, use_cache=True).logits.shape
    torch.Size([1, 1, 20])
    """

    @explains_mistakes
    def __init__(self, model: SegmentedForCausalLM, steps: int = 5, learning_rate: float = 1.0):
        super().__init__()
        where = type(self).__name__
        expect(isinstance(model, SegmentedForCausalLM), where, "model", "be ARMT, RMT or PRMT", type(model).__name__)
        expect(type(steps) is int and steps >= 1, where, "steps", "be a positive integer", steps)
        expect(learning_rate > 0, where, "learning_rate", "be positive", learning_rate)
        self.model = model
        layers = model.empty_memory(1).layers
        first = model.get_input_embeddings().weight
        self.log_rates = nn.Parameter(first.new_full((steps, len(layers)), math.log(learning_rate)))

    @property
    def config(self) -> Any:
        """The model's."""
        return self.model.config

    def empty_memory(self, batch: int) -> MemoryState:
        """S_0: the memory of `batch` rows before anything was read."""
        return _readable(self.model.empty_memory(batch))

    def forward(self, input_ids: Tensor, memory_state: MemoryState | None = None, **options: Any) -> SegmentedOutput:
        """A text without a memory is written; behind a memory it is read by the model, with its other `options`."""
        if memory_state is None:
            mask, needed = options.get("attention_mask"), "be ones: every row is written whole, its padding too"
            if mask is not None:
                demand(mask.bool().all(), type(self).__name__, "attention_mask", needed, lambda: "zeros")
            cache, requirement = options.get("past_key_values"), "be left out: a text is written whole, behind nothing"
            expect(cache is None, type(self).__name__, "past_key_values", requirement, type(cache).__name__)
            return SegmentedOutput(memory_state=self.write(input_ids))
        return self.model(input_ids=input_ids, memory_state=memory_state, **options)

    @explains_mistakes
    def write(self, input_ids: Tensor, memory_state: MemoryState | None = None) -> MemoryState:
        """The memory after `input_ids` (B, T), T > 1, were written into `memory_state` (None: S_0; see the model's).

        With gradients enabled, these flow through all steps. Costs K forward and backward passes over B T tokens.
        """
        self._expect_text(input_ids)
        is_training = torch.is_grad_enabled()
        attention = sdpa_kernel(SDPBackend.MATH) if is_training else nullcontext()  # others have one derivative
        runner = self.model.segment_runner()
        with torch.inference_mode(False), torch.enable_grad(), attention:
            rows, input_ids = len(input_ids), input_ids.clone() if input_ids.is_inference() else input_ids
            state = self.model.empty_memory(rows) if memory_state is None else self.model.fitting(memory_state, rows)
            state = _readable(state.for_batch(rows))
            for rates in self.log_rates.exp():
                state = self._step(runner, input_ids, state, rates, is_training)
        return state.after(state.layers, input_ids.shape[1])

    def _step(
        self, runner: SegmentRunner, input_ids: Tensor, state: MemoryState, rates: Tensor, is_training: bool
    ) -> MemoryState:
        names = [WRITTEN[type(layer)] for layer in state.layers]
        held = [getattr(layer, name) for layer, name in zip(state.layers, names)]
        held = [t if is_training and t.requires_grad else t.detach().requires_grad_() for t in held]
        changed = [replace(layer, **{name: tensor}) for layer, name, tensor in zip(state.layers, names, held)]
        loss = self._told_again(runner, input_ids, replace(state, layers=tuple(changed)))
        gradients = torch.autograd.grad(loss, held, create_graph=is_training)
        stepped = [tensor - rate * gradient for tensor, rate, gradient in zip(held, rates, gradients)]
        if not is_training:
            stepped = [tensor.detach() for tensor in stepped]
        layers = [replace(layer, **{name: tensor}) for layer, name, tensor in zip(state.layers, names, stepped)]
        return replace(state, layers=tuple(layers))

    def _told_again(self, runner: SegmentRunner, input_ids: Tensor, state: MemoryState) -> Tensor:
        """L(S), summed over the rows, none of which depends on another's memory."""
        embeddings = embedded(type(self).__name__, self.model.get_input_embeddings(), input_ids)
        logits = runner.run(Segment(embeddings, close=False), state).output
        assert logits is not None, "the segment asks for them"
        return summed_loss(logits[:, :-1], input_ids[:, 1:]) / (input_ids.shape[1] - 1)

    def _expect_text(self, input_ids: Tensor) -> None:
        where, shape = "GradientWriter.write", tuple(input_ids.shape)
        check_types(where, {"input_ids": input_ids})
        expect(len(shape) == 2 and shape[1] > 1, where, "input_ids", "be (B, T) with T > 1", shape)
        expect(not computes_twice(self.model), where, "gradient checkpointing", "be off", "on", "Steps go backward.")
        positions = learned_positions(self.model.base)
        most = shape[1] if positions is None else positions - self.config.num_memory_tokens
        expect(shape[1] <= most, where, "input_ids", f"hold at most {most} tokens (learned positions)", shape[1])


def _readable(state: MemoryState) -> MemoryState:
    """The same memory; of association matrices those into which nothing was written are read although they are 0."""
    layers = list(state.layers)
    for index, layer in enumerate(layers):
        if isinstance(layer, AssociationState):
            normaliser = torch.where(layer.empty[:, None], 1.0, layer.normaliser)
            layers[index] = AssociationState(layer.matrix, normaliser, torch.zeros_like(layer.empty))
    return replace(state, layers=tuple(layers))
