"""Checkpoints of the plain `memory_mosaics.py` modules: Memory Mosaics, and the sparse-kernel code.

The two differ in the contextual memories' kernel alone.
"""

import torch
from torch import Tensor

from tessera.base.errors import TesseraError
from tessera.interop.layouts import REFERENCES
from tessera.interop.stack_arguments import ARGUMENTS, kernel_of_method
from tessera.interop.stack_asso_mem import StackAssoMemImporter
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
