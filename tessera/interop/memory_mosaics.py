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

Neither of the scripts' modules drops contextual weights in training.
"""

import difflib
import math

import torch
from torch import Tensor

from tessera.base.errors import TesseraError
from tessera.interop.layouts import REFERENCES
from tessera.interop.stack_asso_mem import ARGUMENTS, StackAssoMemImporter, kernel_of_method
from tessera.models.memory_mosaic import MemoryMosaicForCausalLM


class SparseKernelImporter(StackAssoMemImporter):
    """`StackAssoMem(method=...)`: ReLUmax and normalised ReLU apply the key scale s twice, slope s^4."""

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


@REFERENCES.register("memory-mosaics")
def memory_mosaics(state_dict: dict[str, Tensor], arguments: dict) -> MemoryMosaicForCausalLM:
    """`StackAssoMem` of facebookresearch/MemoryMosaics."""
    return StackAssoMemImporter("memory-mosaics", state_dict, arguments).model()


@REFERENCES.register("sparse-kernel-regression")
def sparse_kernel_regression(state_dict: dict[str, Tensor], arguments: dict) -> MemoryMosaicForCausalLM:
    """`StackAssoMem(method=...)` of deep-spin/sparse_kernel_regression."""
    return SparseKernelImporter("sparse-kernel-regression", state_dict, arguments).model()


NORM_EPS = 1e-6
SMALLEST_SUM = 1e-6
LARGEST_LOG_VALUE_SCALE = 5.0
LARGEST_OUTPUT_SCALE = 5.0


class TrainingScriptImporter(StackAssoMemImporter):
    """`memory_mosaics_eft.StackAssoMem` of the Memory Mosaics repository."""

    key_projection = "leaky_average.linear"
    leak = "leaky_average.leaky_beta_w_under"
    allowed = {"v_shift": (1,)}  # k_fe_type and k_kernel_size are ignored there

    def settings(self) -> dict:
        """The library class's, without dropout on the weights of contextual memories."""
        return {**super().settings(), "contextual_weight_dropout": 0.0}

    def projection_weight(self, weight: Tensor) -> Tensor:
        """As it is: a linear layer's, not a convolution's."""
        return weight

    def leak_rate(self, memory: str) -> Tensor:
        """The rate of `memory`, which the file holds twice; an error where the two differ."""
        rate = super().leak_rate(memory)
        again = self.published.take(f"{memory}.leaky_average.leaky_beta_u_under", *rate.shape)
        if not torch.equal(rate, again):
            raise TesseraError(
                f"{self.source}: {memory}.leaky_average holds two leak rates, leaky_beta_w_under and "
                "leaky_beta_u_under, that must be one parameter; they differ. Is the file damaged?"
            )
        return rate


class SparseKernelTrainingImporter(TrainingScriptImporter):
    """`memory_mosaics_eft.StackAssoMem(method=...)` of the sparse-kernel repository."""

    known = {**ARGUMENTS, "method": None}

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

    def log_value_scale(self, log_scale: Tensor) -> Tensor:
        """At most the published bound."""
        return log_scale.clamp(max=LARGEST_LOG_VALUE_SCALE)

    def log_output_scale(self, log_scale: Tensor) -> Tensor:
        """At most the published bound."""
        return log_scale.clamp(max=math.log(LARGEST_OUTPUT_SCALE))


@REFERENCES.register("memory-mosaics-eft")
def memory_mosaics_eft(state_dict: dict[str, Tensor], arguments: dict) -> MemoryMosaicForCausalLM:
    """What `train_memory_mosaics.py` of facebookresearch/MemoryMosaics trains."""
    return TrainingScriptImporter("memory-mosaics-eft", state_dict, arguments).model()


@REFERENCES.register("sparse-kernel-regression-eft")
def sparse_kernel_regression_eft(state_dict: dict[str, Tensor], arguments: dict) -> MemoryMosaicForCausalLM:
    """What the training scripts of deep-spin/sparse_kernel_regression train."""
    return SparseKernelTrainingImporter("sparse-kernel-regression-eft", state_dict, arguments).model()
