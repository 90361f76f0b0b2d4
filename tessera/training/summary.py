"""What came out of a run, in a few numbers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSummary:
    """What came out of a run. Losses in nats per token; speed is the median over the log lines.

    Of a run on questions, the loss is that of the answers' tokens, and `exact_match` the share of right answers; it has
    no bits per byte.
    """

    name: str
    folder: str
    parameters: int
    steps: int
    tokens: int
    skipped_steps: int
    validation_loss: float
    validation_bits_per_byte: float | None
    tokens_per_second: float | None
    validation_exact_match: float | None = None

    @property
    def quality(self) -> str:
        """The validation in words."""
        if self.validation_exact_match is not None:
            right = f"{100 * self.validation_exact_match:.1f} % of the answers are right"
            return f"validation: {right}, loss {self.validation_loss:.4f} nats/token"
        bits = f", {self.validation_bits_per_byte:.4f} bits/byte" if self.validation_bits_per_byte is not None else ""
        return f"validation loss {self.validation_loss:.4f} nats/token{bits}"
