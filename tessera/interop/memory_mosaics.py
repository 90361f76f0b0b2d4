"""Checkpoints of Memory Mosaics and of the sparse-kernel code: the plain modules, and what the training scripts write.

The plain `memory_mosaics.py` modules differ in the contextual memories' kernel alone. Of the scripts'
`memory_mosaics_eft.py`, the first repository's module computes what its plain one does, under other names. That of the
sparse-kernel repository differs; with s = exp(min(10 b, 5)), k_T the weighted mean of the key candidates and c_i the
cosine of query and key:

    keys, values          k / (|k| + 1e-6), the same for values, whose scale is exp(min(10 b_v, 5))
    persistent output     scale min(exp(10 b_v), 5)
    relumax               [1 + s^2 (c_i - max c)]_+
    norm_relu             [c_i]_+ over a sum of at least 1e-6: bandwidth sqrt(2), whatever s
    topK_uniform, relumax, norm_relu    see the pairs i <= T - 2: never the newest

Neither of the scripts' modules drops contextual weights in training. All four classes are called `StackAssoMem`; `b` is
a published per-head scalar, which the code multiplies by ten.
"""

import difflib
import math
import re
from functools import partial

import torch
from torch import Tensor

from tessera.base.errors import TesseraError
from tessera.interop.published import REFERENCES, Published, check_arguments, expect_one, filled, precise, refuse
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
# Arguments of the training scripts that say nothing about the function that the module computes. The scripts save all
# their arguments as `model_args`, more than the class takes.
SCRIPT_ARGUMENTS = frozenset(
    "seed out_dir backend device dtype compile eval_interval save_checkpoint_interval log_interval eval_iters dataset "
    "batch_size learning_rate max_iters weight_decay beta1 beta2 grad_clip decay_type warmup_iters lr_decay_iters "
    "min_lr gamma milestone att_shift v_leaky gradient_accumulation_steps".split()
)
SMOOTH_KERNELS = {"softmax": "gaussian"} | {name: name for name in ("epanechnikov", "biweight", "triweight")}
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


LARGEST_LOG_KEY_SCALE = 5.0  # the published clamp of 10 b


