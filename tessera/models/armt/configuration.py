"""Configuration of ARMT."""

from typing import Any, ClassVar

from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.ops.association_matrix import UPDATE_ORDERS


class ARMTConfig(SegmentedConfig):
    r"""A base model whose every layer reads and writes an association matrix (ARMT, section 2).

    Args:
        memory_dim: width of queries and keys before the feature map. num_rolls: nu of DPFP-nu, so that a layer's
            matrix is (2 nu memory_dim, hidden_size).
        correction: gamma-correction of the normaliser. update_order: "parallel" (published) or "sequential" (paper).
        epsilon: of the divisions. strength_stretch: 0 as published; with 0.1 a memory token can also write exactly
            nothing, see `tessera.memories.association.WriteStrength`. strength_threshold: 0 as published; strengths
            below it write nothing.
        gate_normalizer: whether a memory token of strength exactly 0 leaves the normaliser as it is too, so that noise
            cannot fill it; without a stretch or threshold there is none. False is what models had before this field: a
            stored configuration without it is read as False.
        gate_penalty: this times the mean probability that a memory token writes (`WriteStrength.opening`, of writes
            that gradients flow through) is added to the loss in training, so that text without use is not written;
            needs a `strength_stretch`. The others: see `SegmentedConfig`.
    Raises:
        TesseraError: naming every argument that is unknown or impossible.
    """

    model_type = "armt"
    adjustable: ClassVar[frozenset[str]] = SegmentedConfig.adjustable | {"gate_penalty", "strength_threshold"}

    memory_dim: int = 64
    num_rolls: int = 3
    correction: bool = True
    update_order: str = "parallel"
    epsilon: float = 1e-5
    strength_stretch: float = 0.0
    strength_threshold: float = 0.0
    gate_normalizer: bool = True
    gate_penalty: float = 0.0

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Of a stored configuration; see `gate_normalizer`."""
        return super().from_dict({"gate_normalizer": False, **config_dict}, **kwargs)

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        problems = super().problems() + self.positive("memory_dim", "num_rolls")
        if not problems:
            width = 2 * self.memory_dim
            problems = self.broken((self.num_rolls < width, "num_rolls", f"lie below 2 memory_dim ({width})"))
        stretch, threshold, penalty = self.strength_stretch, self.strength_threshold, self.gate_penalty
        is_penalty = isinstance(penalty, (int, float)) and penalty >= 0
        closes = not (is_penalty and penalty) or bool(stretch)
        problems += self.one_of(update_order=UPDATE_ORDERS)
        return problems + self.broken(
            (isinstance(self.correction, bool), "correction", "be True or False"),
            (isinstance(self.epsilon, float) and self.epsilon > 0, "epsilon", "be a positive number"),
            (isinstance(stretch, (int, float)) and stretch >= 0, "strength_stretch", "be a number of at least 0"),
            (
                isinstance(threshold, (int, float)) and 0 <= threshold < 1,
                "strength_threshold",
                "be a number of at least 0 and below 1",
            ),
            (is_penalty, "gate_penalty", "be a number of at least 0"),
            (closes, "gate_penalty", "be 0 without a strength_stretch above 0, by which gates can close"),
        )
