"""What all of the library's language models share: a stack of layers with memories, as Hugging Face models."""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from tessera.base.errors import expect
from tessera.kernels import Kernel
from tessera.layers.linear import is_plain_linear
from tessera.memories.padded_rows import LayersRead, is_between_tokens, read_each_document, read_rows, without_gaps
from tessera.models.drafted_generation import DraftedGeneration
from tessera.models.fingerprint import Fingerprint
from tessera.models.forward_arguments import (
    REASONS,
    check_labels,
    checks_types,
    embedded,
    kept_steps,
    refuse_keywords,
    without_packing,
)
from tessera.models.lazy_logits import LazyLogits, LazyOutput
from tessera.models.loss_per_item import count_of_labels, loss_per_item, summed_loss
from tessera.models.saving.beside_weights import SavesWithCode
from tessera.models.stack_state import Prefix, StackState, last_document, read_documents, tokens_read
from tessera.ops.kernel_regression import Call, intercepted, reference
from tessera.ops.kernel_regression.interception import of_this_thread
from tessera.ops.linear_cross_entropy import IGNORED, linear_cross_entropy


class StackPreTrainedModel(SavesWithCode):
    """Hugging Face plumbing common to the library's stacks. Subclasses add their own `parts`."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    parts = {"embeddings": "embed_tokens", "lm_head": "lm_head", "norms": "norm."}

    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of each of `parts` (name -> what its parameters' names contain, first match); shared ones once."""
        counts = dict.fromkeys(self.parts, 0)
        for name, parameter in self.named_parameters():
            part = next((part for part, mark in self.parts.items() if mark in name), "head")  # a classifier's own
            counts[part] = counts.get(part, 0) + parameter.numel()
        return counts

    def on_adjusted(self) -> None:
        """Let the layers take over what `adjust_model` changed in the configuration."""
        for layer in self.base_model.layers:
            if hasattr(layer, "follow"):
                layer.follow(self.config)


class NormalInitialization(StackPreTrainedModel):
    """Matrices from N(0, initializer_range^2), those at the end of a residual branch divided by sqrt(2 num_layers).

    A layer lists the latter in `branch_ends()`.
    """

    def _init_weights(self, module: nn.Module) -> None:
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, 0.0, std)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.RMSNorm):
            init.ones_(module.weight)
        elif callable(branch_ends := getattr(module, "branch_ends", None)):
            for linear in branch_ends():
                init.normal_(linear.weight, 0.0, std / math.sqrt(2 * self.config.num_layers))


class StackLayer(GradientCheckpointingLayer):
    """A layer of a stack, called as `StackModel` says, that may be computed again in the backward pass."""

    def __setattr__(self, name: str, value: Any) -> None:
        is_given = name == "_gradient_checkpointing_func" and getattr(value, "keywords", {}).get("use_reentrant")
        super().__setattr__(name, partial(_checkpointed, value) if is_given else value)

    def goes_on_from(self, state: Any) -> Any:
        """What of `state` this layer goes on from, as it is set now."""
        return state


def _checkpointed(checkpoint: Callable[..., Any], call: partial, *arguments: Any) -> Any:
    """`call`, by the reentrant `checkpoint` that transformers was given; where it has a state, by the other kind.

    Reentrant checkpoints record tensors that a layer takes and returns by themselves, and none inside of a state.
    """
    has_state = call.keywords.get("state") is not None or call.keywords.get("keep_state")
    return checkpoint(call, *arguments, **({"use_reentrant": False} if has_state else {}))


def rms_norm(config) -> nn.RMSNorm:
    """Of the width and with the epsilon of a configuration."""
    return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


def recalling_memories(stack: nn.Module) -> list[nn.Module]:
    """The modules of `stack` that have weights over stored pairs."""
    return [module for module in stack.modules() if isinstance(getattr(module, "kernel", None), Kernel)]


