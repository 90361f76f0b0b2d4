"""What came out of a run, in a few numbers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSummary:
    """What came out of a run. Losses in nats per token; speed is the median over the log lines."""

    name: str
    folder: str
    parameters: int
    steps: int
    tokens: int
    skipped_steps: int
    validation_loss: float
    validation_bits_per_byte: float
    tokens_per_second: float | None
