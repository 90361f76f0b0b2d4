"""Checkpoints of the published Memory Mosaics code, and of the sparse-kernel code that is derived from it.

The two modules differ in the contextual memories' kernel alone. What is mapped and why stands in the formulas of the
functions below; `b` is the published per-head scalar, which the code multiplies by ten before use.
"""

import math
import re

import torch
from torch import Tensor

from tessera.errors import TesseraError
from tessera.interop.published import Published, check_arguments, precise, refuse
from tessera.interop.registry import REFERENCES
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM

ARGUMENTS = {
    "vocab_size": None,
    "n_head": 12,
    "n_embd": 768,
    "n_layer": 12,
    "v_shift": 1,
    "block_size": 512,
    "k_fe_type": "linearconv",
    "v_fe_type": "lowrlinearconv",
    "k_kernel_size": 1,
    "v_kernel_size": 2,
    "ic_dropout": 0.05,
    "hd_dropout": 0.05,
    "bias": False,
    "pmem_count": 1,
    "pmem_size": 2688,
    "pre_ln": True,
    "weight_tying": True,
    "skip_tokens": 0,
    "attn_only": False,
    "config": None,
}
LARGEST_LOG_KEY_SCALE = 5.0  # the published clamp of 10 b
SMOOTH_KERNELS = {
    "softmax": "gaussian",
    "epanechnikov": "epanechnikov",
    "biweight": "biweight",
    "triweight": "triweight",
}


@REFERENCES.register("memory-mosaics")
def memory_mosaics(state_dict: dict[str, Tensor], arguments: dict) -> MemoryMosaicForCausalLM:
    """`StackAssoMem` of facebookresearch/MemoryMosaics."""
    return _rebuild("memory-mosaics", state_dict, check_arguments("memory-mosaics", arguments, ARGUMENTS), "softmax")


@REFERENCES.register("sparse-kernel-regression")
def sparse_kernel_regression(state_dict: dict[str, Tensor], arguments: dict) -> MemoryMosaicForCausalLM:
    """`StackAssoMem(method=...)` of deep-spin/sparse_kernel_regression."""
    source = "sparse-kernel-regression"
    arguments = check_arguments(source, arguments, {**ARGUMENTS, "method": "softmax"})
    return _rebuild(source, state_dict, arguments, arguments["method"])


