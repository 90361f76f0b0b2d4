"""Small models of comparable size, by name: what experiments train and compare."""

from tessera.base.arguments import explain_all
from tessera.models.small_models.language_models import untrained_model
from tessera.models.small_models.size import ModelSize, build_small_model

__all__ = ["ModelSize", "build_small_model", "untrained_model"]


explain_all(globals(), ("build_small_model", "untrained_model"))
