"""Checkpoints of the published nanoMosaics code."""

import math

from torch import Tensor

from tessera.interop.published import REFERENCES, Published, check_arguments, expect_one, filled, precise
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM

SOURCE = "nano-mosaics"
ARGUMENTS = {
    "block_size": 1024,
    "vocab_size": 50304,
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "dropout": 0.0,
    "pmem_size": 2688,
    "pmem_count": 1,
    "bias": True,
    "leaky_cuda": False,
}
LARGEST_LOG_SCALE = math.log(65535)  # the published clamp; for persistent memories the factor 2 stands inside it
KEY_NORM_EPS = 1e-10


@REFERENCES.register(SOURCE)
def nano_mosaics(state_dict: dict[str, Tensor], arguments: dict) -> MemoryMosaicForCausalLM:
    """`MemoryMosaic` of facebookresearch/MemoryMosaics, nanoMosaics."""
    arguments = check_arguments(SOURCE, arguments, ARGUMENTS)
    config = MemoryMosaicConfig(
        vocab_size=arguments["vocab_size"],
        hidden_size=arguments["n_embd"],
        num_layers=arguments["n_layer"],
        num_heads=arguments["n_head"],
        num_persistent_slots=arguments["pmem_size"],
        num_persistent_banks=arguments["pmem_count"],
        bias=arguments["bias"],
        weight_dropout=arguments["dropout"],
        residual_dropout=arguments["dropout"],
        key_norm_eps=KEY_NORM_EPS,
    )
    return filled(SOURCE, MemoryMosaicForCausalLM, config, convert(state_dict, arguments))


def _is_constant(name: str, tensor: Tensor) -> bool:
    return name.endswith("leaky_avg.coef") or (name.endswith("attn.bias") and tensor.dim() == 4)


def convert(state_dict: dict[str, Tensor], arguments: dict) -> dict[str, Tensor]:
    """Our parameters as a differentiable function of the published ones."""
    published = Published(SOURCE, state_dict, _is_constant)
    embedding = published.take("mosaic.wte.weight", arguments["vocab_size"], arguments["n_embd"])
    expect_one(SOURCE, "lm_head.weight", published.take("lm_head.weight"), "mosaic.wte.weight", embedding)
    result = {"model.embed_tokens.weight": embedding}
    result |= published.affine("mosaic.ln_f", "model.norm", arguments["bias"])
    for index in range(arguments["n_layer"]):
        block, layer = f"mosaic.h.{index}", f"model.layers.{index}"
        result |= published.affine(f"{block}.ln_1", f"{layer}.contextual_norm", arguments["bias"])
        result |= published.affine(f"{block}.ln_2", f"{layer}.persistent_norm", arguments["bias"])
        scale = _memory(published, result, f"{block}.attn", f"{layer}.contextual", arguments["bias"])
        result[f"{layer}.contextual.bandwidth.log_inverse_bandwidth"] = 2 * scale.clamp(max=LARGEST_LOG_SCALE)
        scale = _memory(published, result, f"{block}.mlp", f"{layer}.persistent", arguments["bias"])
        result[f"{layer}.persistent.bandwidth.log_inverse_bandwidth"] = (2 * scale).clamp(max=LARGEST_LOG_SCALE)
        values, ours = f"{block}.attn.v_featurizer", f"{layer}.contextual"
        result |= published.affine(f"{values}.W_v", f"{ours}.value_extractor.projection", arguments["bias"])
        result[f"{ours}.value_extractor.mix"] = published.take(f"{values}.coef").flatten()
        result[f"{ours}.output.log_scale"] = 10 * precise(published.take(f"{values}.val_scale").flatten())
        result[f"{layer}.persistent.output.log_scale"] = 10 * precise(
            published.take(f"{block}.mlp.out_scale").flatten()
        )
        for ours, theirs in (("slot_keys", "P_k"), ("slot_values", "P_v")):
            result[f"{layer}.persistent.{ours}"] = published.take(f"{block}.mlp.{theirs}").squeeze(1)
    published.finish()
    return result


def _memory(published: Published, result: dict, theirs: str, ours: str, bias: bool) -> Tensor:
    """Keys and combining layer of either memory; returns ten times its key scale parameter, (H,)."""
    keys = f"{theirs}.k_featurizer"
    result |= published.affine(f"{keys}.W_k", f"{ours}.key_extractor.projection", bias)
    rate = published.take(f"{keys}.leaky_avg.leaky_key_beta").flatten()
    result[f"{ours}.key_extractor.decay_rate"] = 10 * precise(rate)
    result |= published.affine(f"{theirs}.c_proj", f"{ours}.output.projection", bias)
    return 10 * precise(published.take(f"{keys}.key_scale").flatten())
