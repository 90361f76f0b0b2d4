"""Memory Mosaics (v1): contextual and persistent memories in every block."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers import GenerationMixin
from transformers import initialization as init

from tessera.kernels import kernel_from_config
from tessera.layers.bandwidth import Bandwidth, LearnedAlpha
from tessera.layers.key_extractors import LeakyKeyExtractor
from tessera.layers.linear import ScaledOutput
from tessera.layers.value_extractors import VALUE_EXTRACTORS, MixedValueExtractor
from tessera.memories.contextual import ContextualMemory
from tessera.memories.pair_memory import PairMemoryState
from tessera.memories.persistent import PersistentMemory, PersistentState
from tessera.models.stack import StackForCausalLM, StackLayer, StackModel, StackPreTrainedModel
from tessera.models.strict_config import StrictConfig

NORM_POSITIONS = ("pre", "post")
INITIALIZATIONS = ("normal", "fan_in")
SCALES = "be positive, and 1 with a free_intercept"


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
        inverse_bandwidth_scale: what beta of every contextual memory is multiplied with. More than 1 makes their
            kernels narrower than training did, for texts far longer than it read: there very many pairs are a little
            like a query. It may be changed later (`tessera.models.adjusting.adjust_model`).
        free_intercept: a learned intercept of the scores in place of the kernel's function of the bandwidth.
        initialization: "normal": linear and embedding weights from N(0, initializer_range^2), combining layers divided
            by sqrt(2 num_layers). "fan_in", as the published library: linear weights from N(0, 1 / fan_in), combining
            layers from N(0, 1 / (fan_in num_layers)), tied embeddings from N(0, 1 / hidden_size), others from N(0, 1).
        initializer_range: the standard deviation of "normal".
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "memory_mosaic"
    attribute_map = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
    adjustable: ClassVar[frozenset[str]] = frozenset({"inverse_bandwidth_scale"})

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
    inverse_bandwidth_scale: float = 1.0
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
        problems = self.positive(*sizes) or self.divided_by_heads()
        slots, scale = self.num_persistent_slots, self.inverse_bandwidth_scale
        optional = [] if self.contextual_weight_dropout is None else ["contextual_weight_dropout"]
        problems += self.probabilities("weight_dropout", "head_dropout", "residual_dropout", *optional)
        epsilons = {name: getattr(self, name) for name in ("key_norm_eps", "persistent_key_norm_eps")}
        return [
            *problems,
            *self.broken(
                (isinstance(slots, int) and slots >= 0, "num_persistent_slots", "be a non-negative integer"),
                (scale == 1 or (scale > 0 and not self.free_intercept), "inverse_bandwidth_scale", SCALES),
                *((eps is None or eps >= 0, name, "be at least 0") for name, eps in epsilons.items()),
            ),
            *self.one_of(
                initialization=INITIALIZATIONS, value_extractor=VALUE_EXTRACTORS, norm_position=NORM_POSITIONS
            ),
            *self.kernels("kernel", "persistent_kernel"),
        ]


class MemoryMosaicLayer(StackLayer):
    """`x += contextual(Norm x)`, then `x += persistent(Norm x)`; with norm_position "post": `x = Norm x; x += f(x)`."""

    def __init__(self, config: MemoryMosaicConfig):
        super().__init__()
        self.post_norm = config.norm_position == "post"
        self.residual_dropout = config.residual_dropout
        dropout_of_pairs, key_eps = config.contextual_weight_dropout, config.persistent_key_norm_eps
        self.contextual_norm = _norm(config)
        self.contextual = ContextualMemory(
            config.hidden_size,
            config.num_heads,
            kernel_from_config(config.kernel),
            config.value_extractor,
            norm_eps=config.key_norm_eps,
            weight_dropout=config.weight_dropout if dropout_of_pairs is None else dropout_of_pairs,
            free_intercept=config.free_intercept,
            delay=config.contextual_delay,
            mean_keys=config.mean_keys,
            bias=config.bias,
            head_dropout=config.head_dropout,
        )
        self.persistent = None
        if config.num_persistent_slots:
            self.persistent_norm = _norm(config)
            self.persistent = PersistentMemory(
                config.hidden_size,
                config.num_heads,
                config.num_persistent_slots,
                config.num_persistent_banks,
                kernel_from_config(config.persistent_kernel),
                norm_eps=config.key_norm_eps if key_eps is None else key_eps,
                weight_dropout=config.weight_dropout,
                bias=config.bias,
                head_dropout=config.head_dropout,
            )
        self.follow(config)

    def follow(self, config: MemoryMosaicConfig) -> None:
        """Take over what may change in a built model."""
        bandwidth: Any = self.contextual.bandwidth
        bandwidth.scale = config.inverse_bandwidth_scale

    def forward(
        self,
        hidden: Tensor,
        state: "tuple[PairMemoryState, PersistentState | None] | None" = None,
        documents: Tensor | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, tuple[PairMemoryState, PersistentState | None] | None]:
        """One layer over `hidden` (B, T, hidden); see `PairMemory.forward` for the other arguments."""
        contextual, persistent = (None, None) if state is None else state
        hidden, contextual = self._add(hidden, self.contextual_norm, self.contextual, contextual, documents, keep_state)
        if self.persistent is not None:
            hidden, persistent = self._add(
                hidden, self.persistent_norm, self.persistent, persistent, documents, keep_state
            )
        return hidden, (contextual, persistent) if keep_state else None

    def begun_with(
        self, keys: Tensor, values: Tensor, document: Tensor
    ) -> tuple[PairMemoryState, PersistentState | None]:
        """The state in front of a `document` (B, 1), when the contextual memory holds these pairs already."""
        contextual = self.contextual.begun_with(keys, values, document)
        nothing = PersistentState(torch.zeros_like(keys[:, :, 0]), contextual.document)
        return contextual, None if self.persistent is None else nothing

    def _add(self, hidden, norm, memory, state, documents, keep_state):
        read = norm(hidden)
        recalled, state = memory(read, state, documents, keep_state)
        if self.residual_dropout:
            recalled = dropout(recalled, self.residual_dropout, self.training)
        return (read if self.post_norm else hidden) + recalled, state


def _norm(config: MemoryMosaicConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.bias)


class MemoryMosaicPreTrainedModel(StackPreTrainedModel):
    """Initialisation and plumbing of Memory Mosaics."""

    config_class = MemoryMosaicConfig
    _no_split_modules = ["MemoryMosaicLayer"]
    parts = StackPreTrainedModel.parts | {"contextual": ".contextual.", "persistent": ".persistent."}

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, 0.0, self._std(module))
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            super()._init_weights(module)
        elif isinstance(module, ScaledOutput):
            branches = self.config.num_layers if self._by_fan_in() else 2 * self.config.num_layers
            init.normal_(module.projection.weight, 0.0, self._std(module.projection) / math.sqrt(branches))
        learned = (Bandwidth, LearnedAlpha, LeakyKeyExtractor, MixedValueExtractor, PersistentMemory, ScaledOutput)
        if isinstance(module, learned):
            module.reset_parameters()

    def _by_fan_in(self) -> bool:
        return self.config.initialization == "fan_in"

    def _std(self, module: nn.Linear | nn.Embedding) -> float:
        if not self._by_fan_in():
            return self.config.initializer_range
        if isinstance(module, nn.Embedding) and not self.config.tie_word_embeddings:
            return 1.0
        return 1 / math.sqrt(getattr(module, "fan_in", module.weight.shape[1]))


class MemoryMosaicModel(MemoryMosaicPreTrainedModel, StackModel):
    """The stack of memories without an lm_head. See `MemoryMosaicConfig`."""

    layer_class = MemoryMosaicLayer
    make_norm = staticmethod(_norm)


class MemoryMosaicForCausalLM(MemoryMosaicPreTrainedModel, StackForCausalLM, GenerationMixin):
    """A Memory Mosaic language model.

    >>> from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM
    >>> config = MemoryMosaicConfig(vocab_size=256, hidden_size=64, num_layers=2, num_heads=4, num_persistent_slots=32)
    >>> model = MemoryMosaicForCausalLM(config)
    """

    stack_class = MemoryMosaicModel
