"""Configuration of the recurrent baselines."""

from tessera.memories.linear_attention import VARIANTS
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
    keys_to_ignore_at_inference = ["past_key_values"]
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

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        problems = self.positive("vocab_size", "hidden_size", "num_layers", "num_heads")
        if not problems and self.hidden_size % (4 * self.num_heads):
            problems.append(
                f"hidden_size must be a multiple of 4 num_heads ({4 * self.num_heads}); got {self.hidden_size}."
            )
        if self.variant not in VARIANTS:
            problems.append(f"variant must be one of {', '.join(VARIANTS)}; got {self.variant!r}.")
        return problems
