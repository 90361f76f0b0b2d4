"""How large a model is and what a token costs, without allocating its weights."""

from typing import TYPE_CHECKING

import torch

from tessera.errors import TesseraError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def count_parameters(config: "PreTrainedConfig") -> int:
    """Parameters of the causal language model that `config` describes; shared ones count once."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_token(config: "PreTrainedConfig", context: int, with_values: bool = True) -> int:
    """Floating-point operations of the forward pass per token with `context` tokens before it.

    2 for every parameter that multiplies (all but an input embedding of its own), and for each memory of each layer 2
    per key and width for the similarities and 2 for the weighted values; a short-term memory has at most its span.

    Without `with_values` the products of weights with values are left out. That is the rule of the v2 paper's tables
    (`2 N + 2 L n d`, Kaplan et al. 2020, as told by Casson 2023): it alone gives their 18.9 B (large), 15.6 B (without
    long-term memory) and 16.7 B (transformer) at context 256.
    """
    used = count_parameters(config)
    if not config.tie_word_embeddings:
        used -= config.vocab_size * config.hidden_size
    keys = sum(pairs_per_query(config, context))
    return 2 * used + (4 if with_values else 2) * config.num_hidden_layers * config.hidden_size * keys


def pairs_per_query(config: "PreTrainedConfig", context: int) -> list[int]:
    """The largest number of pairs that each kind of memory (or attention) of a layer compares with a query."""
    if config.model_type == "memory_mosaic_v2":
        short = [min(context, config.short_term_span)]
        return [*short, context] if config.long_term_memory else short
    if config.model_type in ("memory_mosaic", "llama", "gpt2", "gpt_neox", "bloom"):
        return [context]
    raise TesseraError(f"flops_per_token: no count is known for models of type {config.model_type!r}.")
