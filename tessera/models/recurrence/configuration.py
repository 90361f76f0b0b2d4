"""Configuration shared by ARMT, RMT and PRMT: the base model's configuration and how its text is cut."""

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig

from tessera.base.errors import TesseraError
from tessera.models.recurrence.segmented_input import ALIGNMENTS
from tessera.models.strict_config import StrictConfig


class SegmentedConfig(StrictConfig):
    r"""A causal language model that reads its text in segments and hands a memory on between them.

    Args:
        base_config: the configuration of the base model, or a mapping of it with its `model_type`.
        segment_size: ordinary tokens per segment. num_memory_tokens: memory tokens at each end that has some.
        segment_alignment: "left" (the last segment is short), "right" (the first is), or "center" (equal lengths).
        segment_end_ids: tokens that end a sentence: a segment ends behind the first of them among its last
            `segment_end_window` tokens, else when it is full, so that no sentence that fits into the window behind
            another one is cut; None: when it is full. Needs alignment "left". A trained model can be given them.
        own_memory_positions: for bases with a learned table of positions: memory tokens have rows of their own, by
            which the table grows, in place of consecutive positions (the published `wrap_pos`).
        backprop_segments: gradients flow through the memory of this many last segments; None: of all. Segments before
            them of which nothing is asked are read without gradients.
        layers_path: attribute path of the base's list of decoder layers, such as "transformer.h"; None: found.
        use_cache: whether `generate` keeps the open segment's keys and values.
        tie_word_embeddings: a model sets it to what its base does.
        bos_token_id, eos_token_id, pad_token_id: None: those of the base.
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    keys_to_ignore_at_inference = ["past_key_values", "memory_state", "segment_states", "penalty"]
    sub_configs: ClassVar[dict[str, type]] = {"base_config": AutoConfig}
    adjustable: ClassVar[frozenset[str]] = frozenset({"backprop_segments", "segment_end_ids", "segment_end_window"})

    base_config: Any = None
    segment_size: int = 512
    num_memory_tokens: int = 10
    segment_alignment: str = "left"
    segment_end_ids: list[int] | None = None
    segment_end_window: int = 16
    own_memory_positions: bool = False
    backprop_segments: int | None = None
    layers_path: str | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs):
        if isinstance(self.base_config, dict):
            values = dict(self.base_config)
            if "model_type" not in values:
                where = type(self).__name__
                raise TesseraError(f"{where}: base_config must name its model_type; got {sorted(values)}.")
            self.base_config = AutoConfig.for_model(values.pop("model_type"), **values)
        # PreTrainedConfig sets both for itself and its sub-configurations, to None unless they are given here. A base
        # model without a chosen attention would attend to the future.
        for chosen in ("attn_implementation", "experts_implementation"):
            if kwargs.get(chosen) is None and isinstance(self.base_config, PreTrainedConfig):
                kwargs[chosen] = getattr(self.base_config, f"_{chosen}", None)
        if isinstance(self.base_config, PreTrainedConfig):
            for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
                if getattr(self, name) is None:
                    setattr(self, name, getattr(self.base_config, name, None))
        super().__post_init__(**kwargs)

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        problems = self.positive("segment_size", "num_memory_tokens")
        if self.base_config is not None and not isinstance(self.base_config, PreTrainedConfig):
            problems.append(f"base_config must be a configuration or a mapping; got {type(self.base_config).__name__}.")
        problems += self.one_of(segment_alignment=ALIGNMENTS)
        if self.segment_end_ids is not None:
            if not self.segment_end_ids or min(self.segment_end_ids) < 0:
                problems.append(f"segment_end_ids must be None or numbers of tokens; got {self.segment_end_ids}.")
            if self.segment_alignment != "left":
                got = self.segment_alignment
                problems.append(f'segment_alignment must be "left" beside segment_end_ids; got "{got}".')
            if not 1 <= self.segment_end_window <= self.segment_size:
                most = f"1 to segment_size ({self.segment_size})"
                problems.append(f"segment_end_window must be from {most}; got {self.segment_end_window}.")
        if self.backprop_segments is not None:
            problems += self.positive("backprop_segments")
        return problems

    @property
    def vocab_size(self) -> int:
        """The base model's."""
        return self.base_config.get_text_config().vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:  # `resize_token_embeddings` sets it
        self.base_config.get_text_config().vocab_size = value

    @property
    def hidden_size(self) -> int:
        """The base model's."""
        return self.base_config.get_text_config().hidden_size

    @property
    def num_hidden_layers(self) -> int:
        """The base model's."""
        return self.base_config.get_text_config().num_hidden_layers
