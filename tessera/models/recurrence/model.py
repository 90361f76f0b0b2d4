"""The common part of ARMT, RMT and PRMT as a Hugging Face model."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from tessera.errors import expect
from tessera.models.recurrence import base as base_model
from tessera.models.recurrence.cache import GroupedCache, SegmentCache
from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.layer_pass import LayerPass, keep_last_hidden
from tessera.models.recurrence.loss import ShiftedLoss
from tessera.models.recurrence.memory_tokens import MemoryTokens
from tessera.models.recurrence.output import SegmentedOutput
from tessera.models.recurrence.reading import Piece, Wanted, read_in_groups, read_text
from tessera.models.recurrence.state import MemoryState
from tessera.models.recurrence.text import Text


class SegmentedPreTrainedModel(PreTrainedModel):
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

    def get_input_embeddings(self) -> nn.Module:
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

    def _reorder_cache(self, past_key_values: SegmentCache | GroupedCache, beam_idx: Tensor):
        return past_key_values.reorder(beam_idx)

    def _expand_inputs_for_generation(self, expand_size: int = 1, **inputs):
        # transformers repeats the tensors of a prompt for beams and samples; a memory of several rows is one of them.
        state = inputs.get("memory_state")
        if state is not None and expand_size > 1 and state.batch_size > 1:
            inputs["memory_state"] = state.repeat_batch(expand_size)
        return super()._expand_inputs_for_generation(expand_size=expand_size, **inputs)


class SegmentedForCausalLM(SegmentedPreTrainedModel, ABC):
    """A base model read segment by segment.

    Subclasses say what the memory is (see the abstract methods), and inherit from `GenerationMixin` themselves:
    transformers looks for it in every class on its own.
    """

    memory_at_front: bool = False

    def __init__(self, config: SegmentedConfig, base: PreTrainedModel | None = None):
        super().__init__(config)
        expect(config.base_config is not None, type(self).__name__, "base_config", "be given", None)
        if base is None:
            base = AutoModelForCausalLM.from_config(config.base_config)
        else:
            for module in base.modules():  # post_init must not draw a trained base anew
                module._is_hf_initialized = True
        self.base = base
        if config.own_memory_positions:
            base_model.widen_positions(base, self.num_front, config.num_memory_tokens)
        base_model.expect_positions(base, self.num_front + config.segment_size + config.num_memory_tokens)
        base_model.wrap_layers(base_model.layer_list(base, config.layers_path))
        base_model.fuse_activations(base)
        base.base_model.register_forward_hook(keep_last_hidden)
        self._takes_positions = base_model.accepts(base, "position_ids")
        self._add_memory(config)
        self.post_init()
        self.generation_config = copy.deepcopy(base.generation_config)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, MemoryTokens):
            module.reset_parameters(self.get_input_embeddings().weight)

    # What a subclass is.

    @abstractmethod
    def _add_memory(self, config: SegmentedConfig) -> None:
        """Make the parameters that the memory needs."""

    @abstractmethod
    def empty_memory(self, batch: int) -> MemoryState:
        """The memory before anything was read."""

    @abstractmethod
    def _memory_embeddings(self, state: MemoryState) -> Tensor:
        """What the memory tokens of a segment are made of, (B, M, hidden)."""

    @abstractmethod
    def _layer_pass(self, state: MemoryState, blank: bool, front: int, back: int) -> LayerPass:
        """What happens around the layers; `blank`: nothing was read yet."""

    @abstractmethod
    def _handed_on(self, layer_pass: LayerPass, state: MemoryState) -> Sequence:
        """The new `MemoryState.layers` after a pass that closed a segment."""

    @property
    def num_front(self) -> int:
        """Memory tokens at the start of a segment."""
        return self.config.num_memory_tokens if self.memory_at_front else 0

    # Reading.

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        labels_mask: Tensor | None = None,
        memory_state: MemoryState | None = None,
        past_key_values: SegmentCache | GroupedCache | None = None,
        use_cache: bool = False,
        extend_segment: bool = False,
        logits_to_keep: int = 0,
        skip_logits: bool | None = None,
        output_segment_states: bool = False,
        num_items_in_batch: Tensor | int | None = None,
        return_dict: bool | None = None,
    ) -> SegmentedOutput:
        """Read `input_ids` (B, T), any number of segments, after what `memory_state` (default: nothing) remembers.

        Args:
            attention_mask: (B, T); zeros at a row's ends are padding: its text is shorter (the result is that of the
                row alone); zeros inside hide a position. With a cache it was read already.
            labels: (B, T), shifted inside once across the whole text, -100 left out. labels_mask: booleans (B, T),
                whether position t, which predicts label t + 1, counts.
            memory_state: of B rows, or of one row for all.
            past_key_values: what an earlier call with `use_cache` returned: the text goes on inside its segment.
                Without `use_cache` the last segment is closed, however short, and its memory written.
            extend_segment: never close the open segment while tokens are added to a cache (the published `generate`).
            logits_to_keep: compute only the last so many; 0: all. skip_logits: leave them out of the result (default:
                while training with labels, a block of them at a time).
            output_segment_states: also return the memory after every segment.
            num_items_in_batch: divide the summed loss by this in place of the number of counted positions.
        Raises:
            TesseraError: inputs that do not fit each other or the model.
        """
        cache = past_key_values
        mask = attention_mask if cache is None else None
        text = Text.of(self.get_input_embeddings(), input_ids, inputs_embeds, mask, labels, labels_mask)
        skip = (self.training and labels is not None) if skip_logits is None else skip_logits
        wanted = Wanted(use_cache, extend_segment, logits_to_keep, skip, output_segment_states)
        state = None if cache is not None or memory_state is None else self._fitting(memory_state, text.shape[0])
        loss = None if text.labels is None else ShiftedLoss(text.labels, text.labels_mask)
        if isinstance(cache, GroupedCache) or self._needs_groups(text, use_cache):
            output = self._read_groups(text, state, cache, wanted, loss)
        else:
            inner = replace(wanted, logits_to_keep=0) if text.uneven else wanted
            output = read_text(self, text, state, cache, inner, loss)
            if text.uneven and output.logits is not None:
                output.logits = text.restore(output.logits)[:, -logits_to_keep:]
        output.loss = None if loss is None else loss.value(num_items_in_batch)
        return output if return_dict is not False else output.to_tuple()

    def _read_groups(self, text, state, cache, wanted: Wanted, loss: ShiftedLoss | None) -> SegmentedOutput:
        """Rows that are not equally far: logits (all of them, where padding must be put back first) and the loss."""
        where, argument = "forward", "output_segment_states"
        expect(not wanted.segment_states, where, argument, "be False for rows of unequal length", True)
        inner = wanted
        if cache is None:
            inner = replace(wanted, logits_to_keep=0, skip_logits=wanted.skip_logits and loss is None)
        output = read_in_groups(self, text, state, cache, inner)
        if loss is not None:
            loss.add(output.logits, 0)
        if wanted.skip_logits:
            output.logits = None
        elif cache is None:
            output.logits = text.restore(output.logits)[:, -wanted.logits_to_keep :]
        return output

    def _needs_groups(self, text: Text, use_cache: bool) -> bool:
        one_by_one = use_cache or not self._takes_positions or self.config.segment_alignment != "left"
        return text.uneven and one_by_one

    def _fitting(self, state: MemoryState, batch: int) -> MemoryState:
        """`state` for `batch` rows, checked."""
        state.expect_fits(self.empty_memory(1), type(self).__name__)
        fits = state.batch_size in (1, batch)
        expect(fits, type(self).__name__, "memory_state", f"hold 1 or {batch} rows", state.batch_size)
        return state if state.batch_size == batch else state.repeat_batch(batch)

    def read_piece(self, piece: Piece, state: MemoryState | None) -> tuple[Tensor | None, MemoryState | None, Any]:
        """What `piece.result` asks for (None for nothing), the memory after the piece, the base's cache."""
        blank = state is None
        state = self.empty_memory(piece.tokens.shape[0]) if blank else state
        opens = piece.cache is None
        front, back = self.num_front if opens else 0, self.config.num_memory_tokens if piece.close else 0
        layer_pass = self._layer_pass(state, blank, front, back)
        memory = self._memory_embeddings(state) if front or back else None
        parts = [memory if front else None, piece.tokens, memory if back else None]
        output = self._call_base(torch.cat([p for p in parts if p is not None], 1), piece, front, back, layer_pass)
        given = {"logits": output.get("logits"), "hidden": layer_pass.last_hidden, "nothing": None}[piece.result]
        result = None if given is None else given[:, front : front + piece.tokens.shape[1]]
        if piece.close:
            tokens = piece.before + piece.tokens.shape[1] if piece.lengths is None else piece.lengths
            return result, state.after(self._handed_on(layer_pass, state), tokens), None
        return result, None if blank else state, output.past_key_values

    def _call_base(self, embeddings: Tensor, piece: Piece, front: int, back: int, layer_pass: LayerPass) -> Any:
        arguments = {"inputs_embeds": embeddings, "use_cache": piece.keep, "return_dict": True}
        if piece.cache is not None:
            arguments["past_key_values"] = piece.cache
        visible = base_model.key_mask(piece.visible, piece.lengths, self.num_front, back)
        if visible is None and self.config.own_memory_positions:
            # Without a mask, transformers takes a jump of the positions for the start of another document.
            steps = self.num_front + piece.before + piece.tokens.shape[1] + back
            visible = embeddings.new_ones(embeddings.shape[0], steps, dtype=torch.long)
        if visible is not None:
            arguments["attention_mask"] = visible
        if self._takes_positions:
            arguments["position_ids"] = self._positions(piece, front, back, embeddings.device)
        with layer_pass.running():
            return (self.base if piece.result == "logits" else self.base.base_model)(**arguments)

    def _positions(self, piece: Piece, front: int, back: int, device: torch.device) -> Tensor:
        """Positions (1 or B, T): consecutive, memory tokens right after the last token that exists, or in own rows."""
        opened = 0 if front else self.num_front
        first = opened + piece.before
        count = front + piece.tokens.shape[1]
        ordinary = torch.arange(first, first + count, device=device)[None]
        if not back:
            return ordinary
        if self.config.own_memory_positions:
            rows = base_model.position_table(self.base).num_embeddings
            return torch.cat([ordinary, torch.arange(rows - back, rows, device=device)[None]], 1)
        after = torch.arange(back, device=device)[None]
        if piece.lengths is None:
            return torch.cat([ordinary, after + first + count], 1)
        after = after + self.num_front + piece.lengths[:, None]
        return torch.cat([ordinary.expand(len(after), -1), after], 1)
