"""How large a model is and what a token costs, without allocating its weights."""

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tessera.base.errors import expect

WITHOUT_ATTENTION = ("linear_attention", "mamba", "conv", "moe", "mlp")  # kinds of layers


def count_parameters(config: PreTrainedConfig) -> int:
    """Parameters of the causal language model that `config` describes; shared ones count once."""
    return num_parameters(meta_model(config))


def meta_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The causal language model that `config` describes, on the meta device: shapes without numbers."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def num_parameters(model: nn.Module) -> int:
    """Real numbers that `model` learns: shared parameters count once, complex ones twice."""
    return sum(parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in model.parameters())


def flops_per_token(config: PreTrainedConfig, context: int, with_values: bool = True) -> int:
    """Floating-point operations of the forward pass per token with `context` tokens before it.

    2 for every weight that multiplies (an embedding looks up; one tied to the output layer multiplies there), and for
    each memory of each layer 2 per key and width for the similarities and 2 for the weighted values.

    Without `with_values` the products of weights with values are left out. That is the rule of the v2 paper's tables
    (`2 N + 2 L n d`, Kaplan et al. 2020, as in Casson 2023): it alone gives their 18.9 B (large), 15.6 B (without
    long-term memory) and 16.7 B (transformer) at context 256.
    """
    weights = multiplying_weights(meta_model(config))
    keys, values = recall_widths(config)
    return 2 * weights + 2 * (keys + with_values * values) * sum(pairs_per_query(config, context))


def flops_per_sequence(config: PreTrainedConfig, length: int) -> int:
    """Floating-point operations of the forward pass over `length` tokens: `flops_per_token` behind 0, 1, 2, ...

    Of very long sequences some 100,000 tokens, equally far apart, stand for the others.
    """
    contexts = range(0, length, 1 + length // 100_000)
    pairs = sum(sum(pairs_per_query(config, context)) for context in contexts) * length // max(1, len(contexts))
    return 2 * multiplying_weights(meta_model(config)) * length + 2 * sum(recall_widths(config)) * pairs


def recall_widths(config: PreTrainedConfig) -> tuple[int, int]:
    """The width of the keys of all heads of all layers, and of their values; 0 without heads."""
    text = config.get_text_config()
    if not getattr(text, "num_attention_heads", None):
        return 0, 0
    heads = text.num_hidden_layers * text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):  # latent attention (DeepSeek): `head_dim` is that of the rotated part
        return heads * (text.qk_nope_head_dim + text.qk_rope_head_dim), heads * text.v_head_dim
    width = heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    return width, width


def cached_numbers(config: PreTrainedConfig) -> int:
    """Numbers that a layer of attention keeps of a token: key and value per key-value head, or what both come of."""
    text = config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        return text.kv_lora_rank + text.qk_rope_head_dim
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):  # Falcon
        heads = 1
    return 2 * heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def multiplying_weights(model: PreTrainedModel) -> int:
    """Numbers in the matrices that a token is multiplied with; of experts, in those that it is sent to."""
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    weights = {name: w for name, w in model.named_parameters() if w.dim() >= 2 and w not in tables}
    text = model.config.get_text_config()
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = next((number for name in names if (number := getattr(text, name, None))), 1)
    used = min(experts, getattr(text, "num_experts_per_tok", None) or getattr(text, "moe_topk", None) or experts)
    matrices = sum(w.numel() * used // experts if ".experts." in name else w.numel() for name, w in weights.items())
    read_out = model.get_output_embeddings()
    is_tied = read_out is not None and read_out.weight in tables
    return matrices + (read_out.weight.numel() if is_tied else 0)


def pairs_per_query(config: PreTrainedConfig, context: int) -> list[int]:
    """The largest number of pairs that each kind of memory (or attention) of a layer compares with a query.

    A configuration answers by its own `pairs_per_query(context)`; attention sees the whole context, in layers with a
    sliding window that alone, in linear layers none: the mean over layers. Raises `TesseraError` for a model that has
    neither.
    """
    if hasattr(config, "pairs_per_query"):
        return config.pairs_per_query(context)
    has_attention = getattr(config.get_text_config(), "num_attention_heads", None)
    advice = "Its configuration may answer by a method pairs_per_query(context)."
    expect(bool(has_attention), "flops_per_token", "config", "be of a model with attention", config.model_type, advice)
    full, windowed = attention_shares(config)
    return [round(windowed * min(context, attention_window(config) or context) + full * context)]


def attention_window(config: PreTrainedConfig) -> int | None:
    """Tokens that a sliding window sees, or that attention in chunks does; None: there is neither."""
    text = config.get_text_config()
    return getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None)


def attention_shares(config: PreTrainedConfig) -> tuple[float, float]:
    """The shares of a transformer's layers whose attention sees the whole text, and a window or a chunk alone.

    The others of a hybrid (linear attention, state spaces, convolutions, feed-forward) compare no pairs.
    """
    has_window = attention_window(config) is not None
    kinds = getattr(config.get_text_config(), "layer_types", None) or ["sliding" if has_window else "full"]
    windowed = sum(has_window and ("sliding" in kind or "chunked" in kind) for kind in kinds)
    without = sum(kind in WITHOUT_ATTENTION for kind in kinds)
    return 1 - (windowed + without) / len(kinds), windowed / len(kinds)
