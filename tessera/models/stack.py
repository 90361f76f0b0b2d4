"""What all of the library's language models share: a stack of layers with memories, as Hugging Face models."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from tessera.errors import TesseraError, expect
from tessera.models.code_beside_weights import SavesWithCode
from tessera.models.forward_arguments import (
    REASONS,
    check_labels,
    check_types,
    demand,
    is_plain_linear,
    kept_steps,
    refuse_keywords,
    without_packing,
)
from tessera.models.stack_state import StackState, last_document, read_documents
from tessera.ops.linear_cross_entropy import IGNORED, linear_cross_entropy


class StackPreTrainedModel(SavesWithCode, PreTrainedModel):
    """Hugging Face plumbing common to the library's stacks. Subclasses name their `parts`."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _is_stateful = True  # the state cannot be cropped, as assisted generation would ask

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

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
        position_ids: Tensor | None = None,
        cache_position: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **keywords: object,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, T, hidden) of `input_ids` (B, T); `past_key_values` is the state of an earlier call.

        `attention_mask` (B, past + T) marks padding with zeros, anywhere. `document_ids` (B, T) separates documents
        that are packed into one sequence: memories never see a pair of another document. `position_ids` (B or 1, T)
        say the same: a document begins where they do not count on. `output_hidden_states`: also the input of every
        layer and the output of the last norm. Further keywords of transformers are refused by name.
        """
        where = type(self).__name__
        keywords = without_packing(keywords, document_ids, position_ids)
        refuse_keywords(where, keywords, REASONS, self.forward)
        check_types(
            where,
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            document_ids=document_ids,
            position_ids=position_ids,
            cache_position=cache_position,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            return_dict=return_dict,
        )
        is_one = (input_ids is None) != (inputs_embeds is None)
        expect(is_one, where, "input_ids or inputs_embeds", "be given", "both or neither")
        past = past_key_values
        hidden = self._embed(input_ids) if inputs_embeds is None else inputs_embeds
        expect(hidden.dim() == 3, where, "input_ids", "be (B, T) (inputs_embeds (B, T, hidden))", tuple(hidden.shape))
        expect(hidden.shape[1] > 0, where, "the prompt", "hold at least one token", "none")
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        documents = read_documents(
            where, hidden.shape[:2], past, attention_mask, document_ids, position_ids, cache_position
        )
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        extra = self.layer_arguments(hidden)
        states, inputs = [], []
        for index, layer in enumerate(self.layers):
            inputs.append(hidden)
            state = None if past is None else past.layers[index]
            hidden, state = layer(hidden, state=state, documents=documents, keep_state=bool(use_cache), **extra)
            states.append(state)
        hidden = self.norm(hidden)
        state = None
        if use_cache:
            length = hidden.shape[1] + (0 if past is None else past.length)
            state = StackState(tuple(states), length, last_document(past, documents))
        output = BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=state,
            hidden_states=(*inputs, hidden) if output_hidden_states else None,
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
    """A stack with a linear lm_head. Subclasses name their stack's class in `stack_class`."""

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
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **keywords: object,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V) of the next token at each step, and with `labels` (B, T) the mean loss in nats per token.

        Labels are shifted inside; left out are -100, padding, and what would be predicted from padding or from another
        document. The loss is divided by `num_items_in_batch` when given (gradient accumulation). `skip_logits`
        (default: while training with labels) leaves the logits out, so that they are made a block at a time and
        dropped. `logits_to_keep` computes only the last so many, or those of the steps in a 1-d tensor.
        """
        where = type(self).__name__
        kept = kept_steps(where, logits_to_keep)
        check_types(
            where,
            input_ids=input_ids,
            inputs_embeds=inputs_embeds,
            labels=labels,
            attention_mask=attention_mask,
            document_ids=document_ids,
            skip_logits=skip_logits,
            num_items_in_batch=num_items_in_batch,
            return_dict=return_dict,
        )
        tokens = inputs_embeds if input_ids is None else input_ids
        if labels is not None and tokens is not None:
            check_labels(where, labels, tokens.shape[:2], self.config.vocab_size)
            keywords = without_packing(keywords, document_ids, keywords.get("position_ids"))
            places = [keywords.pop(name, None) for name in ("position_ids", "cache_position")]
            masks = (attention_mask, document_ids, *places)
            attention_mask, document_ids = None, read_documents(where, tokens.shape[:2], past_key_values, *masks)
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            document_ids=document_ids,
            output_hidden_states=output_hidden_states,
            **keywords,
        )
        hidden = outputs.last_hidden_state
        if isinstance(kept, Tensor):
            steps = hidden.shape[1]
            inside = ((kept >= -steps) & (kept < steps)).all()
            demand(inside, where, "logits_to_keep", f"lie in 0..{steps - 1}", lambda: kept.tolist())
        loss = None
        if labels is not None:
            loss = self._loss(hidden, labels, document_ids, num_items_in_batch)
        logits = None
        if not (self.training and labels is not None if skip_logits is None else skip_logits):
            logits = self._logits(hidden[:, kept])
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )
        return output if return_dict is not False else output.to_tuple()

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.lm_head(hidden)
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale

    def _loss(self, hidden: Tensor, labels: Tensor, documents: Tensor | None, num_items) -> Tensor:
        targets = labels[:, 1:]
        if documents is not None:
            is_inside = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
            targets = torch.where(is_inside, targets, IGNORED)
        count = (targets != IGNORED).sum() if num_items is None else num_items
        hidden, targets = hidden[:, :-1].flatten(0, 1), targets.flatten()
        if is_plain_linear(self.lm_head):
            total = linear_cross_entropy(hidden, self.lm_head.weight, targets, self.config.logit_scale)
        else:  # what adapters, quantisation and hooks make of it is the module's business
            logits = self._logits(hidden)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            total = cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
        return total / count

    def _reorder_cache(self, past_key_values: StackState, beam_idx: Tensor) -> StackState:
        return past_key_values.select_batch(beam_idx)
