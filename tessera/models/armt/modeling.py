"""ARMT as a Hugging Face model around any causal language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers import initialization as init

from tessera.memories.association import AssociationMemory, AssociationState, Openings
from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.layer_hooks import LayerHooks
from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.recurrence.segment_runner import LayerModules, MemoryTokens
from tessera.models.recurrence.state import MemoryState
from tessera.ops.association_matrix import UPDATE_ORDERS


class ARMTConfig(SegmentedConfig):
    r"""A base model whose every layer reads and writes an association matrix (ARMT, section 2).

    Args:
        memory_dim: width of queries and keys before the feature map. num_rolls: nu of DPFP-nu, so that a layer's
            matrix is (2 nu memory_dim, hidden_size).
        correction: gamma-correction of the normaliser. update_order: "parallel" (published) or "sequential" (paper).
        epsilon: of the divisions. strength_stretch: 0 as published; with 0.1 a memory token can also write exactly
            nothing, see `tessera.memories.association.WriteStrength`. strength_threshold: 0 as published; strengths
            below it write nothing.
        gate_normalizer: whether a memory token of strength exactly 0 leaves the normaliser as it is too; not in the
            paper, and trainings with it break (see `AssociationMemory`).
        gate_penalty: this times the mean probability that a memory token writes (`WriteStrength.opening`, of writes
            that gradients flow through) is added to the loss in training, so that text without use is not written;
            needs a `strength_stretch`. The others: see `SegmentedConfig`.
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "armt"
    adjustable: ClassVar[frozenset[str]] = SegmentedConfig.adjustable | {"gate_penalty", "strength_threshold"}

    memory_dim: int = 64
    num_rolls: int = 3
    correction: bool = True
    update_order: str = "parallel"
    epsilon: float = 1e-5
    strength_stretch: float = 0.0
    strength_threshold: float = 0.0
    gate_normalizer: bool = False
    gate_penalty: float = 0.0

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        problems = super().problems() + self.positive("memory_dim", "num_rolls")
        if not problems:
            width = 2 * self.memory_dim
            problems = self.broken((self.num_rolls < width, "num_rolls", f"lie below 2 memory_dim ({width})"))
        stretch, threshold, penalty = self.strength_stretch, self.strength_threshold, self.gate_penalty
        is_penalty = isinstance(penalty, (int, float)) and penalty >= 0
        is_share = isinstance(threshold, (int, float)) and 0 <= threshold < 1
        closes = not (is_penalty and penalty) or bool(stretch)
        problems += self.one_of(update_order=UPDATE_ORDERS)
        return problems + self.broken(
            (isinstance(self.correction, bool), "correction", "be True or False"),
            (isinstance(self.epsilon, float) and self.epsilon > 0, "epsilon", "be a positive number"),
            (isinstance(stretch, (int, float)) and stretch >= 0, "strength_stretch", "be a number of at least 0"),
            (is_share, "strength_threshold", "be a number of at least 0 and below 1"),
            (is_penalty, "gate_penalty", "be a number of at least 0"),
            (closes, "gate_penalty", "be 0 without a strength_stretch above 0, by which gates can close"),
        )


@dataclass(frozen=True)
class ARMTState(MemoryState):
    """Association matrices of all layers. Size: L B P (V + 1) numbers, however much was read."""

    layers: tuple[AssociationState, ...]

    kind = "armt"

    @property
    def A(self) -> Tensor:
        """The association matrices (L, B, P, V)."""
        return torch.stack([layer.matrix for layer in self.layers])

    @property
    def z(self) -> Tensor:
        """The normalisers (L, B, P)."""
        return torch.stack([layer.normaliser for layer in self.layers])


