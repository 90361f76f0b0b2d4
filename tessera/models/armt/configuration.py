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
        if not problems and self.num_rolls >= 2 * self.memory_dim:
            problems.append(f"num_rolls must lie below 2 memory_dim ({2 * self.memory_dim}); got {self.num_rolls}.")
        if self.update_order not in UPDATE_ORDERS:
            problems.append(f"update_order must be one of {', '.join(UPDATE_ORDERS)}; got {self.update_order!r}.")
        if not isinstance(self.correction, bool):
            problems.append(f"correction must be True or False; got {self.correction!r}.")
        if not isinstance(self.epsilon, float) or self.epsilon <= 0:
            problems.append(f"epsilon must be a positive number; got {self.epsilon!r}.")
        if not isinstance(self.strength_stretch, (int, float)) or self.strength_stretch < 0:
            problems.append(f"strength_stretch must be a number of at least 0; got {self.strength_stretch!r}.")
        if not isinstance(self.strength_threshold, (int, float)) or not 0 <= self.strength_threshold < 1:
            problems.append(
                f"strength_threshold must be a number of at least 0 and below 1; got {self.strength_threshold!r}."
            )
        if not isinstance(self.gate_penalty, (int, float)) or self.gate_penalty < 0:
            problems.append(f"gate_penalty must be a number of at least 0; got {self.gate_penalty!r}.")
        elif self.gate_penalty and not self.strength_stretch:
            problems.append(
                "gate_penalty must be 0 without a strength_stretch above 0, by which gates can close; "
                f"got {self.gate_penalty!r}."
            )
        return problems
