"""Tessera: sequence models made of associative memories.

A name is imported from its module when it is first used (PEP 562), so that `import tessera` costs milliseconds.
transformers' Auto classes read the library's models after `import tessera.models`, or the first use of a model's name.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

# module -> the names that `tessera` offers from it: the only list of them.
_OFFERED = {
    "tessera.base.errors": ("TesseraError",),
    "tessera.models.memory_mosaic": ("MemoryMosaicConfig", "MemoryMosaicForCausalLM", "MemoryMosaicModel"),
    "tessera.models.memory_mosaic_v2": ("MemoryMosaicV2Config", "MemoryMosaicV2ForCausalLM", "MemoryMosaicV2Model"),
    "tessera.models.armt": ("ARMTConfig", "ARMTForCausalLM", "ARMTState"),
    "tessera.models.rmt": ("RMTConfig", "RMTForCausalLM", "RMTState"),
    "tessera.models.prmt": ("PRMTConfig", "PRMTForCausalLM", "PRMTState"),
    "tessera.models.recurrence": ("random_segments", "read_stream"),
    "tessera.models.attaching": ("attach",),
    "tessera.models.decoding": ("compile_decoding",),
    "tessera.models.wrapping": ("wrap", "wrap_prmt", "wrap_rmt"),
    "tessera.interop": ("from_reference",),
    "tessera.kernels": (
        "KERNELS",
        "Biweight",
        "Epanechnikov",
        "Gaussian",
        "Kernel",
        "NearestNeighbours",
        "NormalizedReLU",
        "ReLUmax",
        "RectifiedPolynomial",
        "Triweight",
        "entmax",
        "kernel_from_config",
        "kernel_names",
        "knn_softmax",
        "knn_uniform",
        "normalized_relu",
        "relumax",
        "sparsemax",
    ),
    "tessera.ops.kernel_regression": ("Window", "kernel_regression"),
    "tessera.ops.leaky_average": ("leaky_average",),
    "tessera.ops.gated_average": ("gated_average",),
    "tessera.ops.association_matrix": ("read_association", "write_association"),
    "tessera.ops.linear_cross_entropy": ("linear_cross_entropy",),
    "tessera.tasks.task": ("TASKS",),
    "tessera.memory_files": ("Memory",),
}
_MODULES = {name: module for module, names in _OFFERED.items() for name in names}
_ROOMS = tuple("armt data evaluation inspection interop kernels layers memories models ops recall testing".split())

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    if name in _ROOMS:
        return importlib.import_module(f"tessera.{name}")
    raise AttributeError(f"module 'tessera' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_ROOMS})
