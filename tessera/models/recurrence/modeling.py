"""The common part of ARMT, RMT and PRMT as a Hugging Face model."""

import copy
import inspect
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tessera.base.errors import expect
from tessera.models.forward_arguments import REASONS, check_labels, checks_types, demand, kept_steps, refuse_keywords
from tessera.models.recurrence.backbone import SegmentedBackbone
from tessera.models.recurrence.base import expect_positions, feed_forward, fuse_activations, layer_list, widen_positions
from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.layer_hooks import keep_last_hidden, leave_out_unneeded, wrap_layers
from tessera.models.recurrence.lm_head import ShiftedLoss
from tessera.models.recurrence.reading import ReadOptions, SegmentedOutput, read
from tessera.models.recurrence.segment_runner import MemoryTokens, SegmentMemory, SegmentRunner
from tessera.models.recurrence.segmented_input import SegmentedInput
from tessera.models.recurrence.state import GroupedCache, MemoryState, SegmentCache
from tessera.models.saving.code_beside_weights import SavesWithCode
from tessera.models.sizes import flops_per_token, num_parameters

REFUSED = {
    **REASONS,
    "output_attentions": "attention is over the positions of one segment; tessera.inspection.trace shows it",
    "position_ids": "positions are counted within each segment; documents (TRL's packing=True) need a row each",
    "cache_position": "the cache knows its place",
    "document_ids": "the memory is carried through the whole row; give every document a row",
    "labels_mask": "it is called loss_mask",
}


class SegmentedPreTrainedModel(SavesWithCode, PreTrainedModel):
    """Hugging Face plumbing: embeddings are the base model's, the state is neither cropped nor a `Cache`."""

    config_class = SegmentedConfig
    base_model_prefix = "base"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _is_stateful = True  # the memory cannot be cropped, as assisted generation would ask
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def get_input_embeddings(self) -> nn.Embedding:
        """The base model's."""
        return self.base.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Set the base model's."""
        self.base.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """The base model's."""
        return self.base.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Set the base model's."""
        self.base.set_output_embeddings(new_embeddings)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _prepare_cache_for_generation(self, generation_config, model_kwargs, *arguments):
        if model_kwargs.get("past_key_values") is None:  # transformers would mark one, but a state is a value
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *arguments)

    def _reorder_cache(self, past_key_values: SegmentCache | GroupedCache, beam_idx: Tensor):
        return past_key_values.reorder(beam_idx)


