"""Published checkpoint formats that the library can rebuild."""

from collections.abc import Callable

from torch import Tensor
from transformers import PreTrainedModel

from tessera.base.registry import Registry

REFERENCES: Registry[Callable[[dict[str, Tensor], dict], PreTrainedModel]] = Registry("reference source")