@contextmanager
def recorded_weights(stack: nn.Module) -> Iterator[list[list[Tensor]]]:
    """While it lasts, each memory of `stack` that runs appends its weights over all stored pairs, for every query.

    That is a list of (B, H, T, N), one per bank.
    Without dropout of the weights; the answers are functions of them, so that gradients reach them. O(B H T N) memory
    each.
    """
    recorded: list[list[Tensor]] = []

    @of_this_thread
    def begin(module: nn.Module, arguments: tuple) -> None:
        recorded.append([])

    def record(call: Call, run: Callable[[Call], Tensor]) -> Tensor:
        """What `run` answers, as a function of the weights where gradients are wanted."""
        weights = reference.weights(replace(call, dropout=0.0))
        recorded[-1].append(weights)
        if not torch.is_grad_enabled():
            return run(call)
        if call.dropout:
            return torch.dropout(weights, call.dropout, train=True) @ call.value
        with torch.no_grad():  # the numbers of a call that records nothing, bit for bit
            answers = run(call)
        through = weights @ call.value
        return answers + (through - through.detach())

    with ExitStack() as hooks, intercepted(record):
        for memory in recalling_memories(stack):
            hooks.enter_context(memory.register_forward_pre_hook(begin))
        yield recorded


class StackModel(StackPreTrainedModel):
    """Embedding, layers, final norm. Subclasses name their `layer_class`, and `make_norm` unless it is an RMS norm.

    Both are called with the configuration. A layer is called as `layer(hidden, state=..., documents=...,
    keep_state=...)` and returns hidden and its state.
    """

    make_norm: Callable[[Any], nn.Module] = staticmethod(rms_norm)

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(self.layer_class(config) for _ in range(config.num_layers))
        memory: Any
        for memory in self.layers.modules():
            if hasattr(memory, "padding_is_in_front"):
                memory.padding_is_in_front = True  # `read_rows` moves it, once for all layers
        self.norm = self.make_norm(config)
        self.gradient_checkpointing = False
        self._fingerprint = Fingerprint()
        self.post_init()

    @checks_types
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StackState | Prefix | None = None,
        use_cache: bool | None = None,
        document_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache_position: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **keywords: object,
    ) -> BaseModelOutputWithPast | tuple:
        """Hidden states (B, T, hidden) of `input_ids` (B, T); `past_key_values` is the state of an earlier call, or a
        `Prefix` of pairs.

        `attention_mask` (B, past + T) marks padding with zeros, anywhere: each row gives what it gives without (but not
        where padding follows a state in a compiled program). `document_ids` (B, T) separates documents that are packed
        into one sequence, each in one piece: memories never see a pair of another document. `position_ids` (B or 1, T)
        say the same: a document begins where they do not count on, and behind a state at position 0. Each has the
        `Prefix` in front of it (in a compiled program the last one of a row alone).
        `output_hidden_states`: also the input of every layer and the output of the last norm. `output_attentions`: also
        the recall weights, one (B, H, T, N) per memory in the order in which they run, so that a layer of two memories
        has two: in v1 the contextual and the persistent one, in v2 the short-term and the long-term one. Column i is
        the memory's pair (k_i, v_i), whose value is complete one step later: N = T - 1 for a text read at once. For a
        persistent memory it is slot i.
        Rows sum to 1, to 0 where a query sees no pair. O(B H T N) memory; `tessera.inspection.recall_weights` gives
        chosen queries for O(H N) each. Further keywords of transformers are refused by name.
        """
        where = type(self).__name__
        keywords = without_packing(keywords, document_ids, position_ids)
        refuse_keywords(where, keywords, REASONS, self.forward)
        is_one = (input_ids is None) != (inputs_embeds is None)
        expect(is_one, where, "input_ids or inputs_embeds", "be given", "both or neither")
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = embedded(where, self.embed_tokens, input_ids)
        hidden = inputs_embeds
        width = self.config.hidden_size
        expect(hidden.shape[2] == width, where, "inputs_embeds", f"be (B, T, {width})", tuple(hidden.shape))
        expect(hidden.shape[1] > 0, where, "the prompt", "hold at least one token", "none")
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        said = (attention_mask, document_ids, position_ids, cache_position)
        documents = read_documents(where, (hidden.shape[0], hidden.shape[1]), past_key_values, *said)
        past = past_key_values
        if isinstance(past, Prefix):
            past = past.state(where, self.layers, last_document(past, documents))
        wants_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        model = self._fingerprint.of(self, past is None) if use_cache or past is not None else None
        if past is not None:
            past = past.fitting(where, model, hidden)
        wants_weights = self.config.output_attentions if output_attentions is None else output_attentions
        read, weights = partial(self._run_layers, keep_state=bool(use_cache)), None
        is_padded = attention_mask is not None or (document_ids is not None and (use_cache or past is not None))
        is_packed = document_ids is not None or position_ids is not None
        if is_packed and past is not None and documents is not None and past.is_left_by(documents):
            expect(not wants_weights, where, "output_attentions", "be False where a prefix has several documents", True)
            before, last = partial(past.before, where, self.layers), last_document(past, documents)
            assert last is not None
            inputs, states = read_each_document(read, hidden, before, documents, last, bool(use_cache))
        elif wants_weights:
            (inputs, states), weights = self._recorded(read, hidden, past, documents, is_padded)
        elif documents is not None and is_padded:
            inputs, states = read_rows(read, hidden, past, documents, bool(use_cache))
        else:
            inputs, states = read(hidden, None if past is None else past.layers, documents)
        hidden, state = inputs[-1], None
        if use_cache:
            length = hidden.shape[1] + (0 if past is None else past.length)
            prefix = None if past is None else past.prefix
            tokens = None if documents is None else tokens_read(past) + (documents >= 0).sum(1, keepdim=True)
            state = StackState(states, length, last_document(past, documents), model, prefix, tokens)
        output = BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=state,
            hidden_states=inputs if wants_hidden else None,
            attentions=weights,
        )
        return output if self._returns_dict(return_dict) else output.to_tuple()

    def _run_layers(
        self, hidden: Tensor, past: tuple[Any, ...] | None, documents: Tensor | None, keep_state: bool
    ) -> LayersRead:
        extra = self.layer_arguments(hidden)
        states, inputs = [], []
        for index, layer in enumerate(self.layers):
            inputs.append(hidden)
            state = None if past is None else past[index]
            hidden, state = layer(hidden, state=state, documents=documents, keep_state=keep_state, **extra)
            states.append(state)
        return LayersRead((*inputs, self.norm(hidden)), tuple(states))

    def _recorded(
        self, read: Any, hidden: Tensor, past: StackState | None, documents: Tensor | None, is_padded: bool
    ) -> tuple[LayersRead, tuple[Tensor, ...]]:
        """What `read` gives, and the recall weights, unless no memory has any or layers are computed a second time."""
        where, advice = type(self).__name__, "Its memories are matrices, which have no weights over stored pairs."
        expect(bool(recalling_memories(self.layers)), where, "output_attentions", "be False", True, advice)
        twice = self.training and any(getattr(layer, "gradient_checkpointing", False) for layer in self.layers)
        expect(not twice, where, "output_attentions", "be False with gradient checkpointing", True)
        padded = documents if is_padded else None
        is_between = padded is not None and is_between_tokens(padded, past is not None)
        expect(not is_between, where, "output_attentions", "be False where padding lies between tokens", True)
        with recorded_weights(self.layers) as weights:
            layers_read = read(hidden, None if past is None else past.layers, documents)
        # Of a memory the slots of its banks one after the other, whose answers are averaged.
        averaged = tuple(banks[0] if len(banks) == 1 else torch.cat(banks, -1) / len(banks) for banks in weights)
        if padded is not None and read.keywords["keep_state"] and is_between_tokens(padded, past is not None, True):
            states = read_rows(read, hidden, past, padded, True).states  # which end with a token
            layers_read = LayersRead(layers_read.inputs, states)
        return layers_read, averaged

    def layer_arguments(self, hidden: Tensor) -> dict[str, object]:
        """What every layer is called with beyond the usual, for a call that reads `hidden` (B, T, hidden)."""
        return {}


