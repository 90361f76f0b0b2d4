"""Small models of comparable size, by name: what experiments train and compare."""

from tessera.models.small_models import language_models, segmented_models  # noqa: F401 (they register their models)
from tessera.models.small_models.table import (
    KERNEL_ALIASES,
    SMALL_MODELS,
    ModelSize,
    build_small_model,
    kernel_names,
    named_kernel,
)

__all__ = ["KERNEL_ALIASES", "SMALL_MODELS", "ModelSize", "build_small_model", "kernel_names", "named_kernel"]
