"""Recurrent baselines: linear transformer, RetNet, gated linear attention."""

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from tessera.layers.linear import SwiGLU
from tessera.memories.linear_attention import VARIANTS, LinearAttentionMemory, RecurrentState
from tessera.models.sizes import num_parameters
from tessera.models.stack import NormalInitialization, StackForCausalLM, StackLayer, StackModel, rms_norm
from tessera.models.strict_config import StrictConfig


class LinearAttentionConfig(StrictConfig):
    r"""A linear transformer, RetNet or gated linear attention (GLA), with a transformer's number of parameters.

    Args:
        variant: "linear_transformer", "retnet" or "gla" (see `LinearAttentionMemory`).
        vocab_size, hidden_size, num_layers, num_heads: sizes. A layer has 12 hidden_size^2 parameters in all variants.
        rms_norm_eps: of the norms. initializer_range: standard deviation of the weights.
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "linear_attention"
    attribute_map = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}

    variant: str = "gla"
    vocab_size: int = 256
    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 4
    logit_scale: float = 1.0
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def pairs_per_query(self, context: int) -> list[int]:
        """As many pairs as cost what a head's matrix of products costs to write and to read, whatever the context."""
        share = {"linear_transformer": 1.0, "retnet": 2.0, "gla": 0.5}[self.variant]  # of widths of keys times values
        return [int(share * self.hidden_size / self.num_heads)]

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        problems = self.positive("vocab_size", "hidden_size", "num_layers", "num_heads")
        if not problems:
            unit = 4 * self.num_heads
            is_multiple = self.hidden_size % unit == 0
            problems = self.broken((is_multiple, "hidden_size", f"be a multiple of 4 num_heads ({unit})"))
        return problems + self.one_of(variant=VARIANTS)


class LinearAttentionLayer(StackLayer):
    """`x += memory(Norm x)`, then `x += feed_forward(Norm x)`."""

    def __init__(self, config: LinearAttentionConfig):
        super().__init__()
        width = config.hidden_size
        self.memory_norm = rms_norm(config)
        self.memory = LinearAttentionMemory(width, config.num_heads, config.variant)
        self.feed_forward_norm = rms_norm(config)
        # What the memory leaves of 12 width^2; three matrices share it.
        memory = num_parameters(self.memory)
        self.feed_forward = SwiGLU(width, max(1, round((12 * width**2 - memory) / (3 * width))))

    def forward(
        self,
        hidden: Tensor,
        state: RecurrentState | None = None,
        documents: Tensor | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, RecurrentState | None]:
        """One layer over `hidden` (B, T, hidden)."""
        recalled, state = self.memory(self.memory_norm(hidden), state, documents, keep_state)
        hidden = hidden + recalled
        return hidden + self.feed_forward(self.feed_forward_norm(hidden)), state

    def branch_ends(self) -> list[nn.Linear]:
        """The layers whose output is added to the residual stream."""
        return [self.memory.output, self.feed_forward.down]


class LinearAttentionPreTrainedModel(NormalInitialization):
    """Initialisation and plumbing of the recurrent baselines."""

    config_class = LinearAttentionConfig
    _no_split_modules = ["LinearAttentionLayer"]
    parts = NormalInitialization.parts | {"memory": ".memory.", "feed-forward": ".feed_forward."}

    def state_bytes_per_token(self, dtype: torch.dtype) -> float:
        """0: the matrices of products do not grow with the text."""
        return 0.0


class LinearAttentionModel(LinearAttentionPreTrainedModel, StackModel):
    """The stack without the output layer. See `LinearAttentionConfig`."""

    layer_class = LinearAttentionLayer


class LinearAttentionForCausalLM(LinearAttentionPreTrainedModel, StackForCausalLM, GenerationMixin):
    """A recurrent baseline as a language model.

    >>> config = LinearAttentionConfig(variant="retnet", vocab_size=20, hidden_size=32)
    >>> LinearAttentionForCausalLM(config)(torch.zeros(1, 5, dtype=torch.long)).logits.shape
    torch.Size([1, 5, 20])
    """

    stack_class = LinearAttentionModel
