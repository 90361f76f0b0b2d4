"""Configuration of Memory Mosaics (v1)."""

from typing import Any

from tessera.base.errors import TesseraError
from tessera.kernels import kernel_from_config
from tessera.layers.value_extractors import VALUE_EXTRACTORS
from tessera.models.strict_config import StrictConfig

NORM_POSITIONS = ("pre", "post")
INITIALIZATIONS = ("normal", "fan_in")


class MemoryMosaicConfig(StrictConfig):
    r"""A stack of contextual and persistent memories (Memory Mosaics, figure 6 right).

    The defaults are the published GPT-2-small size. There is no maximal context length.

    Args:
        vocab_size, hidden_size, num_layers, num_heads: as in GPT-2; `num_heads` divides `hidden_size`.
        kernel: the contextual memories' kernel: a name, or a mapping such as `{"name": "knn", "base": "gaussian",
            "k": 32}` (see `tessera.kernels`).
        persistent_kernel: the same for the persistent memories.
        num_persistent_slots: stored pairs per head and bank of each persistent memory; 0 leaves these memories out.
        num_persistent_banks: independent banks, averaged.
        value_extractor: "mixed" (one mixing weight per head) or "convolution" (full, of width 2).
        bias: biases in linear layers and norms.
        norm_position: "pre" (x += f(Norm x)) or "post" (x = Norm x; x += f(x)).
        weight_dropout: on the weights of stored pairs. contextual_weight_dropout: that of the contextual memories
            alone; None is weight_dropout. head_dropout: on the heads' answers before the combining layer.
            residual_dropout: on what each memory adds to the residual stream.
        logit_scale: the logits are `logit_scale * W Norm(x)`.
        layer_norm_eps: of the layer norms. key_norm_eps: k / (|k| + eps), the same for values.
            persistent_key_norm_eps: that of the persistent memories' keys; None is key_norm_eps.
        contextual_delay: at step T a contextual memory sees the pairs i <= T - delay. 1 is the papers' memory; with 2
            it misses the newest pair, as three kernels of published training code do.
        mean_keys: the contextual memories' keys are weighted means rather than sums (see `LeakyKeyExtractor`); it
            matters only with a key_norm_eps.
        free_intercept: a learned intercept of the scores in place of the kernel's function of the bandwidth.
        initialization: "normal": linear and embedding weights from N(0, initializer_range^2), combining layers divided
            by sqrt(2 num_layers). "fan_in", as the published library: linear weights from N(0, 1 / fan_in), combining
            layers from N(0, 1 / (fan_in num_layers)), tied embeddings from N(0, 1 / hidden_size), others from N(0, 1).
        initializer_range: the standard deviation of "normal".
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "memory_mosaic"
    keys_to_ignore_at_inference = ["past_key_values"]
    attribute_map = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}

    vocab_size: int = 50257
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    kernel: Any = "gaussian"
    persistent_kernel: Any = "gaussian"
    num_persistent_slots: int = 2688
    num_persistent_banks: int = 1
    value_extractor: str = "mixed"
    bias: bool = False
    norm_position: str = "pre"
    weight_dropout: float = 0.0
    contextual_weight_dropout: float | None = None
    head_dropout: float = 0.0
    residual_dropout: float = 0.0
    logit_scale: float = 1.0
    layer_norm_eps: float = 1e-5
    key_norm_eps: float = 0.0
    persistent_key_norm_eps: float | None = None
    contextual_delay: int = 1
    mean_keys: bool = False
    free_intercept: bool = False
    initialization: str = "normal"
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    @property
    def head_dim(self) -> int:
        """Width of a head's keys and values."""
        return self.hidden_size // self.num_heads

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_persistent_banks", "contextual_delay")
        problems = self.positive(*sizes)
        if not problems and self.hidden_size % self.num_heads:
            problems.append(f"num_heads must divide hidden_size ({self.hidden_size}); got {self.num_heads}.")
        if not isinstance(self.num_persistent_slots, int) or self.num_persistent_slots < 0:
            problems.append(f"num_persistent_slots must be a non-negative integer; got {self.num_persistent_slots!r}.")
        optional = ("contextual_weight_dropout",) if self.contextual_weight_dropout is not None else ()
        problems += self.probabilities("weight_dropout", "head_dropout", "residual_dropout", *optional)
        for name in ("key_norm_eps", "persistent_key_norm_eps"):
            if getattr(self, name) is not None and not getattr(self, name) >= 0:
                problems.append(f"{name} must be at least 0; got {getattr(self, name)!r}.")
        if self.initialization not in INITIALIZATIONS:
            problems.append(f"initialization must be one of {', '.join(INITIALIZATIONS)}; got {self.initialization!r}.")
        if self.value_extractor not in VALUE_EXTRACTORS:
            problems.append(
                f"value_extractor must be one of {', '.join(VALUE_EXTRACTORS)}; got {self.value_extractor!r}."
            )
        if self.norm_position not in NORM_POSITIONS:
            problems.append(f"norm_position must be one of {', '.join(NORM_POSITIONS)}; got {self.norm_position!r}.")
        for name in ("kernel", "persistent_kernel"):
            try:
                kernel_from_config(getattr(self, name))
            except TesseraError as error:
                problems.append(f"{name}: {error}")
        return problems