def _rebuild(source: str, state_dict: dict[str, Tensor], arguments: dict, method: str) -> MemoryMosaicForCausalLM:
    config = configuration(source, state_dict, arguments, method)
    with torch.device("meta"):
        model = MemoryMosaicForCausalLM(config)
    parameters = {name: tensor.clone() for name, tensor in convert(source, state_dict, arguments, method).items()}
    model.load_state_dict(parameters, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def configuration(source: str, state_dict: dict[str, Tensor], arguments: dict, method: str) -> MemoryMosaicConfig:
    """Our configuration of the published constructor's arguments."""
    for name, allowed in (("v_shift", (1,)), ("k_fe_type", ("linearconv",)), ("k_kernel_size", (1,))):
        if arguments[name] not in allowed:
            raise refuse(source, name, " or ".join(map(repr, allowed)), arguments[name])
    extractors = {("lowrlinearconv", 2): "mixed", ("linearconv", 2): "convolution", ("linearconv", 1): "convolution"}
    value = (arguments["v_fe_type"], arguments["v_kernel_size"])
    if value not in extractors:
        raise refuse(source, "(v_fe_type, v_kernel_size)", " or ".join(map(str, extractors)), value)
    return MemoryMosaicConfig(
        vocab_size=arguments["vocab_size"],
        hidden_size=arguments["n_embd"],
        num_layers=arguments["n_layer"],
        num_heads=arguments["n_head"],
        kernel=_kernel(source, method),
        free_intercept=method == "norm_relu",
        num_persistent_slots=0 if arguments["attn_only"] else arguments["pmem_size"],
        num_persistent_banks=arguments["pmem_count"],
        value_extractor=extractors[value],
        bias=arguments["bias"],
        norm_position="pre" if arguments["pre_ln"] else "post",
        weight_dropout=arguments["ic_dropout"],
        residual_dropout=arguments["hd_dropout"],
        logit_scale=1 / math.sqrt(arguments["n_embd"]),
        tie_word_embeddings=arguments["weight_tying"],
    )


def _kernel(source: str, method: str) -> str | dict:
    if method in SMOOTH_KERNELS:
        return SMOOTH_KERNELS[method]
    if method == "relumax":
        return {"name": "relumax", "margin": 1.0}
    if method == "norm_relu":
        return "normalized_relu"
    nearest = re.fullmatch(r"top(\d+)(?:_(softmax)|_?(uniform))", method)
    if nearest is None:
        known = [*SMOOTH_KERNELS, "relumax", "norm_relu", "topK_softmax", "topK_uniform"]
        raise refuse(source, "method", " or ".join(known), method)
    return {"name": "knn", "base": "gaussian" if nearest[2] else "uniform", "k": int(nearest[1])}


def convert(source: str, state_dict: dict[str, Tensor], arguments: dict, method: str) -> dict[str, Tensor]:
    """Our parameters as a differentiable function of the published ones."""
    published = Published(source, state_dict)
    result = {"model.embed_tokens.weight": published.take("emb.weight", arguments["vocab_size"], arguments["n_embd"])}
    if arguments["weight_tying"]:
        published.take("head.weight")
    else:
        result["lm_head.weight"] = published.take("head.weight", arguments["vocab_size"], arguments["n_embd"])
    _affine(published, result, "ln_out", "model.norm", arguments["bias"])
    for index in range(arguments["n_layer"]):
        block, layer = f"blocks.{index}", f"model.layers.{index}"
        _affine(published, result, f"{block}.ln1", f"{layer}.contextual_norm", arguments["bias"])
        scale = _memory(published, result, f"{block}.attn", f"{layer}.contextual", arguments)
        _contextual_scores(source, result, f"{layer}.contextual.bandwidth", scale, method)
        _values(published, result, f"{block}.attn.v_featurizer", f"{layer}.contextual.value_extractor", arguments)
        if not arguments["attn_only"]:
            _affine(published, result, f"{block}.ln2", f"{layer}.persistent_norm", arguments["bias"])
            scale = _memory(published, result, f"{block}.pmem", f"{layer}.persistent", arguments)
            # The query carries the squared key scale, the slots none.
            result[f"{layer}.persistent.bandwidth.log_inverse_bandwidth"] = 2 * scale
            for ours, theirs in (("slot_keys", "M_k"), ("slot_values", "M_v")):
                banks = [published.take(f"{block}.pmem.pmem.{theirs}{bank}") for bank in range(arguments["pmem_count"])]
                result[f"{layer}.persistent.{ours}"] = torch.cat(banks)
    published.finish()
    return result


def _memory(published: Published, result: dict, theirs: str, ours: str, arguments: dict) -> Tensor:
    """Keys and output of either memory; returns the log key scale min(10 b, 5), half a Gaussian's log beta."""
    weight = published.take(f"{theirs}.k_featurizer.conv.weight", arguments["n_embd"], arguments["n_embd"], 1)
    result[f"{ours}.key_extractor.projection.weight"] = weight[:, :, 0]
    if arguments["bias"]:
        result[f"{ours}.key_extractor.projection.bias"] = published.take(f"{theirs}.k_featurizer.conv.bias")
    result[f"{ours}.key_extractor.decay_rate"] = 10 * precise(published.take(f"{theirs}.leaky_key_beta"))
    result[f"{ours}.output.log_scale"] = 10 * precise(published.take(f"{theirs}.value_beta"))
    _affine(published, result, f"{theirs}.c_proj", f"{ours}.output.projection", arguments["bias"])
    return (10 * precise(published.take(f"{theirs}.kernel_beta"))).clamp(max=LARGEST_LOG_KEY_SCALE)


def _contextual_scores(source: str, result: dict, ours: str, scale: Tensor, method: str) -> None:
    """Slope of the scores in the cosine: beta^2 of the key scale; ReLUmax and normalised ReLU apply it twice."""
    twice = method in ("relumax", "norm_relu")
    result[f"{ours}.log_inverse_bandwidth"] = (4 if twice else 2) * scale
    if method == "norm_relu":
        offset = 1 - 2 * torch.exp(2 * scale)
        if bool((offset > 0).any()):
            raise TesseraError(
                f"{source}: this checkpoint lets the future leak: the published norm_relu gives masked (future) pairs "
                f"the weight 1 - 2 exp(20 kernel_beta), which is positive for some head (kernel_beta < -0.0347; here "
                f"down to {scale.min().item() / 10:.4f}). No memory of this library sees the future, so it is refused."
            )
        result[f"{ours}.intercept"] = offset


def _values(published: Published, result: dict, theirs: str, ours: str, arguments: dict) -> None:
    if arguments["v_fe_type"] == "lowrlinearconv":
        _affine(published, result, f"{theirs}.linear", f"{ours}.projection", arguments["bias"])
        result[f"{ours}.mix"] = published.take(f"{theirs}.coef", arguments["n_head"])
        return
    weight = published.take(f"{theirs}.conv.weight")
    # A width of one with a shift of one reads x_{T+1} alone.
    result[f"{ours}.projection.weight"] = weight[:, :, 0] if weight.shape[2] == 2 else torch.zeros_like(weight[:, :, 0])
    result[f"{ours}.next_projection.weight"] = weight[:, :, -1]
    if arguments["bias"]:
        result[f"{ours}.projection.bias"] = published.take(f"{theirs}.conv.bias")


def _affine(published: Published, result: dict, theirs: str, ours: str, bias: bool) -> None:
    result[f"{ours}.weight"] = published.take(f"{theirs}.weight")
    if bias:
        result[f"{ours}.bias"] = published.take(f"{theirs}.bias")
