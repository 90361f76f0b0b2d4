"""Configuration of Memory Mosaics v2."""

from typing import Any

from tessera.base.errors import TesseraError
from tessera.kernels import kernel_from_config
from tessera.models.strict_config import StrictConfig


class MemoryMosaicV2Config(StrictConfig):
    r"""A stack of short-term, long-term and persistent memories (Memory Mosaics v2, figure 2 right).

    The defaults are the published small size (Llama-3 vocabulary). There is no maximal context length.

    Args:
        vocab_size, hidden_size, num_layers, num_heads: as in Llama; `num_heads` divides `hidden_size`.
        intermediate_size: width of the persistent memory (a SwiGLU network).
        kernel: the kernel of the short-term and long-term memories: a name, or a mapping such as `{"name": "knn",
            "base": "gaussian", "k": 32}` (see `tessera.kernels`).
        short_term_span: h; at step T the short-term memory holds the pairs T - h + 1 .. T - 1.
        long_term_memory: whether the model has long-term memories at all. To switch those of a trained model off
            and on, use `model.disable_long_term_memory()`.
        long_term_delay: m at inference; at step T the long-term memory holds the pairs 1 .. T - m.
        training_long_term_delay: (lowest, highest) m in training, drawn uniformly for each sequence of a batch.
        logit_scale: the logits are `logit_scale * W Norm(x)`.
        rms_norm_eps: of the norms before memories and lm_head.
        initializer_range: standard deviation of linear and embedding weights; those that write into the residual
            stream divide it by sqrt(2 num_layers).
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "memory_mosaic_v2"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}

    vocab_size: int = 128256
    hidden_size: int = 2048
    num_layers: int = 24
    num_heads: int = 16
    intermediate_size: int = 6144
    kernel: Any = "gaussian"
    short_term_span: int = 256
    long_term_memory: bool = True
    long_term_delay: int = 64
    training_long_term_delay: list[int] | tuple[int, int] = (64, 256)
    logit_scale: float = 1.0
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    @property
    def head_dim(self) -> int:
        """Width of a head's keys and values."""
        return self.hidden_size // self.num_heads

    def pairs_per_query(self, context: int) -> list[int]:
        """Pairs that each memory of a layer compares with a query behind `context` tokens: a short term ends."""
        short = [min(context, self.short_term_span)]
        return [*short, context] if self.long_term_memory else short

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "long_term_delay")
        problems = self.positive(*sizes, "short_term_span")
        if not problems and self.hidden_size % self.num_heads:
            problems.append(f"num_heads must divide hidden_size ({self.hidden_size}); got {self.num_heads}.")
        if not problems and self.short_term_span < 2:
            problems.append(f"short_term_span must be at least 2; got {self.short_term_span}.")
        bounds = self.training_long_term_delay
        are_integers = isinstance(bounds, (list, tuple)) and all(type(bound) is int for bound in bounds)
        if not (are_integers and len(bounds) == 2 and 1 <= bounds[0] <= bounds[1]):
            problems.append(f"training_long_term_delay must be two integers 1 <= lowest <= highest; got {bounds!r}.")
        try:
            kernel_from_config(self.kernel)
        except TesseraError as error:
            problems.append(f"kernel: {error}")
        return problems
