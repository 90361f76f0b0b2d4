"""Memory Mosaics v2: short-term, long-term and persistent memories in every block."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from tessera.base.errors import expect
from tessera.kernels import kernel_from_config
from tessera.layers.bandwidth import AdaptiveBandwidth, LearnedAlpha
from tessera.layers.linear import SwiGLU
from tessera.layers.value_extractors import MixedValueExtractor
from tessera.memories.pair_memory import PairMemoryState
from tessera.memories.short_and_long_term import LongTermMemory, ShortTermMemory
from tessera.models.adjusting import adjust_model
from tessera.models.stack import NormalInitialization, StackForCausalLM, StackLayer, StackModel, rms_norm
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
        long_term_memory: whether the model has long-term memories at all.
        use_long_term_memory: whether it recalls from them. `model.disable_long_term_memory()` switches them off in a
            trained model.
        long_term_delay: m at inference; at step T the long-term memory holds the pairs 1 .. T - m.
        inverse_bandwidth_scale: what beta of every long-term memory is multiplied with; see `MemoryMosaicConfig`.
        training_long_term_delay: (lowest, highest) m in training, drawn uniformly for each sequence of a batch.
        logit_scale: the logits are `logit_scale * W Norm(x)`.
        rms_norm_eps: of the norms before memories and lm_head.
        initializer_range: standard deviation of linear and embedding weights; those that write into the residual
            stream divide it by sqrt(2 num_layers).
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "memory_mosaic_v2"
    attribute_map = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
    adjustable: ClassVar[frozenset[str]] = frozenset({"inverse_bandwidth_scale", "use_long_term_memory"})

    vocab_size: int = 128256
    hidden_size: int = 2048
    num_layers: int = 24
    num_heads: int = 16
    intermediate_size: int = 6144
    kernel: Any = "gaussian"
    short_term_span: int = 256
    long_term_memory: bool = True
    use_long_term_memory: bool = True
    long_term_delay: int = 64
    inverse_bandwidth_scale: float = 1.0
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

    @property
    def recalls_long_term(self) -> bool:
        """Whether there are long-term memories, and they are in use."""
        return self.long_term_memory and self.use_long_term_memory

    def pairs_per_query(self, context: int) -> list[int]:
        """Pairs that each memory of a layer compares with a query behind `context` tokens: a short term ends."""
        short = [min(context, self.short_term_span)]
        return [*short, context] if self.recalls_long_term else short

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "long_term_delay")
        problems = self.positive(*sizes, "short_term_span") or [
            *self.divided_by_heads(),
            *self.broken((self.short_term_span >= 2, "short_term_span", "be at least 2")),
            *self.broken((self.inverse_bandwidth_scale > 0, "inverse_bandwidth_scale", "be positive")),
        ]
        bounds = self.training_long_term_delay
        are_integers = isinstance(bounds, (list, tuple)) and all(type(bound) is int for bound in bounds)
        if not (are_integers and len(bounds) == 2 and 1 <= bounds[0] <= bounds[1]):
            problems.append(f"training_long_term_delay must be two integers 1 <= lowest <= highest; got {bounds!r}.")
        return problems + self.kernels("kernel")


LayerState = tuple[PairMemoryState, PairMemoryState | None]


class MemoryMosaicV2Layer(StackLayer):
    """`x += short(Norm x) + long(Norm x)`, then `x += persistent(Norm x)`."""

    def __init__(self, config: MemoryMosaicV2Config):
        super().__init__()
        sizes = (config.hidden_size, config.num_heads, kernel_from_config(config.kernel))
        self.memory_norm = rms_norm(config)
        self.short_term = ShortTermMemory(*sizes, span=config.short_term_span)
        self.long_term = LongTermMemory(*sizes) if config.long_term_memory else None
        self.persistent_norm = rms_norm(config)
        self.persistent = SwiGLU(config.hidden_size, config.intermediate_size)
        self.follow(config)

    def follow(self, config: MemoryMosaicV2Config) -> None:
        """Take over what may change in a built model."""
        self.recalls_long_term = config.recalls_long_term
        if self.long_term is not None:
            bandwidth: Any = self.long_term.bandwidth
            bandwidth.scale = config.inverse_bandwidth_scale

    def forward(
        self,
        hidden: Tensor,
        state: LayerState | None = None,
        documents: Tensor | None = None,
        keep_state: bool = False,
        long_term_delay: int | Tensor = 1,
    ) -> tuple[Tensor, LayerState | None]:
        """One layer over `hidden` (B, T, hidden); see `PairMemory.forward` for the other arguments."""
        short, long = (None, None) if state is None else state
        read = self.memory_norm(hidden)
        recalled, short = self.short_term(read, short, documents, keep_state)
        if self.long_term is not None and self.recalls_long_term:
            started = state is None or long is not None
            needed = "hold the long-term memories that are enabled now"
            expect(started, type(self).__name__, "past_key_values", needed, "none", "Read the text again.")
            remote, long = self.long_term(read, long, documents, keep_state, long_term_delay)
            recalled = recalled + remote
        else:
            long = None
        hidden = hidden + recalled
        hidden = hidden + self.persistent(self.persistent_norm(hidden))
        return hidden, (short, long) if keep_state else None

    def goes_on_from(self, state: LayerState) -> LayerState:
        """Nothing of long-term memories that are not in use."""
        return state if self.recalls_long_term else (state[0], None)

    def begun_with(self, keys: Tensor, values: Tensor, document: Tensor) -> LayerState:
        """The state in front of a `document` (B, 1), when both memories hold these pairs already."""
        long = None
        if self.long_term is not None and self.recalls_long_term:
            long = self.long_term.begun_with(keys, values, document)
        return self.short_term.begun_with(keys, values, document), long

    def branch_ends(self) -> list[nn.Module]:
        """The layers whose output is added to the residual stream."""
        memories = (self.short_term, self.long_term)
        return [*(memory.output for memory in memories if memory is not None), self.persistent.down]


class MemoryMosaicV2PreTrainedModel(NormalInitialization):
    """Initialisation and plumbing of Memory Mosaics v2, and what may be changed after training."""

    config_class = MemoryMosaicV2Config
    _no_split_modules = ["MemoryMosaicV2Layer"]
    parts = NormalInitialization.parts | {
        "short-term": ".short_term.",
        "long-term": ".long_term.",
        "persistent": ".persistent.",
    }

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, (AdaptiveBandwidth, LearnedAlpha, MixedValueExtractor)):
            module.reset_parameters()

    def state_bytes_per_token(self, dtype: torch.dtype) -> float:
        """One key and one value per layer, in the long-term memories; the other memories do not grow."""
        long_term = self.config.num_layers * self.config.recalls_long_term
        return 2 * long_term * self.config.hidden_size * dtype.itemsize

    def set_long_term_delay(self, delay: int) -> None:
        """From now on the long-term memories recall pairs of age `delay` (at inference). Part of the configuration."""
        valid = isinstance(delay, int) and delay >= 1
        expect(valid, f"{type(self).__name__}.set_long_term_delay", "delay", "be a positive integer", delay)
        self.config.long_term_delay = delay

    def disable_long_term_memory(self) -> None:
        """Leave the long-term memories out from now on, without retraining (Memory Mosaics v2, tables 2, 6 and 7).

        Part of the configuration (`use_long_term_memory`), as a delay is; the weights stay and are saved. Nothing
        happens to a model without any.
        """
        adjust_model(self, {"use_long_term_memory": False})

    def enable_long_term_memory(self) -> None:
        """Undo `disable_long_term_memory`."""
        where = f"{type(self).__name__}.enable_long_term_memory"
        present = self.config.long_term_memory
        expect(present, where, "the model", "have long-term memories", "long_term_memory=False in its configuration")
        adjust_model(self, {"use_long_term_memory": True})


class MemoryMosaicV2Model(MemoryMosaicV2PreTrainedModel, StackModel):
    """The stack of memories without an lm_head. See `MemoryMosaicV2Config`."""

    layer_class = MemoryMosaicV2Layer

    def layer_arguments(self, hidden: Tensor) -> dict[str, object]:
        """The long-term delay: fixed at inference, in training one per sequence from PyTorch's (seeded) generator."""
        if not self.training:
            return {"long_term_delay": self.config.long_term_delay}
        lowest, highest = self.config.training_long_term_delay
        if lowest == highest:
            return {"long_term_delay": lowest}
        return {"long_term_delay": torch.randint(lowest, highest + 1, hidden.shape[:1], device=hidden.device)}


class MemoryMosaicV2ForCausalLM(MemoryMosaicV2PreTrainedModel, StackForCausalLM, GenerationMixin):
    """A Memory Mosaics v2 language model.

    >>> from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
    >>> config = MemoryMosaicV2Config(
    ...     vocab_size=256, hidden_size=64, num_layers=2, num_heads=4, intermediate_size=128, long_term_delay=8
    ... )
    >>> model = MemoryMosaicV2ForCausalLM(config)
    >>> model.disable_long_term_memory()
    """

    stack_class = MemoryMosaicV2Model
