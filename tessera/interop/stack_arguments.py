"""The constructor's arguments of the published classes called `StackAssoMem`, as settings of our model."""

import math
import re

from tessera.interop.published import refuse

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
# Arguments of the training scripts that say nothing about the function that the module computes. The scripts save all
# their arguments as `model_args`, more than the class takes.
SCRIPT_ARGUMENTS = frozenset(
    "seed out_dir backend device dtype compile eval_interval save_checkpoint_interval log_interval eval_iters dataset "
    "batch_size learning_rate max_iters weight_decay beta1 beta2 grad_clip decay_type warmup_iters lr_decay_iters "
    "min_lr gamma milestone att_shift v_leaky gradient_accumulation_steps".split()
)
SMOOTH_KERNELS = {
    "softmax": "gaussian",
    "epanechnikov": "epanechnikov",
    "biweight": "biweight",
    "triweight": "triweight",
}
VALUE_EXTRACTORS = {("lowrlinearconv", 2): "mixed", ("linearconv", 2): "convolution", ("linearconv", 1): "convolution"}


def shared_settings(source: str, arguments: dict, allowed: dict[str, tuple]) -> dict:
    """Fields of `MemoryMosaicConfig` that all four classes share; `allowed` are the values that we can express."""
    for name, values in allowed.items():
        if arguments[name] not in values:
            raise refuse(source, name, " or ".join(map(repr, values)), arguments[name])
    value = (arguments["v_fe_type"], arguments["v_kernel_size"])
    if value not in VALUE_EXTRACTORS:
        raise refuse(source, "(v_fe_type, v_kernel_size)", " or ".join(map(str, VALUE_EXTRACTORS)), value)
    return {
        "vocab_size": arguments["vocab_size"],
        "hidden_size": arguments["n_embd"],
        "num_layers": arguments["n_layer"],
        "num_heads": arguments["n_head"],
        "num_persistent_slots": 0 if arguments["attn_only"] else arguments["pmem_size"],
        "num_persistent_banks": arguments["pmem_count"],
        "value_extractor": VALUE_EXTRACTORS[value],
        "bias": arguments["bias"],
        "norm_position": "pre" if arguments["pre_ln"] else "post",
        "residual_dropout": arguments["hd_dropout"],
        "logit_scale": 1 / math.sqrt(arguments["n_embd"]),
        "tie_word_embeddings": arguments["weight_tying"],
        "initialization": "fan_in",
    }


def kernel_of_method(source: str, method: object) -> str | dict:
    """Our kernel for the `method` argument of the sparse-kernel code."""
    if method in SMOOTH_KERNELS:
        return SMOOTH_KERNELS[method]
    if method == "relumax":
        return {"name": "relumax", "margin": 1.0}
    if method == "norm_relu":
        return "normalized_relu"
    nearest = re.fullmatch(r"top(\d+)(?:_(softmax)|_?(uniform))", str(method))
    if nearest is None or int(nearest[1]) < 1:
        known = [*SMOOTH_KERNELS, "relumax", "norm_relu", "topK_softmax", "topK_uniform"]
        raise refuse(source, "method", " or ".join(known), method)
    return {"name": "knn", "base": "gaussian" if nearest[2] else "uniform", "k": int(nearest[1])}
