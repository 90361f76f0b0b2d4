"""Small models of several families, tiny ones of all of them, and ways to wrap them."""

import copy
from itertools import pairwise

import torch
import transformers as hf

import tessera.armt as armt
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tests.tolerances import close

NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
TEXT = {**NONE, "pad_token_id": 0, "vocab_size": 60}
ROTARY = {**TEXT, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ROTARY |= {"intermediate_size": 48, "max_position_embeddings": 64}
GPT2 = {**TEXT, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MOSAIC = {"vocab_size": 60, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_persistent_slots": 8}
GROUPED = {**ROTARY, "num_key_value_heads": 2, "head_dim": 8}


def maker(model, config, sizes):
    """A function that makes the model of `sizes` and of the changes that it is given."""
    return lambda **changes: model(config(**{**sizes, **changes}))


BASES = {
    "gpt2": maker(hf.GPT2LMHeadModel, hf.GPT2Config, GPT2),
    "gpt_neox": maker(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, ROTARY),
    "llama": maker(hf.LlamaForCausalLM, hf.LlamaConfig, GROUPED),
    "qwen2": maker(hf.Qwen2ForCausalLM, hf.Qwen2Config, {k: v for k, v in GROUPED.items() if k != "head_dim"}),
    "qwen3": maker(hf.Qwen3ForCausalLM, hf.Qwen3Config, GROUPED),
    "memory_mosaic": maker(MemoryMosaicForCausalLM, MemoryMosaicConfig, MOSAIC),
}
WRAPS = {"armt": lambda base, **o: armt.wrap(base, memory_dim=4, **o), "rmt": armt.wrap_rmt, "prmt": armt.wrap_prmt}
KINDS = list(WRAPS)
PAIRS = [(kind, "gpt2") for kind in KINDS] + [("armt", family) for family in BASES if family != "gpt2"]
PAIRS += [("rmt", "llama"), ("prmt", "qwen2"), ("rmt", "memory_mosaic"), ("prmt", "memory_mosaic")]
SOME = [("armt", "gpt2"), ("armt", "memory_mosaic"), ("rmt", "llama"), ("prmt", "qwen2")]

SIZES_BY_NAME = {
    **NONE, "vocab_size": 60, "max_position_embeddings": 64, "is_decoder": True,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "first_k_dense_replace": 1,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip

# Read and generate with an untrained memory as the base does alone, segment by segment.
FAMILIES = """
afmoe apertus arcee aria_text beam bert bert-generation big_bird biogpt bitnet bloom cohere cohere2 cohere2_moe
diffllama doge dots1 electra ernie ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon flex_olmo flint gemma gemma2
gemma3_text gemma4_unified_text glm4_moe gpt-sw3 gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss granite
granite_swa granitemoe granitemoe_swa granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 hyperclovax
inkling2_text inkling_text internlm3 iquestcoder jais2 jetmoe kolibri1 laguna lfm2 llama megatron-bert mellum
mimo_v2_flash minimax minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral moshi mpt nanochat nemotron
olmo olmo2 olmo3 olmo_hybrid olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text
qwen3_moe qwen3_next rembert roformer seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma xglm
""".split()
READERS = "falcon_mamba mamba openai-gpt rwkv".split()  # whose bases have no cache to generate with

BESIDE_SIZES = {
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
    "electra": {"embedding_size": 16},
    "roberta": {"pad_token_id": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "xlnet": {"d_head": 8},
}


def config_of(family, **changes):
    """Of a tiny model, by the sizes that the family's configuration knows."""
    default = hf.CONFIG_MAPPING[family]()
    known = {*default.to_dict(), *default.attribute_map}
    sizes = {name: value for name, value in SIZES_BY_NAME.items() if name in known}
    if "layer_types" in default.to_dict():  # Mamba's is a property that nobody sets
        sizes["layer_types"] = [default.layer_types[0], default.layer_types[-1]]
    return hf.AutoConfig.for_model(family, **{**sizes, **BESIDE_SIZES.get(family, {}), **changes})


def tiny(family, **changes):
    """The same model each time, in evaluation mode."""
    torch.manual_seed(2)
    return hf.AutoModelForCausalLM.from_config(config_of(family, **changes)).eval()


def make(kind="armt", family="gpt2", segment_size=8, num_memory_tokens=3, **options):
    """A small wrapped model in float64 whose memory matters from the start; one that was made before is copied."""
    made = repr((kind, family, segment_size, num_memory_tokens, options))
    if made not in _MADE:
        _MADE[made] = _make(kind, family, segment_size, num_memory_tokens, options), torch.get_rng_state()
    model, state = _MADE[made]
    torch.set_rng_state(state)
    return copy.deepcopy(model)


_MADE = {}


def _make(kind, family, segment_size, num_memory_tokens, options):
    torch.manual_seed(1)
    base = BASES[family]()
    model = WRAPS[kind](base, segment_size=segment_size, num_memory_tokens=num_memory_tokens, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.double().eval()


def is_greedy(model, text, begin):
    """Whether each token of `text` from `begin` on is the likeliest behind those before it, read as a whole."""
    return torch.equal(text[:, begin:], model(text).logits[:, begin - 1 : -1].argmax(-1))


def tokens(batch, steps, vocabulary=60):
    """Random tokens, none of them the padding 0."""
    return torch.randint(1, vocabulary, (batch, steps))


def same_memory(actual, expected):
    close(actual.tensors(), expected.tensors())


def steps_are_the_whole(model, ids, borders):
    """Read from border to border with a cache, and at once."""
    at_once, actual, cache = model(ids), [], None
    for start, end in pairwise(borders):
        output = model(ids[:, start:end], past_key_values=cache, use_cache=end < ids.shape[1])
        cache = output.past_key_values
        actual.append(output.logits)
    close(torch.cat(actual, 1), at_once.logits)
    # Without use_cache the last segment was closed, as in the whole reading.
    same_memory(output.memory_state, at_once.memory_state)
