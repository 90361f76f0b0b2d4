"""Persistent memory: learned key-value pairs, the same for all sequences."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect, head_width
from tessera.base.shapes import Documents, Float, Hidden, Int
from tessera.base.state import State
from tessera.kernels import Entmax, Kernel, kernel_from_config
from tessera.layers.bandwidth import Bandwidth, LearnedAlpha
from tessera.layers.key_extractors import LeakyKeyExtractor
from tessera.layers.linear import ScaledOutput
from tessera.memories.documents import continued_carry, continued_documents
from tessera.memories.padded_rows import takes_padding_anywhere
from tessera.ops.kernel_regression import kernel_regression


@dataclass(frozen=True)
class PersistentState(State):
    """Only the key extractor's leaky average kbar_T (B, H, K), and the document of step T (B, 1) or None."""

    carry: Float[Tensor, "B H K"]
    document: Int[Tensor, "B 1"] | None


class PersistentMemory(nn.Module):
    """`y_T = sum_m w_m v_m` over M learned slots per head, then `W_z` over the heads (Memory Mosaics, appendix D.1).

    Queried with a key made by its own key extractor. Stored keys are not normalised. Several independent banks are
    averaged.
    """

    padding_is_in_front = False

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_slots: int,
        num_banks: int,
        kernel: Kernel | str | dict,
        bias: bool = False,
        norm_eps: float = 0.0,
        weight_dropout: float = 0.0,
        head_dropout: float = 0.0,
    ):
        super().__init__()
        head_dim, kernel = head_width("PersistentMemory", hidden_size, num_heads), kernel_from_config(kernel)
        self.kernel = kernel
        self.weight_dropout = weight_dropout
        self.key_extractor = LeakyKeyExtractor(hidden_size, num_heads, head_dim, bias, norm_eps)
        self.slot_keys = nn.Parameter(torch.empty(num_banks, num_heads, num_slots, head_dim))
        self.slot_values = nn.Parameter(torch.empty(num_banks, num_heads, num_slots, head_dim))
        self.bandwidth = Bandwidth(num_heads, kernel)
        self.learned_alpha = LearnedAlpha(num_heads, kernel) if isinstance(kernel, Entmax) else None
        self.output = ScaledOutput(hidden_size, num_heads, bias, head_dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Slots from N(0, 1 / head_dim), as published."""
        std = 1 / math.sqrt(self.slot_keys.shape[-1])
        with torch.no_grad():
            self.slot_keys.normal_(0.0, std)
            self.slot_values.normal_(0.0, std)

    @explains_mistakes
    @takes_padding_anywhere
    def forward(
        self, x: Hidden, state: PersistentState | None = None, documents: Documents = None, keep_state: bool = False
    ) -> tuple[Hidden, PersistentState | None]:
        """What the slots answer at each step of `x` (B, T, hidden): (B, T, hidden); arguments as `ContextualMemory`."""
        if x.dim() != 3 or x.shape[1] == 0:
            expect(False, type(self).__name__, "x", "be (B, T, hidden), T >= 1", tuple(x.shape))
        documents = continued_documents(x, state, documents)
        keys, carry = self.key_extractor(x, continued_carry(state, documents), documents)
        slope, intercept = self.bandwidth(self.kernel)
        banks = zip(self.slot_keys.to(keys.dtype), self.slot_values.to(keys.dtype))
        answers = [
            kernel_regression(
                keys,
                slot_keys[None],
                slot_values[None],
                kernel=self.kernel if self.learned_alpha is None else self.learned_alpha(),
                slope=slope,
                intercept=intercept,
                dropout=self.weight_dropout if self.training else 0.0,
            )
            for slot_keys, slot_values in banks
        ]
        answer = answers[0] if len(answers) == 1 else torch.stack(answers).mean(dim=0)
        output = self.output(answer)
        if not keep_state:
            return output, None
        return output, PersistentState(carry, None if documents is None else documents[:, -1:])
