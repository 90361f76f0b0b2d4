"""Small models of comparable size, by name: what experiments train and compare."""

from tessera.models.small_models import language_models, segmented_models  # noqa: F401 (they register their models)
from tessera.models.small_models.language_models import untrained_model
from tessera.models.small_models.table import SMALL_MODELS, ModelSize, build_small_model

__all__ = ["SMALL_MODELS", "ModelSize", "build_small_model", "untrained_model"]
