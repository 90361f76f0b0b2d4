"""What all of the library's language models share: a stack of layers with memories, as Hugging Face models."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from tessera.errors import TesseraError, expect
from tessera.ops.linear_cross_entropy import IGNORED, linear_cross_entropy
from tessera.state import State


@dataclass(frozen=True)
class StackState(State):
    """The states of all layers after `length` steps: what `past_key_values` is for these models."""

    layers: tuple[State, ...]
    length: int

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Steps read so far, padding included (the name transformers asks for)."""
        return self.length


def documents_of(attention_mask: Tensor | None, document_ids: Tensor | None, steps: int) -> Tensor | None:
    """Documents (B, T) of the last `steps` steps: `document_ids`, and -1 (padding) where the mask is zero.

    None when nothing distinguishes the steps, so that the memories need no mask.
    """
    if attention_mask is None:
        return document_ids
    expect(attention_mask.dim() == 2, "forward", "attention_mask", "be (B, T) of zeros and ones", attention_mask.shape)
    real = attention_mask[:, -steps:].bool()
    if document_ids is None:
        return None if bool(real.all()) else torch.where(real, 0, -1)
    return torch.where(real, document_ids, -1)


class StackPreTrainedModel(PreTrainedModel):
    """Hugging Face plumbing common to the library's stacks. Subclasses name their `parts`."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _is_stateful = True  # the state cannot be cropped, as assisted generation would ask

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def scalar_parameter_names(self) -> list[str]:
        """Names of the per-head scalars (rates, bandwidths, scales, mixing weights), which may learn faster."""
        return [name for name, parameter in self.named_parameters() if parameter.dim() == 1 and "norm" not in name]

    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of each of `parts` (name -> what its parameters' names contain, first match); shared ones once."""
        counts = dict.fromkeys(self.parts, 0)
        for name, parameter in self.named_parameters():
            counts[next(part for part, mark in self.parts.items() if mark in name)] += parameter.numel()
        return counts


class StackModel(StackPreTrainedModel):
    """Embedding, layers, final norm. Subclasses provide `make_layer(config)` and `make_norm(config)`.

    A layer is called as `layer(hidden, state=..., documents=..., keep_state=...)` and returns hidden and its state.
    """

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(self.make_layer(config) for _ in range(config.num_layers))
        self.norm = self.make_norm(config)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StackState | None = None,
        use_cache: bool | None = None,
        document_ids: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, T, hidden) of `input_ids` (B, T); `past_key_values` is the state of an earlier call.

        `attention_mask` (B, past + T) marks padding with zeros, on either side. `document_ids` (B, T) separates
        documents that are packed into one sequence: memories never see a pair of another document.
        """
        where = type(self).__name__
        expect(
            (input_ids is None) != (inputs_embeds is None),
            where,
            "input_ids or inputs_embeds",
            "be given",
            "both or neither",
        )
        hidden = self._embed(input_ids) if inputs_embeds is None else inputs_embeds
        expect(hidden.shape[1] > 0, where, "the prompt", "hold at least one token", "none")
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        past = past_key_values
        documents = None
        if past is None or document_ids is not None:
            documents = documents_of(attention_mask, document_ids, hidden.shape[1])
        extra = self.layer_arguments(hidden)
        states, seen = [], [hidden] if output_hidden_states else None
        for index, layer in enumerate(self.layers):
            state = None if past is None else past.layers[index]
            hidden, state = layer(hidden, state=state, documents=documents, keep_state=bool(use_cache), **extra)
            states.append(state)
            if seen is not None:
                seen.append(hidden)
        state = StackState(tuple(states), hidden.shape[1] + (0 if past is None else past.length)) if use_cache else None
        output = BaseModelOutputWithPast(
            last_hidden_state=self.norm(hidden),
            past_key_values=state,
            hidden_states=None if seen is None else tuple(seen),
        )
        return output if return_dict is not False else output.to_tuple()

    def layer_arguments(self, hidden: Tensor) -> dict[str, object]:
        """What every layer is called with beyond the usual, for a call that reads `hidden` (B, T, hidden)."""
        return {}

    def _embed(self, input_ids: Tensor) -> Tensor:
        try:
            return self.embed_tokens(input_ids)
        except IndexError:
            size = self.config.vocab_size
            raise TesseraError(
                f"{type(self).__name__}: input_ids must lie in 0..{size - 1} (vocab_size {size}); got values from "
                f"{int(input_ids.min())} to {int(input_ids.max())}. Does the tokenizer belong to this model?"
            ) from None


class StackForCausalLM(StackPreTrainedModel, GenerationMixin):
    """A stack with a linear read-out. Subclasses name their stack's class in `stack_class`."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True

    def __init__(self, config):
        super().__init__(config)
        self.model = self.stack_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StackState | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        document_ids: Tensor | None = None,
        logits_to_keep: int = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V) of the next token at each step, and with `labels` (B, T) the mean loss in nats per token.

        Labels are shifted inside, -100 is left out, and the loss is divided by `num_items_in_batch` when given
        (gradient accumulation). `skip_logits` (default: while training with labels) leaves the logits out, so that
        they are made a block at a time and dropped. `logits_to_keep` computes only the last so many.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            document_ids=document_ids,
            output_hidden_states=output_hidden_states,
        )
        hidden = outputs.last_hidden_state
        loss = None if labels is None else self._loss(hidden, labels, document_ids, num_items_in_batch)
        logits = None
        if not (self.training and labels is not None if skip_logits is None else skip_logits):
            logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
            logits = logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )
        return output if return_dict is not False else output.to_tuple()

    def _loss(self, hidden: Tensor, labels: Tensor, document_ids: Tensor | None, num_items) -> Tensor:
        targets = labels[:, 1:]
        size = self.config.vocab_size
        # Looking at the labels would cost a GPU a wait, and a compiled step a break in its graph.
        can_look = targets.device.type == "cpu" and not torch.compiler.is_compiling()
        if can_look and targets.numel() and int(targets.max()) >= size:
            raise TesseraError(
                f"{type(self).__name__}: labels must lie below vocab_size ({size}); got {int(targets.max())}."
            )
        if document_ids is not None:
            targets = torch.where(document_ids[:, 1:] == document_ids[:, :-1], targets, IGNORED)
        total = linear_cross_entropy(
            hidden[:, :-1].flatten(0, 1), self.lm_head.weight, targets.flatten(), self.config.logit_scale
        )
        return total / ((targets != IGNORED).sum() if num_items is None else num_items)

    def _reorder_cache(self, past_key_values: StackState, beam_idx: Tensor) -> StackState:
        return past_key_values.select_batch(beam_idx)
