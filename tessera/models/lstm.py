"""The recurrent baseline: a stacked LSTM language model."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from tessera.base.errors import TesseraError, expect
from tessera.base.state import State
from tessera.models.drafted_generation import DraftedGeneration
from tessera.models.fingerprint import Fingerprint, expect_same_model
from tessera.models.forking import PastValue
from tessera.models.forward_arguments import (
    check_labels,
    checks_types,
    embedded,
    expect_counting,
    expect_rows,
    new_steps,
    refuse_keywords,
)
from tessera.models.loss_per_item import count_of_labels, loss_per_item, summed_loss
from tessera.models.saving.beside_weights import SavesWithCode
from tessera.models.sizes import num_parameters
from tessera.models.strict_config import StrictConfig
from tessera.ops.linear_cross_entropy import IGNORED

TAKES_NONE = "an LSTM takes none"


class LSTMConfig(StrictConfig):
    """`num_layers` LSTM layers of `hidden_size` units over embeddings of the same width (Hochreiter, Schmidhuber 1997).

    Args:
        vocab_size, hidden_size, num_layers: sizes. dropout: between layers. initializer_range: standard deviation of
            the embedding.
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "lstm"
    attribute_map = {"num_hidden_layers": "num_layers"}

    vocab_size: int = 256
    hidden_size: int = 128
    num_layers: int = 2
    dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    use_cache: bool = False

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        return self.positive("vocab_size", "hidden_size", "num_layers") + self.probabilities("dropout")

    def pairs_per_query(self, context: int) -> list[int]:
        """None: nothing is compared with a query."""
        return []


@dataclass(frozen=True)
class LSTMState(State, PastValue):
    """Hidden and cell states (B, layers, hidden) after `length` steps of the model with the fingerprint `model`."""

    hidden: Tensor
    cell: Tensor
    length: int
    model: str | None = None


class LSTMPreTrainedModel(SavesWithCode):
    """Hugging Face plumbing."""

    config_class = LSTMConfig
    base_model_prefix = "model"

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Embedding, nn.Linear)):
            init.normal_(module.weight, 0.0, self.config.initializer_range)
        elif isinstance(module, nn.LSTM):
            bound = self.config.hidden_size**-0.5
            for parameter in module.parameters():
                init.uniform_(parameter, -bound, bound)
        else:
            super()._init_weights(module)


