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


def flops_per_token(config: "PreTrainedConfig", context: int) -> int:
    """Floating-point operations of the forward pass per token, by the rule that the v2 paper's tables follow.

    `2 N + 2 L d sum_memories n` (Kaplan et al. 2020, as told by Casson 2023): a multiplication and an addition for
    every parameter but those of the input embedding, plus the products of a query with n keys of width d in each of L
    layers. n is `context`, but at most the span of a short-term memory. The read-out counts. Products of weights with
    values are left out, as in that rule. This gives the paper's 18.9 B (large), 15.6 B (without long-term memory) and
    16.7 B (transformer) at context 256; counting input embeddings or values gives none of them.
    """
    used = count_parameters(config)
    if not config.tie_word_embeddings:
        used -= config.vocab_size * config.hidden_size
    keys = sum(pairs_per_query(config, context))
    return 2 * used + 2 * config.num_hidden_layers * config.hidden_size * keys


def pairs_per_query(config: "PreTrainedConfig", context: int) -> list[int]:
    """The largest number of pairs that each kind of memory (or attention) of a layer compares with a query."""
    if config.model_type == "memory_mosaic_v2":
        short = [min(context, config.short_term_span)]
        return [*short, context] if config.long_term_memory else short
    if config.model_type in ("memory_mosaic", "llama", "gpt2", "gpt_neox", "bloom"):
        return [context]
    raise TesseraError(f"flops_per_token: no count is known for models of type {config.model_type!r}.")


def describe(config: "PreTrainedConfig", context: int = 256) -> dict[str, object]:
    """What `tessera info` reports of a configuration; with long-term memories, also what is left without them."""
    facts: dict[str, object] = {
        "model_type": config.model_type,
        "parameters": count_parameters(config),
        "context": context,
        "flops_per_token": flops_per_token(config, context),
    }
    if getattr(config, "long_term_memory", False):
        lacking = type(config)(**{**config.to_diff_dict(), "long_term_memory": False})
        facts["parameters_without_long_term_memory"] = count_parameters(lacking)
        facts["flops_per_token_without_long_term_memory"] = flops_per_token(lacking, context)
    return facts