class StackForCausalLM(StackPreTrainedModel, DraftedGeneration, GenerationMixin):
    """A stack with a linear lm_head. Subclasses name their stack's class in `stack_class`.

    They inherit from `GenerationMixin` themselves too: tools of transformers look for it in every class on its own.
    """

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    accepts_loss_kwargs = True

    def __init__(self, config):
        super().__init__(config)
        self.model = self.stack_class(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @checks_types
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StackState | Prefix | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        document_ids: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        **keywords: Any,
    ) -> CausalLMOutputWithPast | tuple:
        """Logits (B, T, V) of the next token at each step, and with `labels` (B, T) the mean loss in nats per token.

        Labels are shifted inside; left out are -100, padding, and what would be predicted from another document. A
        keyword `shift_labels` (B, T) takes their place: the target of each step itself, as those hand it over that cut
        a text into parts. (Were it a named argument, the Trainer would give no loss without it.)
        The loss is divided by `num_items_in_batch` when given (gradient accumulation): see `loss_per_item`.

        While training with labels the loss makes logits a block at a time, and the output's `logits` are computed when
        somebody looks at them (see `LazyOutput`; a compiled model returns none). `skip_logits` True leaves them out,
        False makes them. `logits_to_keep` computes only the last so many, or those of the steps in a 1-d tensor. Other
        arguments as in the stack's `forward`.
        """
        where, shift_labels = type(self).__name__, keywords.pop("shift_labels", None)
        tokens = inputs_embeds if input_ids is None else input_ids
        steps = 0 if tokens is None else tokens.shape[1]
        kept = kept_steps(where, logits_to_keep, steps)
        targets = labels if shift_labels is None else shift_labels
        if targets is not None and tokens is not None:
            shape = (tokens.shape[0], tokens.shape[1])
            check_labels(where, targets, shape, self.config.vocab_size)
            keywords = without_packing(keywords, document_ids, keywords.get("position_ids"))
            places = [keywords.pop(name, None) for name in ("position_ids", "cache_position")]
            document_ids = read_documents(where, shape, past_key_values, attention_mask, document_ids, *places)
            attention_mask = None if document_ids is None else attention_mask
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            document_ids=document_ids,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
            **keywords,
        )
        hidden, loss = outputs.last_hidden_state, None
        if targets is not None:
            seen, documents, num_labels = hidden, document_ids, count_of_labels(targets, shift_labels is not None)
            if documents is not None and attention_mask is not None and shift_labels is None:
                seen, targets, documents = without_gaps(hidden, targets, documents)
            total, num_counted = self._loss(seen, targets, documents, shift_labels is not None)
            loss = loss_per_item(total, num_counted, num_labels, num_items_in_batch)
        returns_dict = self._returns_dict(return_dict)
        is_deferred = skip_logits is None and loss is not None and self.training and returns_dict
        fields = {name: outputs[name] for name in ("past_key_values", "hidden_states", "attentions") if name in outputs}
        if is_deferred and not torch.compiler.is_compiling():
            return LazyOutput(loss=loss, logits=LazyLogits(self._logits, hidden[:, kept], self.lm_head), **fields)
        logits = None if skip_logits or is_deferred else self._logits(hidden[:, kept])
        output = CausalLMOutputWithPast(loss=loss, logits=logits, **fields)
        return output if returns_dict else output.to_tuple()

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.lm_head(hidden)
        return logits if self.config.logit_scale == 1.0 else logits * self.config.logit_scale

    def _loss(
        self, hidden: Tensor, labels: Tensor, documents: Tensor | None, are_shifted: bool
    ) -> tuple[Tensor, Tensor]:
        """Summed over the targets that count, and their number."""
        targets = labels.long() if are_shifted else labels[:, 1:].long()  # labels of few bits hold no -100
        if documents is not None:
            is_inside = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] >= 0)
            if are_shifted:  # what comes behind the last step is not known
                is_inside = torch.cat([is_inside, documents[:, -1:] >= 0], 1)
            targets = torch.where(is_inside, targets, IGNORED)
        num_counted = (targets != IGNORED).sum()
        hidden, targets = hidden[:, : targets.shape[1]].flatten(0, 1), targets.flatten()
        if is_plain_linear(self.lm_head):
            total = linear_cross_entropy(hidden, self.lm_head.weight, targets, self.config.logit_scale)
        else:  # what adapters, quantisation and hooks make of it is the module's business
            total = summed_loss(self._logits(hidden), targets)
        return total, num_counted