class LSTMForCausalLM(LSTMPreTrainedModel, DraftedGeneration, GenerationMixin):
    """Embedding, LSTM layers, layer norm, lm_head tied to the embedding. See `LSTMConfig`.

    >>> model = LSTMForCausalLM(LSTMConfig(vocab_size=20, hidden_size=32))
    >>> model(input_ids=torch.zeros(1, 5, dtype=torch.long)).logits.shape
    torch.Size([1, 5, 20])
    """

    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}
    accepts_loss_kwargs = True  # what Trainer asks: its parts of a batch weigh as many labels as they have

    def __init__(self, config: LSTMConfig):
        super().__init__(config)
        size = config.hidden_size
        between = config.dropout if config.num_layers > 1 else 0.0
        self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.layers = nn.LSTM(size, size, config.num_layers, batch_first=True, dropout=between)
        self.norm = nn.LayerNorm(size)
        self.lm_head = nn.Linear(size, config.vocab_size, bias=False)
        self._fingerprint = Fingerprint()
        self.post_init()

    def parameters_by_part(self) -> dict[str, int]:
        """Parameters of the embeddings, which are the lm_head's, and of what stands between them."""
        embeddings = num_parameters(self.embed_tokens)
        return {"embeddings": embeddings, "lstm": num_parameters(self) - embeddings}

    def state_bytes_per_token(self, dtype: torch.dtype) -> float:
        """0: the state does not grow with the text."""
        return 0.0

    @checks_types
    def forward(
        self,
        input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: LSTMState | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        position_ids: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **keywords: Any,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Logits (B, T, V) and, with `labels` (B, T; shifted inside), the mean loss in nats per token.

        `past_key_values` goes on where an earlier call with `use_cache` ended, in training too. Padding goes to the
        right of a sequence, where nothing after it is read: `attention_mask` (B, before + T) may say so, without cache.
        Left out of the loss are -100 and padding; `num_items_in_batch`: see `loss_per_item`. `position_ids` (B or 1, T)
        must count on by 1. Further keywords of transformers are refused by name.
        """
        hidden, state, real = self._read(input_ids, attention_mask, past_key_values, use_cache, position_ids, keywords)
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            check_labels(type(self).__name__, labels, (hidden.shape[0], hidden.shape[1]), self.config.vocab_size)
            num_labels = count_of_labels(labels, False)
            if real is not None:
                labels = labels.long().masked_fill(~real, IGNORED)
            total = summed_loss(logits[:, :-1], labels[:, 1:].long())
            loss = loss_per_item(total, count_of_labels(labels, False), num_labels, num_items_in_batch)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=state)
        return output if self._returns_dict(return_dict) else output.to_tuple()

    def _read(
        self,
        input_ids: Tensor | None,
        mask: Tensor | None,
        past: LSTMState | None,
        use_cache: bool | None,
        position_ids: Tensor | None,
        keywords: dict[str, Any],
    ) -> tuple[Tensor, LSTMState | None, Tensor | None]:
        """What the head reads (B, T, hidden), the state after it where one is kept, and what is no padding (B, T)."""
        where = type(self).__name__
        refuse_keywords(where, keywords, dict.fromkeys(keywords, TAKES_NONE), self.forward)
        if input_ids is None:
            raise TesseraError(f"{where}: input_ids must be given; got None.")
        use_cache = self.config.use_cache if use_cache is None else use_cache
        rows, steps = tuple(input_ids.shape)
        expect(steps > 0, where, "the prompt", "hold at least one token", "none")
        model = self._fingerprint.of(self, past is None) if use_cache or past is not None else None
        start, length = None, steps
        if past is not None:
            expect(isinstance(past, LSTMState), where, "past_key_values", "be of this model", type(past).__name__)
            expect_same_model(where, "past_key_values", past.model, model)
            expect_rows(where, rows, len(past.hidden))
            past, length = past.recordable(), past.length + steps
            parts = (past.hidden, past.cell)
            start = tuple(part.to(self.norm.weight).transpose(0, 1).contiguous() for part in parts)
        real = None if mask is None else new_steps(where, mask, (rows, steps), length - steps, length - steps)
        if position_ids is not None:
            needed = "count on by 1: an LSTM reads a row as one text"
            expect_counting(where, position_ids, (rows, steps), real, past is not None, needed)
        if real is not None:
            falls = bool((real[:, 1:] <= real[:, :-1]).all())
            advice = "Read texts of several lengths one by one, or padded on the right without a cache."
            expect(falls, where, "padding", "follow the tokens", "padding before tokens", advice)
            is_whole = not use_cache or bool(real.all())
            expect(is_whole, where, "padding", "be left out where a state is kept", "padding")
        hidden_input = embedded(where, self.embed_tokens, input_ids)
        # A processor without products in bfloat16 has no such LSTM under autocast.
        with torch.autocast("cpu", enabled=False):
            read, (hidden, cell) = self.layers(hidden_input, start)
        state = LSTMState(hidden.transpose(0, 1), cell.transpose(0, 1), length, model) if use_cache else None
        return self.norm(read), state, real


class LSTMModel(LSTMForCausalLM):
    """The LSTM down to the hidden states: what classifiers stand on. It has the weights of the causal model."""

    @can_return_tuple
    @checks_types
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: LSTMState | None = None,
        use_cache: bool | None = None,
        **keywords: Any,
    ) -> BaseModelOutputWithPast:
        """`last_hidden_state` (B, T, hidden); arguments as those of the causal model."""
        hidden, state, _ = self._read(input_ids, attention_mask, past_key_values, use_cache, None, keywords)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=state)
