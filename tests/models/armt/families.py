"""Tiny models of the families of transformers, by the sizes that their configurations know."""

import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedModel

NONE = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
SIZES = {
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


def tiny(family: str) -> PreTrainedModel:
    """The same model each time, in evaluation mode."""
    default = CONFIG_MAPPING[family]()
    known = {*default.to_dict(), *default.attribute_map}
    sizes = {name: value for name, value in SIZES.items() if name in known}
    if "layer_types" in default.to_dict():  # Mamba's is a property that nobody sets
        sizes["layer_types"] = [default.layer_types[0], default.layer_types[-1]]
    torch.manual_seed(2)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes)).eval()