class StackAssoMemImporter:
    """From one published class to ours; subclasses say what is theirs. This one is the plain module of
    facebookresearch/MemoryMosaics.
    """

    known = ARGUMENTS
    key_projection = "k_featurizer.conv"
    leak = "leaky_key_beta"
    allowed = {"v_shift": (1,), "k_fe_type": ("linearconv",), "k_kernel_size": (1,)}
    largest_log_value_scale = largest_log_output_scale = math.inf  # of contextual and of persistent memories

    def __init__(self, source: str, state_dict: dict[str, Tensor], arguments: dict):
        self.source = source
        self.arguments = self.checked(arguments)
        self.published = Published(source, state_dict)

    def checked(self, arguments: dict) -> dict:
        """The constructor's arguments, all of them; those of the training script alone are left out."""
        if "method" in arguments and "method" not in self.known:
            other = self.source.replace("memory-mosaics", "sparse-kernel-regression")
            raise TesseraError(
                f"{self.source}: argument 'method' must be left out; got {arguments['method']!r}. "
                f"A checkpoint with a method is one of the source {other!r}."
            )
        own = {name: value for name, value in arguments.items() if name not in SCRIPT_ARGUMENTS}
        return check_arguments(self.source, own, self.known)

    def settings(self) -> dict:
        """Fields of `MemoryMosaicConfig` in which this class differs from the paper's model."""
        return {"weight_dropout": self.arguments["ic_dropout"]}

    def contextual_scores(self, log_key_scale: Tensor) -> dict[str, Tensor]:
        """Parameters of the contextual memories' bandwidth: the slope of the scores in the cosine is s^2."""
        return {"log_inverse_bandwidth": 2 * log_key_scale}

    def leak_rate(self, memory: str) -> Tensor:
        """The published scalar of the leak, (H,)."""
        return self.published.take(f"{memory}.{self.leak}", self.arguments["n_head"])

    def model(self) -> MemoryMosaicForCausalLM:
        """Our model, in eval mode."""
        shared = shared_settings(self.source, self.arguments, self.allowed)
        config = MemoryMosaicConfig(**shared, **self.settings())
        return filled(self.source, MemoryMosaicForCausalLM, config, self.parameters())

    def parameters(self) -> dict[str, Tensor]:
        """Our parameters as a differentiable function of the published ones; each tensor must be met once."""
        arguments, published = self.arguments, self.published
        shape = (arguments["vocab_size"], arguments["n_embd"])
        result = {"model.embed_tokens.weight": published.take("emb.weight", *shape)}
        head = published.take("head.weight", *shape)
        if arguments["weight_tying"]:
            expect_one(self.source, "head.weight", head, "emb.weight", result["model.embed_tokens.weight"])
        else:
            result["lm_head.weight"] = head
        self._affine(result, "ln_out", "model.norm")
        for index in range(arguments["n_layer"]):
            block, layer = f"blocks.{index}", f"model.layers.{index}"
            self._affine(result, f"{block}.ln1", f"{layer}.contextual_norm")
            self._contextual(result, f"{block}.attn", f"{layer}.contextual")
            if not arguments["attn_only"]:
                self._affine(result, f"{block}.ln2", f"{layer}.persistent_norm")
                self._persistent(result, f"{block}.pmem", f"{layer}.persistent")
        published.finish()
        return result

    def _contextual(self, result: dict, theirs: str, ours: str) -> None:
        log_key_scale, log_scale = self._memory(result, theirs, ours)
        for name, tensor in self.contextual_scores(log_key_scale).items():
            result[f"{ours}.bandwidth.{name}"] = tensor
        result[f"{ours}.output.log_scale"] = log_scale.clamp(max=self.largest_log_value_scale)
        self._values(result, f"{theirs}.v_featurizer", f"{ours}.value_extractor")

    def _persistent(self, result: dict, theirs: str, ours: str) -> None:
        log_key_scale, log_scale = self._memory(result, theirs, ours)
        # The query carries the squared key scale, the slots none.
        result[f"{ours}.bandwidth.log_inverse_bandwidth"] = 2 * log_key_scale
        result[f"{ours}.output.log_scale"] = log_scale.clamp(max=self.largest_log_output_scale)
        for name, prefix in (("slot_keys", "M_k"), ("slot_values", "M_v")):
            banks = range(self.arguments["pmem_count"])
            tensors = [self.published.take(f"{theirs}.pmem.{prefix}{bank}") for bank in banks]
            result[f"{ours}.{name}"] = torch.cat(tensors)

    def _memory(self, result: dict, theirs: str, ours: str) -> tuple[Tensor, Tensor]:
        """Keys and combining layer of either memory; returns log s = min(10 b, 5) and 10 b of its other scalar."""
        take = self.published.take
        weight = take(f"{theirs}.{self.key_projection}.weight")
        if weight.dim() == 3:  # a convolution of width one: a wider one keeps its axis, which fits nothing
            weight = weight.squeeze(-1)
        result[f"{ours}.key_extractor.projection.weight"] = weight
        if self.arguments["bias"]:
            result[f"{ours}.key_extractor.projection.bias"] = take(f"{theirs}.{self.key_projection}.bias")
        result[f"{ours}.key_extractor.decay_rate"] = 10 * precise(self.leak_rate(theirs))
        self._affine(result, f"{theirs}.c_proj", f"{ours}.output.projection")
        log_key_scale = (10 * precise(take(f"{theirs}.kernel_beta"))).clamp(max=LARGEST_LOG_KEY_SCALE)
        return log_key_scale, 10 * precise(take(f"{theirs}.value_beta"))

    def _values(self, result: dict, theirs: str, ours: str) -> None:
        if self.arguments["v_fe_type"] == "lowrlinearconv":
            self._affine(result, f"{theirs}.linear", f"{ours}.projection")
            result[f"{ours}.mix"] = self.published.take(f"{theirs}.coef", self.arguments["n_head"])
            return
        sizes = [self.arguments[name] for name in ("n_embd", "n_embd", "v_kernel_size")]
        weight = self.published.take(f"{theirs}.conv.weight", *sizes)
        first = weight[:, :, 0]
        # A width of one with a shift of one reads x_{T+1} alone.
        result[f"{ours}.projection.weight"] = first if weight.shape[2] == 2 else torch.zeros_like(first)
        result[f"{ours}.next_projection.weight"] = weight[:, :, -1]
        if self.arguments["bias"]:
            result[f"{ours}.projection.bias"] = self.published.take(f"{theirs}.conv.bias")

    def _affine(self, result: dict, theirs: str, ours: str) -> None:
        result |= self.published.affine(theirs, ours, self.arguments["bias"])


