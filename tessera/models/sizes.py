"""How large a model is and what a token costs, without allocating its weights."""

import math
import re

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from tessera.base.errors import expect

WITHOUT_ATTENTION = ("linear_attention", "mamba", "conv", "moe", "mlp")  # kinds of layers
WITH_A_STATE = ("linear_attention", "mamba", "hybrid")
# A field by which a configuration with such layers is known -> the fields whose product is how many numbers the state
# of a layer has, and the products of a token with each: to write it, to read it, and, by the delta rule, to look up
# what it replaces.
_HEADS = ("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
STATES: dict[str, tuple[tuple[str, ...], int]] = {
    "linear_key_head_dim": (_HEADS, 3),
    "linear_head_dim": (("linear_num_heads", "linear_head_dim", "linear_head_dim"), 3),
    "mamba_d_head": (("mamba_n_heads", "mamba_d_head", "mamba_d_state"), 2),
    "ssm_state_size": (("mamba_num_heads", "mamba_head_dim", "ssm_state_size"), 2),
    "mamba_dt_rank": (("mamba_expand", "hidden_size", "mamba_d_state"), 2),
    "linear_attn_alpha_factor": (("num_attention_heads", "head_dim", "head_dim"), 2),
    "lru_width": (("lru_width",), 1),
}
# Parameters that read images, sounds and encoded texts, of which a text alone has none.
NOT_OF_TEXT = re.compile(r"encoder_attn|cross_?attn|crossattention|projector|vision|visual|image|audio")
# Fields of configurations whose arithmetic the rules for transformers do not have.
UNCOUNTED = dict.fromkeys(("index_topk", "index_topk_blocks"), "keys that are chosen for each query")
UNCOUNTED |= {"H_cycles": "layers in loops", "lambda_std_dev": "differences of two attentions"}
UNCOUNTED |= {"num_mem_blocks": "an adapter for each place of a layer"}
UNCOUNTED |= {"rel_extent": "a position bias of its own", "prompt_length": "a prompt before each text"}
UNCOUNTED["is_heterogeneous"] = "layers of different sizes"
ADVICE = "Its configuration may answer by a method pairs_per_query(context)."


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
    each memory of each layer 2 per key and width for the similarities and 2 for the weighted values. Of linear
    attention and state spaces 2 for each number of the state to write it and 2 to read it (the delta rule: 2 more).

    Without `with_values` the products of weights with values are left out. That is the rule of the v2 paper's tables
    (`2 N + 2 L n d`, Kaplan et al. 2020, as in Casson 2023): it alone gives their 18.9 B (large), 15.6 B (without
    long-term memory) and 16.7 B (transformer) at context 256.
    """
    pairs = sum(pairs_per_query(config, context))  # first: it refuses what the rules do not count
    keys, values = recall_widths(config)
    per_token = multiplying_weights(meta_model(config)) + state_products(config)
    return 2 * per_token + 2 * (keys + with_values * values) * pairs


def flops_per_sequence(config: PreTrainedConfig, length: int) -> int:
    """Floating-point operations of the forward pass over `length` tokens: `flops_per_token` behind 0, 1, 2, ...

    Of very long sequences some 100,000 tokens, equally far apart, stand for the others.
    """
    contexts = range(0, length, 1 + length // 100_000)
    pairs = sum(sum(pairs_per_query(config, context)) for context in contexts) * length // max(1, len(contexts))
    per_token = multiplying_weights(meta_model(config)) + state_products(config)
    return 2 * per_token * length + 2 * sum(recall_widths(config)) * pairs


def state_products(config: PreTrainedConfig) -> int:
    """Products of a token with the states of a hybrid's layers of linear attention and state spaces: see `STATES`.

    Raises `TesseraError` for layers whose state has another form.
    """
    text = config.get_text_config()
    layers = sum(kind in WITH_A_STATE for kind in getattr(text, "layer_types", None) or ())
    if not layers:
        return 0
    known = next((rule for field, rule in STATES.items() if getattr(text, field, None) is not None), None)
    needed = "have states whose size is known"
    expect(known is not None, "flops_per_token", "config", needed, config.model_type, ADVICE)
    fields, times = known or ((), 0)
    sizes = [head_width(text) if field == "head_dim" else getattr(text, field) for field in fields]
    return layers * times * math.prod(sizes)


def head_width(text: PreTrainedConfig) -> int:
    """Numbers in a key of a head of attention."""
    return getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads


def recall_widths(config: PreTrainedConfig) -> tuple[int, int]:
    """The width of the keys of all heads of all layers, and of their values; 0 without heads."""
    text = config.get_text_config()
    if not getattr(text, "num_attention_heads", None):
        return 0, 0
    heads = num_layers(config) * text.num_attention_heads
    if getattr(text, "kv_lora_rank", None):  # latent attention (DeepSeek): `head_dim` is that of the rotated part
        return heads * (text.qk_nope_head_dim + text.qk_rope_head_dim), heads * text.v_head_dim
    return heads * head_width(text), heads * head_width(text)


def num_layers(config: PreTrainedConfig) -> int:
    """The layers of the language model; `num_hidden_layers` of BART are those of its encoder."""
    text = config.get_text_config()
    return getattr(text, "decoder_layers", None) or text.num_hidden_layers


def cached_numbers(config: PreTrainedConfig) -> int:
    """Numbers that a layer of attention keeps of a token: key and value per key-value head, or what both come of."""
    text = config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        return text.kv_lora_rank + text.qk_rope_head_dim
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if getattr(text, "multi_query", False) and not getattr(text, "new_decoder_architecture", False):  # Falcon
        heads = 1
    return 2 * heads * head_width(text)


def state_bytes_per_token(model: PreTrainedModel, dtype: torch.dtype) -> float:
    """Bytes of a token in a state of `dtype`, all layers together: what the model's method of this name says.

    Without one: what layers of attention keep, of which those with sliding windows do not grow with the context.
    """
    if hasattr(model, "state_bytes_per_token"):
        return model.state_bytes_per_token(dtype)
    config = model.config.get_text_config()
    return num_layers(config) * attention_shares(config)[0] * cached_numbers(config) * dtype.itemsize


def multiplying_weights(model: PreTrainedModel) -> int:
    """Numbers in the matrices that a token is multiplied with; of experts, in those that it is sent to.

    A layer that stands in several places (Zamba) counts in each; towers for images and sounds do not.
    """
    text, modules = model.config.get_text_config(), list(model.modules())
    kinds = (model.config.model_type, text.model_type)
    towers = [part for part in modules if isinstance(part, PreTrainedModel) and part.config.model_type not in kinds]
    unused = {weight for tower in towers for weight in tower.parameters()}
    unused |= {module.weight for module in modules if isinstance(module, nn.Embedding)}
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts = next((number for name in names if (number := getattr(text, name, None))), 1)
    used = min(experts, getattr(text, "num_experts_per_tok", None) or getattr(text, "moe_topk", None) or experts)
    matrices = 0
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight.dim() >= 2 and weight not in unused and not NOT_OF_TEXT.search(name):
            is_expert = ".experts." in name or (weight.dim() == 3 and len(weight) == experts)
            matrices += weight.numel() * used // experts if is_expert else weight.numel()
    read_out = model.get_output_embeddings()
    is_tied = read_out is not None and read_out.weight in unused
    return matrices + (read_out.weight.numel() if is_tied else 0)


def pairs_per_query(config: PreTrainedConfig, context: int) -> list[int]:
    """The largest number of pairs that each kind of memory (or attention) of a layer compares with a query.

    A configuration answers by its own `pairs_per_query(context)`; attention sees the whole context, in layers with a
    sliding window that alone, in linear layers none: the mean over layers. Raises `TesseraError` for a model that has
    neither, or what the rules do not count.
    """
    if hasattr(config, "pairs_per_query"):
        return config.pairs_per_query(context)
    text = config.get_text_config()
    unknown = ", ".join(meaning for name, meaning in UNCOUNTED.items() if getattr(text, name, None))
    expect(not unknown, "flops_per_token", "config", f"be without {unknown}", config.model_type, ADVICE)
    has_attention = bool(getattr(text, "num_attention_heads", None))
    expect(has_attention, "flops_per_token", "config", "be of a model with attention", config.model_type, ADVICE)
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