class AssociationHooks(LayerHooks):
    """Every layer reads its association matrix before, and writes its memory tokens' outputs after (ARMT, figure 1)."""

    def __init__(
        self,
        memories: Sequence[AssociationMemory],
        states: tuple[AssociationState, ...],
        is_empty: bool,
        back: int,
        openings: Openings | None,
    ):
        super().__init__(0, back)
        self.memories, self.states, self.is_empty, self.openings = memories, states, is_empty, openings
        self.written: list[AssociationState] = list(states)  # each layer's new one, in a call with memory tokens

    def before(self, index: int, hidden: Tensor) -> Tensor:
        """`x_j += A^T phi(q_j) / (z . phi(q_j) + eps)`; an empty memory would add exactly 0."""
        return hidden if self.is_empty else hidden + self.memories[index](hidden, self.states[index])

    def after(self, index: int, hidden: Tensor) -> None:
        """Write the outputs at the memory tokens."""
        if self.back:
            tokens, state = hidden[:, -self.back :], self.states[index]
            self.written[index] = self.memories[index].write(tokens, state, self.openings)


class ARMTForCausalLM(SegmentedForCausalLM, GenerationMixin):
    """Associative Recurrent Memory Transformer: memory tokens at the end of each segment, written layer by layer.

    >>> from transformers import GPT2Config
    >>> from tessera.models.armt import ARMTConfig, ARMTForCausalLM
    >>> base = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    >>> model = ARMTForCausalLM(ARMTConfig(base_config=base, segment_size=8, num_memory_tokens=2, memory_dim=4))
    """

    config_class = ARMTConfig
    state_class = ARMTState
    is_shared = True
    memory_modules = ("memories", "memory_tokens")

    def _add_memory(self, config: ARMTConfig) -> None:
        weight = self.get_input_embeddings().weight
        self.memory_tokens = MemoryTokens(config.num_memory_tokens, weight)
        sizes = (config.hidden_size, config.memory_dim, config.num_rolls)
        names = "correction update_order epsilon strength_stretch strength_threshold gate_normalizer".split()
        update = {name: getattr(config, name) for name in names}
        with weight.device:
            memories = [AssociationMemory(*sizes, **update) for _ in range(config.num_hidden_layers)]
        self.memories = LayerModules(memories)
        if weight.dtype != torch.get_default_dtype():  # tensors without numbers cannot be converted in place
            self.memories.to(weight.dtype)

    def on_adjusted(self) -> None:
        """Take over what `adjust_model` changed in the configuration."""
        for memory in self.memories.in_order():
            memory.gate.threshold = self.config.strength_threshold

    def adds_nothing(self) -> bool:
        """Whether what the memory adds to the layers is 0, as in the beginning."""
        return not any(bool(memory.value.weight.any()) for memory in self.memories.in_order())

    def _init_weights(self, module: nn.Module) -> None:
        # transformers asks about modules with parameters of their own, one by one.
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            module.reset_parameters()
        if any(module is memory.value for memory in self.memories.in_order()):
            init.zeros_(module.weight)

    def _memory_flops_per_token(self) -> int:
        """Per layer: a query and a reading for every position; key, value, strength and a writing for memory tokens."""
        config = self.config
        width, features = config.hidden_size, 2 * config.num_rolls * config.memory_dim
        reading = 2 * config.memory_dim * width + 2 * features * (width + 1)
        writing = 2 * width * (config.memory_dim + width + 1) + 4 * features * (width + 1)
        size, tokens = config.segment_size, config.num_memory_tokens
        return config.num_hidden_layers * (reading * (size + tokens) + writing * tokens) // size

    def unread_layers(self, batch: int) -> list[AssociationState]:
        """A = 0, z = 0."""
        return [memory.empty_state(batch) for memory in self.memories.in_order()]

    def new_openings(self) -> Openings | None:
        """See `ARMTConfig`, gate_penalty."""
        return Openings() if self.config.gate_penalty else None

    def hooks(
        self, state: ARMTState, is_empty: bool, front: int, back: int, openings: Openings | None
    ) -> AssociationHooks:
        """See `AssociationHooks`."""
        return AssociationHooks(self.memories.in_order(), state.layers, is_empty, back, openings)

    def next_layers(self, hooks: AssociationHooks, state: ARMTState) -> list[AssociationState]:
        """What the layers wrote."""
        return hooks.written
