"""Similarity kernels: what weight a stored pair gets from its similarity to the query."""

from tessera.kernels.base import KERNEL_ALIASES, KERNELS, Kernel, kernel_from_config, kernel_names
from tessera.kernels.functional import entmax, knn_softmax, knn_uniform, normalized_relu, relumax, sparsemax
from tessera.kernels.gaussian import Gaussian
from tessera.kernels.nearest_neighbours import NearestNeighbours
from tessera.kernels.normalized_relu import NormalizedReLU
from tessera.kernels.rectified_polynomial import (
    Biweight,
    Entmax,
    EntmaxOfRows,
    Epanechnikov,
    RectifiedPolynomial,
    Triweight,
)
from tessera.kernels.relumax import ReLUmax
from tessera.kernels.rows import RowKernel

__all__ = [
    "KERNELS",
    "KERNEL_ALIASES",
    "Biweight",
    "Entmax",
    "EntmaxOfRows",
    "Epanechnikov",
    "Gaussian",
    "Kernel",
    "NearestNeighbours",
    "NormalizedReLU",
    "ReLUmax",
    "RectifiedPolynomial",
    "RowKernel",
    "Triweight",
    "entmax",
    "kernel_from_config",
    "kernel_names",
    "knn_softmax",
    "knn_uniform",
    "normalized_relu",
    "relumax",
    "sparsemax",
]
