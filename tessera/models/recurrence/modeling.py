"""The common part of ARMT, RMT and PRMT as a Hugging Face model."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tessera.base.errors import expect
from tessera.base.state import State
from tessera.memories.association import Openings
from tessera.models.adapters import adapter_names
from tessera.models.causality import first_position
from tessera.models.drafted_generation import WITH_CACHE, DraftedGeneration
from tessera.models.fingerprint import Fingerprint, expect_same_model
from tessera.models.forward_arguments import (
    REASONS,
    check_labels,
    checks_types,
    demand,
    expect_counting,
    expect_exportable,
    expect_rows,
    kept_steps,
    new_steps,
    refuse_keywords,
    without_packing,
)
from tessera.models.lazy_logits import LazyLogits
from tessera.models.loss_per_item import count_of_labels, share_of
from tessera.models.recurrence.base_model import (
    FEED_FORWARD,
    SegmentedBackbone,
    expect_base,
    expect_positions,
    expect_unwrapped,
    fuse_activations,
    layer_list,
    takes_positions,
    widen_positions,
)
from tessera.models.recurrence.collector import Collector, SegmentedOutput
from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.layer_hooks import LayerHooks, keep_last_hidden, leave_out_unneeded, wrap_layers
from tessera.models.recurrence.segment_loss import (
    SegmentLoss,
    balancing_weight,
    counted_as_used,
    plain_lm_head,
    shifted_targets,
)
from tessera.models.recurrence.segment_runner import MemoryTokens, SegmentRunner
from tessera.models.recurrence.segmented_input import SegmentedInput
from tessera.models.recurrence.state import MemoryState, SegmentCache
from tessera.models.saving.beside_weights import SavesWithCode
from tessera.models.sizes import flops_per_token, num_parameters

REFUSED = {
    **REASONS,
    "cache_position": "the cache knows its place",
    "document_ids": "the memory is carried through the whole row; give every document a row",
    "labels_mask": "it is called loss_mask",
}


class SegmentedPreTrainedModel(SavesWithCode):
    """Hugging Face plumbing."""

    config_class = SegmentedConfig
    base_model_prefix = "model"  # of names in a classifier's file, which transformers adds and leaves out by this
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _tied_weights_keys: ClassVar[dict[str, str]] = {}  # PEFT adds those of the base to a mapping alone
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # of the base; transformers looks for experts in the source of this class


class SegmentedForCausalLM(SegmentedPreTrainedModel, DraftedGeneration, ABC):
    """A base model read segment by segment.

    Subclasses make the memory's parameters (`_add_memory`), say what is done with them (`unread_layers`, `hooks`,
    `next_layers`), and inherit from `GenerationMixin` themselves: transformers looks for it in every class on its own.
    """

    state_class: type[MemoryState]
    at_front = False  # whether memory tokens stand at the start of a segment too
    is_carried = False  # whether outputs of layers become memory tokens
    # Whether a segment that stays open can be read after a state of fewer rows than the text has, of which each serves
    # as many consecutive rows.
    is_shared = False
    memory_modules: tuple[str, ...] = ("memory_tokens",)  # what an adapter of PEFT must train and save too

    def __init__(self, config: SegmentedConfig, base: PreTrainedModel | None = None):
        super().__init__(config)
        expect(config.base_config is not None, type(self).__name__, "base_config", "be given", None)
        is_new = base is None
        if base is None:
            base = AutoModelForCausalLM.from_config(config.base_config, trust_remote_code=False)
        # A base that is refused is left as it was.
        back = config.num_memory_tokens
        front, where = back if self.at_front else 0, type(self).__name__
        expect_unwrapped(base, where)
        layers = layer_list(base, config.layers_path)
        expect_positions(base, config.segment_size, front, back, config.own_memory_positions)
        expect_base(base, layers, where)
        embeddings = base.get_input_embeddings()
        is_narrow = self.is_carried and embeddings.weight.shape[1] != config.hidden_size
        expect(not is_narrow, where, "the model", "have embeddings as wide as its layers", type(base).__name__)
        if not is_new:
            for module in base.modules():  # post_init must not draw a trained base anew
                module._is_hf_initialized = True
        self.base = base
        config._attn_implementation = base.config._attn_implementation  # who loads a second copy asks for this one
        # PEFT asks whether what it puts on the embeddings acts on the head, too. Inkling's configuration does not say.
        config.tie_word_embeddings = getattr(base.config.get_text_config(), "tie_word_embeddings", False)
        if config.own_memory_positions:
            widen_positions(base, front, back)
        wrap_layers(layers)
        if base.config.model_type in FEED_FORWARD:
            leave_out_unneeded(getattr(layers[-1], FEED_FORWARD[base.config.model_type]))
        fuse_activations(base)
        for decoder in {base.base_model, base.get_decoder()}:  # OPT's head reads what stands inside its base model
            decoder.register_forward_hook(keep_last_hidden)
        self.first_position = first_position(base) if takes_positions(base) else None  # None: it counts by itself
        self._is_tried = False
        self._fingerprint = Fingerprint()
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
    def unread_layers(self, batch: int) -> Sequence[State]:
        """`MemoryState.layers` of `batch` rows before anything was read."""

    def memory_embeddings(self, state: Any) -> Tensor:
        """What the memory tokens of a segment are made of, (B, M, hidden): the carried or the learned ones."""
        return state.layers[0].tokens if self.is_carried else self.memory_tokens(state.batch_size)

    def new_openings(self) -> Openings | None:
        """What counts how much of a text is written, where the model's own loss charges for it."""
        return None

    def hooks(self, state: Any, is_empty: bool, front: int, back: int, openings: Openings | None) -> LayerHooks:
        """What happens around the layers; `is_empty`: nothing was read yet."""
        return LayerHooks(front, back)

    @abstractmethod
    def next_layers(self, hooks: Any, state: Any) -> Sequence[State]:
        """The new `MemoryState.layers` after a call that closed a segment."""

    def get_output_embeddings(self) -> nn.Module:
        """The base model's, as those of its input, which transformers finds by `base_model`."""
        return self.base.get_output_embeddings()

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Set the base model's."""
        self.base.set_output_embeddings(new_embeddings)

    @property
    def base_model(self) -> SegmentedBackbone:
        """What tools of transformers call for hidden states; `base` is the base model itself."""
        # Tools that call it replace `forward` of the model with one that does.
        return SegmentedBackbone(self.base, partial(type(self).forward, self))

    def add_adapter(self, adapter_config: Any, adapter_name: str | None = None) -> None:
        """As in transformers; without `modules_to_save` the memory is trained and saved with the adapter."""
        if getattr(adapter_config, "modules_to_save", self) is None:
            adapter_config.modules_to_save = list(self.memory_modules)
        super().add_adapter(adapter_config, adapter_name)

    def load_adapter(self, peft_model_id: str | None = None, adapter_name: str | None = None, **options: Any) -> Any:
        """As in transformers."""
        names = adapter_names(self, self.memory_modules, adapter_name or "default", options.get("load_config"))
        return super().load_adapter(peft_model_id, adapter_name, **{"weight_mapping": names, **options})

    def memory_parameters(self) -> list[nn.Parameter]:
        """Those that the base model does not have."""
        return [parameter for name in self.memory_modules for parameter in getattr(self, name).parameters()]

    def adds_nothing(self) -> bool:
        """Whether what the memory adds to the layers is 0."""
        return False

    def _expect_learning_memory(self) -> None:
        """Refuse to train an adapter of PEFT around a memory that is frozen where it adds nothing."""
        if self._is_tried or not (self.training and torch.is_grad_enabled()):
            return
        self._is_tried = True
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        has_adapter = any("lora_" in name or "adapter" in name for name in trained)
        is_frozen = not any(name.startswith(self.memory_modules) for name in trained)
        advice = f"Adapters need modules_to_save={list(self.memory_modules)}, which model.add_adapter says by itself."
        is_right = not (has_adapter and is_frozen and self.adds_nothing())
        expect(is_right, type(self).__name__, "the memory", "learn with the adapter", "one frozen at its start", advice)

    def _expect_present_memory(self) -> None:
        """Refuse hooks of accelerate that fetch weights for a module's `forward` alone: memories are also written."""
        if not hasattr(self, "_hf_hook"):
            return
        of_memory = [module for name, module in self.named_modules() if name.startswith(self.memory_modules)]
        is_away = any(getattr(getattr(module, "_hf_hook", None), "offload", False) for module in [self, *of_memory])
        requirement, advice = "stay where it is computed", "Offload the base alone: cpu_offload(model.base)."
        expect(not is_away, type(self).__name__, "the memory", requirement, "one offloaded by accelerate", advice)

    def segment_runner(self, is_new: bool = True) -> SegmentRunner:
        """What reads segments with the present modules; `is_new`: a text begins."""
        return SegmentRunner(self, self._fingerprint.of(self, is_new))

    def unread(self, batch: int) -> MemoryState:
        """The memory of `batch` rows before anything was read, without the fingerprint of its model."""
        counts = torch.zeros(batch, dtype=torch.long, device=next(self.memory_tokens.parameters()).device)
        return self.state_class(tuple(self.unread_layers(batch)), counts, counts)

    def empty_memory(self, batch: int) -> MemoryState:
        """The memory of `batch` rows before anything was read."""
        return replace(self.unread(batch), model=self._fingerprint.of(self, True))

    @checks_types
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
        memory_state: MemoryState | None = None,
        past_key_values: SegmentCache | None = None,
        use_cache: bool = False,
        extend_segment: bool = False,
        logits_to_keep: int = 0,
        skip_logits: bool | None = None,
        output_segment_states: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        position_ids: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **keywords: Any,
    ) -> SegmentedOutput:
        """Read `input_ids` (B, T), any number of segments, after what `memory_state` (default: nothing) remembers.

        Args:
            attention_mask: (B, T); zeros at a row's ends are padding: its text is shorter (the result is that of the
                row alone); zeros inside hide a position. With a cache (B, T before + T), ones for new tokens.
            labels: (B, T), shifted inside once across the whole text, -100 left out. loss_mask: booleans (B, T),
                whether position t, which predicts label t + 1, counts; default: all but zeros of `attention_mask`. Of
                padding only what is read can count: none behind the segment that a row ends in.
            shift_labels: (B, T), in place of labels: the target of each position itself. Only a keyword, as the
                Trainer evaluates nothing where a named argument with labels is left out.
            memory_state: of B rows, or fewer: each then serves as many consecutive rows of `input_ids`. Many questions
                to one text need no copies of its memory (ARMT, while their segment stays open).
            past_key_values: what an earlier call with `use_cache` returned, in place of a memory: the text goes on
                inside its segment. Without `use_cache` the last one is closed, however short, and its memory written.
            extend_segment: never close the open segment while tokens are added to a cache (the published `generate`).
            logits_to_keep: compute only the last so many; 0: all. skip_logits: leave them out of the result. While
                training with labels the loss makes them a block at a time; by default they are computed when somebody
                looks at them, and refused then where labels leave segments out or the base's head is not a plain one.
            output_segment_states: also return the memory after every segment. output_hidden_states: also return the
                hidden states (B, T, hidden) of the ordinary tokens before each layer, and the input of the head.
            output_attentions: also return the attention of each layer within the segments, without memory tokens.
            position_ids: (B or 1, T), which must count on by 1: positions are the model's own, within each segment.
            num_items_in_batch: divide the summed loss by this, see `loss_per_item`; default: by what counts.
        Raises:
            TesseraError: inputs that do not fit each other or the model, and other keywords of transformers, by name.
        """
        where, cache, shift_labels = type(self).__name__, past_key_values, keywords.pop("shift_labels", None)
        refuse_keywords(where, without_packing(keywords, None, position_ids), REFUSED, self.forward)
        is_cache, got = cache is None or isinstance(cache, SegmentCache), type(cache).__name__
        expect(is_cache, where, "past_key_values", "be what an earlier call returned", got)
        expect(not isinstance(logits_to_keep, Tensor), where, "logits_to_keep", "be a number", "a tensor")
        kept_steps(where, logits_to_keep)
        self._expect_learning_memory()
        self._expect_present_memory()
        expect_exportable(where, use_cache, input_ids, inputs_embeds, attention_mask, labels, position_ids)
        text = self._text(input_ids, inputs_embeds, attention_mask, position_ids, cache)
        expect(cache is None or memory_state is None, where, "memory_state", WITH_CACHE, type(memory_state).__name__)
        state = None if memory_state is None else self.fitting(memory_state, text.shape[0])
        loss = self._loss(labels, shift_labels, loss_mask, text)
        config = self.config
        returns_dict = self._returns_dict(return_dict)
        is_deferred = skip_logits is None and self.training and loss is not None and returns_dict
        is_lazy = is_deferred and not torch.compiler.is_compiling()
        collector = Collector(
            text,
            plain_lm_head(self.base),
            loss,
            None if skip_logits or (is_deferred and not is_lazy) else logits_to_keep,
            config.output_hidden_states if output_hidden_states is None else output_hidden_states,
            config.output_attentions if output_attentions is None else output_attentions,
            0 if cache is None else cache.total,
            is_lazy,
        )
        runner = self.segment_runner(cache is None)
        options = {"use_cache": use_cache, "extend_segment": extend_segment, "keep_states": output_segment_states}
        reading = runner.read(text, collector, state, cache, **options)
        value, openings = None, runner.openings
        penalty = None if openings is None else openings.charge(config.gate_penalty)
        if loss is not None:
            value = counted_as_used(loss.value(num_items_in_batch), self.memory_parameters())
            if penalty is not None:
                penalty = share_of(penalty, loss.num_labels, num_items_in_batch)
                value = value + penalty if self.training else value
        head, inputs = self.get_output_embeddings(), None if collector.inputs is None else collector.inputs.value()
        logits = LazyLogits(head, inputs, head) if is_lazy else collector.logits.value()
        if is_lazy and inputs is None and hasattr(self, "unshard"):
            logits = None  # FSDP looks at every field of an output, also at logits that the loss did not keep
        output = SegmentedOutput(
            loss=value,
            logits=logits,
            past_key_values=reading.cache,
            memory_state=reading.memory,
            segment_states=reading.states if output_segment_states else None,
            hidden_states=collector.hidden_states_of_layers(),
            attentions=collector.attentions_of_layers(),
            penalty=penalty,
        )
        return output if returns_dict else output.to_tuple()

    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of the base model and of the memory."""
        base = num_parameters(self.base)
        return {"base": base, "memory": num_parameters(self) - base}

    def flops_per_token(self, context: int) -> int:
        """Of the last token of a segment: the base, its share of the memory tokens' cost, and the memory's own part."""
        size, front = self.config.segment_size, self.at_front * self.config.num_memory_tokens
        positions = size + front + self.config.num_memory_tokens
        base = flops_per_token(self.config.base_config, min(context, size) + front)
        read_out: Any = self.get_output_embeddings()
        head = 2 * read_out.weight.numel()  # of the text alone
        return (base - head) * positions // size + head + self._memory_flops_per_token()

    def _memory_flops_per_token(self) -> int:
        return 0

    def state_bytes_per_token(self, dtype: torch.dtype) -> float:
        """0: the memory does not grow with the text."""
        return 0.0

    def _text(self, input_ids, inputs_embeds, attention_mask, position_ids, cache) -> SegmentedInput:
        """The arguments of `forward` that are text, checked; after a cache a mask must not hide anything new."""
        where, mask = type(self).__name__, attention_mask if cache is None else None
        text = SegmentedInput.of(self.base.get_input_embeddings(), input_ids, inputs_embeds, mask)
        if cache is not None:
            expect_same_model(where, "past_key_values", cache.model, self._fingerprint.of(self, False))
            expect_rows(where, text.shape[0], cache.batch_size)
            if attention_mask is not None:
                new = new_steps(where, attention_mask, text.shape, cache.total, cache.tokens_read)
                demand(new.all(), where, "attention_mask", "be one for tokens after a cache", lambda: "zeros")
        if position_ids is not None:
            requirement = "count on by 1: documents (TRL's packing=True) need a row each"
            expect_counting(where, position_ids, text.shape, text.real, cache is not None, requirement)
        return text

    def _loss(
        self, labels: Tensor | None, shift_labels: Tensor | None, loss_mask: Tensor | None, text: SegmentedInput
    ) -> SegmentLoss | None:
        for name, rows in (("labels", labels), ("shift_labels", shift_labels), ("loss_mask", loss_mask)):
            got = text.shape if rows is None else tuple(rows.shape)
            expect(got == text.shape, "forward", name, f"be {text.shape}", got)
        chosen_labels = labels if shift_labels is None else shift_labels
        if chosen_labels is None:
            return None
        check_labels(type(self).__name__, chosen_labels, text.shape, self.config.vocab_size)
        targets = shifted_targets(chosen_labels.long(), loss_mask, text.real, shift_labels is not None)
        num_labels = count_of_labels(chosen_labels, shift_labels is not None)
        return SegmentLoss(targets, num_labels, balancing_weight(self.base))

    def fitting(self, state: MemoryState, batch: int) -> MemoryState:
        """`state` on this model's device, in its dtype. Raises `TesseraError` unless it serves `batch` rows of it."""
        is_state = isinstance(state, self.state_class)
        expect(is_state, type(self).__name__, "memory_state", f"be {self.state_class.__name__}", type(state).__name__)
        template = self.empty_memory(1)
        state.expect_fits(template, type(self).__name__)
        divides = state.batch_size > 0 and batch % state.batch_size == 0
        rows = f"have a number of rows that divides {batch}, the rows of input_ids"
        expect(divides, type(self).__name__, "memory_state", rows, state.batch_size)
        like = next(tensor for tensor in template.tensors().values() if tensor.is_floating_point())
        return state.to(like.device, like.dtype).recordable()