class SparseKernelImporter(StackAssoMemImporter):
    """`StackAssoMem(method=...)` of deep-spin/sparse_kernel_regression: ReLUmax and normalised ReLU apply the key scale
    s twice, slope s^4.
    """

    known = {**ARGUMENTS, "method": "softmax"}

    def settings(self) -> dict:
        """The kernel that `method` names; normalised ReLU has an intercept of its own."""
        method = self.arguments["method"]
        kernel = kernel_of_method(self.source, method)
        return {**super().settings(), "kernel": kernel, "free_intercept": method == "norm_relu"}

    def contextual_scores(self, log_key_scale: Tensor) -> dict[str, Tensor]:
        """ReLUmax: slope s^4. Normalised ReLU: intercept `1 - 2 s^2` too, refused where it is positive."""
        method = self.arguments["method"]
        if method not in ("relumax", "norm_relu"):
            return super().contextual_scores(log_key_scale)
        scores = {"log_inverse_bandwidth": 4 * log_key_scale}
        if method == "relumax":
            return scores
        offset = 1 - 2 * torch.exp(2 * log_key_scale)
        if bool((offset > 0).any()):
            raise TesseraError(
                f"{self.source}: this checkpoint lets the future leak: the published norm_relu gives masked (future) "
                "pairs the weight 1 - 2 exp(20 kernel_beta), which is positive for some head (kernel_beta < -0.0347; "
                f"here down to {log_key_scale.min().item() / 10:.4f}). No memory of this library sees the future, so "
                "it is refused."
            )
        return {**scores, "intercept": offset}


NORM_EPS = 1e-6
SMALLEST_SUM = 1e-6


class TrainingScriptImporter(StackAssoMemImporter):
    """`memory_mosaics_eft.StackAssoMem`, which `train_memory_mosaics.py` of facebookresearch/MemoryMosaics trains."""

    key_projection = "leaky_average.linear"
    leak = "leaky_average.leaky_beta_w_under"
    allowed = {"v_shift": (1,)}  # k_fe_type and k_kernel_size are ignored there

    def settings(self) -> dict:
        """The library class's, without dropout on the weights of contextual memories."""
        return {**super().settings(), "contextual_weight_dropout": 0.0}

    def leak_rate(self, memory: str) -> Tensor:
        """The rate of `memory`, which the file holds twice; an error where the two differ."""
        rate = super().leak_rate(memory)
        again = self.published.take(f"{memory}.leaky_average.leaky_beta_u_under", *rate.shape)
        names = [f"{memory}.leaky_average.leaky_beta_{part}_under" for part in "wu"]
        expect_one(self.source, names[0], rate, names[1], again)
        return rate


class SparseKernelTrainingImporter(TrainingScriptImporter):
    """`memory_mosaics_eft.StackAssoMem(method=...)`, which the scripts of deep-spin/sparse_kernel_regression train."""

    known = {**ARGUMENTS, "method": None}
    largest_log_value_scale, largest_log_output_scale = 5.0, math.log(5.0)

    def checked(self, arguments: dict) -> dict:
        """These scripts' arguments are not all known: others are ignored unless they look like one of the class."""
        own = {
            name: value
            for name, value in arguments.items()
            if name in self.known or difflib.get_close_matches(name, self.known, n=1, cutoff=0.8)
        }
        return super().checked(own)

    def settings(self) -> dict:
        """The kernel, with the sum, delay and norm that these scripts give it."""
        method = self.arguments["method"]
        if method is None:
            raise TesseraError(f"{self.source}: argument 'method' is missing; it names the kernel.")
        kernel = kernel_of_method(self.source, method)
        if method == "norm_relu":
            kernel = {"name": kernel, "min_total": SMALLEST_SUM}
        misses_newest = method in ("relumax", "norm_relu") or method.endswith("uniform")
        return {
            **super().settings(),
            "kernel": kernel,
            "contextual_delay": 2 if misses_newest else 1,
            "mean_keys": True,
            "key_norm_eps": NORM_EPS,
            "persistent_key_norm_eps": 0.0,
        }

    def contextual_scores(self, log_key_scale: Tensor) -> dict[str, Tensor]:
        """Normalised ReLU: slope 1 and intercept 0, whatever was learned."""
        if self.arguments["method"] == "norm_relu":
            # Slope 2 beta = 1 and intercept 1 - 2 beta = 0.
            return {"log_inverse_bandwidth": torch.full_like(log_key_scale.detach(), math.log(0.5))}
        return super().contextual_scores(log_key_scale)


def _imported(
    importer: type[StackAssoMemImporter], source: str, state_dict: dict[str, Tensor], arguments: dict
) -> MemoryMosaicForCausalLM:
    return importer(source, state_dict, arguments).model()


for name, importer in {
    "memory-mosaics": StackAssoMemImporter,
    "sparse-kernel-regression": SparseKernelImporter,
    "memory-mosaics-eft": TrainingScriptImporter,
    "sparse-kernel-regression-eft": SparseKernelTrainingImporter,
}.items():
    REFERENCES.add(name, partial(_imported, importer, name))
