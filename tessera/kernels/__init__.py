"""Similarity kernels: what weight a stored pair gets from its similarity to the query."""

from tessera.kernels.base import KERNELS, Kernel, kernel_from_config
from tessera.kernels.gaussian import Gaussian

__all__ = ["KERNELS", "Gaussian", "Kernel", "kernel_from_config"]
