"""ARMT as a Hugging Face model around any causal language model."""

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers import initialization as init

from tessera.memories.association import AssociationMemory, AssociationState
from tessera.models.armt.configuration import ARMTConfig
from tessera.models.armt.state import ARMTState
from tessera.models.recurrence.layer_pass import LayerPass
from tessera.models.recurrence.memory_tokens import MemoryTokens
from tessera.models.recurrence.model import SegmentedForCausalLM


class AssociationPass(LayerPass):
    """Every layer reads its association matrix before, and writes its memory tokens' outputs after (ARMT, figure 1).

    Attributes:
        written: each layer's new state, in a pass with memory tokens.
    """

    def __init__(self, memories: nn.ModuleList, states: tuple[AssociationState, ...], blank: bool, back: int):
        super().__init__(0, back)
        self.memories, self.states, self.blank = memories, states, blank
        self.written: list[AssociationState] = list(states)

    def before(self, index: int, hidden: Tensor) -> Tensor:
        """`x_j += A^T phi(q_j) / (z . phi(q_j) + eps)`; an empty memory would add exactly 0."""
        return hidden if self.blank else hidden + self.memories[index].read(hidden, self.states[index])

    def after(self, index: int, hidden: Tensor) -> None:
        """Write the outputs at the memory tokens."""
        if self.back:
            self.written[index] = self.memories[index].write(hidden[:, -self.back :], self.states[index])


class ARMTForCausalLM(SegmentedForCausalLM, GenerationMixin):
    """Associative Recurrent Memory Transformer: memory tokens at the end of each segment, written layer by layer.

    >>> from transformers import GPT2Config
    >>> from tessera.models.armt import ARMTConfig, ARMTForCausalLM
    >>> base = GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    >>> model = ARMTForCausalLM(ARMTConfig(base_config=base, segment_size=8, num_memory_tokens=2, memory_dim=4))
    """

    config_class = ARMTConfig
    state_class = ARMTState

    def _add_memory(self, config: ARMTConfig) -> None:
        weight = self.get_input_embeddings().weight
        self.memory_tokens = MemoryTokens(config.num_memory_tokens, weight)
        sizes = (config.hidden_size, config.memory_dim, config.num_rolls)
        rule = (config.correction, config.update_order, config.epsilon)
        self.memories = nn.ModuleList(
            AssociationMemory(*sizes, *rule).to(device=weight.device, dtype=weight.dtype)
            for _ in range(config.num_hidden_layers)
        )

    def _init_weights(self, module: nn.Module) -> None:
        # transformers asks about modules with parameters of their own, one by one.
        super()._init_weights(module)
        if isinstance(module, nn.Linear):
            module.reset_parameters()
        if any(module is memory.value for memory in self.memories):
            init.zeros_(module.weight)

    def empty_memory(self, batch: int) -> ARMTState:
        """The memory before anything was read: A = 0, z = 0."""
        counts = torch.zeros(batch, dtype=torch.long, device=self.memory_tokens.tokens.device)
        return ARMTState(tuple(memory.empty_state(batch) for memory in self.memories), counts, counts)

    def _memory_embeddings(self, state: ARMTState) -> Tensor:
        return self.memory_tokens(state.batch_size)

    def _layer_pass(self, state: ARMTState, blank: bool, front: int, back: int) -> AssociationPass:
        return AssociationPass(self.memories, state.layers, blank, back)

    def _handed_on(self, layer_pass: AssociationPass, state: ARMTState) -> list[AssociationState]:
        return layer_pass.written