class SegmentedForCausalLM(SegmentedPreTrainedModel, ABC):
    """A base model read segment by segment.

    Subclasses make the memory's parameters and say what it does with them (`_add_memory`, `_memory`), and inherit from
    `GenerationMixin` themselves: transformers looks for it in every class on its own.
    """

    memory_class: type[SegmentMemory]

    def __init__(self, config: SegmentedConfig, base: PreTrainedModel | None = None):
        super().__init__(config)
        expect(config.base_config is not None, type(self).__name__, "base_config", "be given", None)
        if base is None:
            base = AutoModelForCausalLM.from_config(config.base_config, trust_remote_code=False)
        else:
            for module in base.modules():  # post_init must not draw a trained base anew
                module._is_hf_initialized = True
        self.base = base
        front = config.num_memory_tokens if self.memory_class.at_front else 0
        if config.own_memory_positions:
            widen_positions(base, front, config.num_memory_tokens)
        expect_positions(base, front + config.segment_size + config.num_memory_tokens)
        layers = layer_list(base, config.layers_path)
        wrap_layers(layers)
        last = feed_forward(base, layers[-1])
        if last is not None:
            leave_out_unneeded(last)
        fuse_activations(base)
        base.base_model.register_forward_hook(keep_last_hidden)
        self._takes_positions = "position_ids" in inspect.signature(base.forward).parameters
        self._add_memory(config)
        self.post_init()
        self.generation_config = copy.deepcopy(base.generation_config)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, MemoryTokens):
            module.reset_parameters(self.get_input_embeddings().weight)

    @abstractmethod
    def _add_memory(self, config: SegmentedConfig) -> None:
        """Make the parameters that the memory needs."""

    @abstractmethod
    def _memory(self) -> SegmentMemory:
        """The memory with its present parameters."""

    @property
    def base_model(self) -> SegmentedBackbone:
        """What tools of transformers call for hidden states; `base` is the base model itself."""
        return SegmentedBackbone(self)

    def segment_runner(self) -> SegmentRunner:
        """What reads segments with the present modules."""
        return SegmentRunner(self.base, self._memory(), self.config, self._takes_positions)

    def empty_memory(self, batch: int) -> MemoryState:
        """The memory of `batch` rows before anything was read."""
        return self._memory().empty(batch)

    @checks_types
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        memory_state: MemoryState | None = None,
        past_key_values: SegmentCache | GroupedCache | None = None,
        use_cache: bool = False,
        extend_segment: bool = False,
        logits_to_keep: int = 0,
        skip_logits: bool | None = None,
        output_segment_states: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **keywords: object,
    ) -> SegmentedOutput:
        """Read `input_ids` (B, T), any number of segments, after what `memory_state` (default: nothing) remembers.

        Args:
            attention_mask: (B, T); zeros at a row's ends are padding: its text is shorter (the result is that of the
                row alone); zeros inside hide a position. With a cache (B, T before + T), ones for new tokens.
            labels: (B, T), shifted inside once across the whole text, -100 left out. loss_mask: booleans (B, T),
                whether position t, which predicts label t + 1, counts.
            memory_state: of B rows, or fewer: each then serves as many consecutive rows of `input_ids`. Many questions
                to one text need no copies of its memory (ARMT, while their segment stays open).
            past_key_values: what an earlier call with `use_cache` returned: the text goes on inside its segment.
                Without `use_cache` the last segment is closed, however short, and its memory written.
            extend_segment: never close the open segment while tokens are added to a cache (the published `generate`).
            logits_to_keep: compute only the last so many; 0: all. skip_logits: leave them out of the result (default:
                while training with labels, a block of them at a time).
            output_segment_states: also return the memory after every segment. output_hidden_states: also return the
                base's hidden states of the ordinary tokens, (B, T, hidden) for its embeddings and each of its layers.
            num_items_in_batch: divide the summed loss by this in place of the number of counted positions.
        Raises:
            TesseraError: inputs that do not fit each other or the model, and other keywords of transformers, by name.
        """
        where, cache = type(self).__name__, past_key_values
        refuse_keywords(where, keywords, REFUSED, self.forward)
        _check_arguments(where, cache, logits_to_keep)
        text = self._text(input_ids, inputs_embeds, attention_mask, labels, loss_mask, cache)
        skip = (self.training and labels is not None) if skip_logits is None else skip_logits
        hidden_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        options = ReadOptions(
            use_cache, extend_segment, logits_to_keep, skip, output_segment_states, bool(hidden_states)
        )
        state = None if cache is not None or memory_state is None else self._fitting(memory_state, text.shape[0])
        loss = None if text.labels is None else ShiftedLoss(text.labels, text.loss_mask)
        runner = self.segment_runner()
        output = read(runner, text, state, cache, options, loss)
        output.loss, output.penalty = None if loss is None else loss.value(num_items_in_batch), runner.memory.penalty()
        if self.training and output.loss is not None and output.penalty is not None:
            output.loss = output.loss + output.penalty
        return output if return_dict is not False else output.to_tuple()

    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of the base model and of the memory."""
        base = num_parameters(self.base)
        return {"base": base, "memory": num_parameters(self) - base}

    def flops_per_token(self, context: int) -> int:
        """Of the last token of a segment: the base, its share of the memory tokens' cost, and the memory's own part."""
        size, front = self.config.segment_size, self._memory().at_front * self.config.num_memory_tokens
        positions = size + front + self.config.num_memory_tokens
        base = flops_per_token(self.config.base_config, min(context, size) + front)
        return base * positions // size + self._memory_flops_per_token()

    def _memory_flops_per_token(self) -> int:
        return 0

    def state_bytes_per_token(self, dtype: torch.dtype) -> float:
        """0: the memory does not grow with the text."""
        return 0.0

    def _text(self, input_ids, inputs_embeds, attention_mask, labels, loss_mask, cache) -> SegmentedInput:
        """The arguments of `forward` that are text, checked; after a cache a mask must not hide anything new."""
        where = type(self).__name__
        mask = attention_mask if cache is None else None
        text = SegmentedInput.of(self.get_input_embeddings(), input_ids, inputs_embeds, mask, labels, loss_mask)
        if labels is not None:
            check_labels(where, labels, text.shape, self.config.vocab_size)
        if cache is not None and attention_mask is not None:
            _check_continued_mask(where, attention_mask, cache.total, text.shape)
        return text

    def _fitting(self, state: MemoryState, batch: int) -> MemoryState:
        """`state`, checked to serve `batch` rows."""
        is_state = isinstance(state, self.state_class)
        expect(is_state, type(self).__name__, "memory_state", f"be {self.state_class.__name__}", type(state).__name__)
        state.expect_fits(self.empty_memory(1), type(self).__name__)
        fits = state.batch_size > 0 and batch % state.batch_size == 0
        rows = f"have a number of rows that divides {batch}, the rows of input_ids"
        expect(fits, type(self).__name__, "memory_state", rows, state.batch_size)
        return state


def _check_arguments(where: str, cache: object, logits_to_keep: int | Tensor) -> None:
    is_cache = cache is None or isinstance(cache, (SegmentCache, GroupedCache))
    expect(is_cache, where, "past_key_values", "be what an earlier call returned", type(cache).__name__)
    is_number = kept_steps(where, logits_to_keep) is not logits_to_keep
    expect(is_number, where, "logits_to_keep", "be a number", "a tensor")


def _check_continued_mask(where: str, attention_mask: Tensor, before: int, shape: tuple[int, int]) -> None:
    """After a cache a mask has a column per token since the start, and ones for the new ones."""
    got, needed = tuple(attention_mask.shape), (shape[0], before + shape[1])
    expect(got == needed, where, "attention_mask", f"be {needed} of zeros and ones, one per token since the start", got)
    new = attention_mask[:, before:].bool()
    demand(new.all(), where, "attention_mask", "be one for tokens after a cache", lambda: "zeros")
