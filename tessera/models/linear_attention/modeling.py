"""The recurrent baselines as Hugging Face models."""

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer

from tessera.layers.swiglu import SwiGLU
from tessera.memories.linear_attention import LinearAttentionMemory, RecurrentState
from tessera.models.linear_attention.configuration import LinearAttentionConfig
from tessera.models.sizes import num_parameters
from tessera.models.stack import NormalInitialization, StackForCausalLM, StackModel


class LinearAttentionLayer(GradientCheckpointingLayer):
    """`x += memory(Norm x)`, then `x += feed_forward(Norm x)`."""

    def __init__(self, config: LinearAttentionConfig):
        super().__init__()
        width = config.hidden_size
        self.memory_norm = _norm(config)
        self.memory = LinearAttentionMemory(width, config.num_heads, config.variant)
        self.feed_forward_norm = _norm(config)
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


def _norm(config: LinearAttentionConfig) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class LinearAttentionPreTrainedModel(NormalInitialization):
    """Initialisation and plumbing of the recurrent baselines."""

    config_class = LinearAttentionConfig
    _no_split_modules = ["LinearAttentionLayer"]
    parts = {
        "embeddings": "embed_tokens",
        "lm_head": "lm_head",
        "norms": "norm.",
        "memory": ".memory.",
        "feed-forward": ".feed_forward.",
    }


class LinearAttentionModel(LinearAttentionPreTrainedModel, StackModel):
    """The stack without the output layer. See `LinearAttentionConfig`."""

    def make_layer(self, config: LinearAttentionConfig) -> nn.Module:
        """One block of a memory and a feed-forward network."""
        return LinearAttentionLayer(config)

    def make_norm(self, config: LinearAttentionConfig) -> nn.Module:
        """The norm before the output layer."""
        return _norm(config)


class LinearAttentionForCausalLM(LinearAttentionPreTrainedModel, StackForCausalLM, GenerationMixin):
    """A recurrent baseline as a language model.

    >>> config = LinearAttentionConfig(variant="retnet", vocab_size=20, hidden_size=32)
    >>> LinearAttentionForCausalLM(config)(torch.zeros(1, 5, dtype=torch.long)).logits.shape
    torch.Size([1, 5, 20])
    """

    stack_class = LinearAttentionModel
