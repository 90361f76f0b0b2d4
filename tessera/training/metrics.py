"""Metrics of a run as JSON lines: appended while it runs, cut back to the checkpoint on resume."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tessera.base.dataclass_io import to_json
from tessera.base.errors import TesseraError
from tessera.base.files import write_text_atomically, writing


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


def median_speed(records: Iterable[Mapping[str, Any]]) -> float | None:
    """Tokens per second, the median over the lines that tell it."""
    speeds = [record["tokens_per_second"] for record in records if record.get("tokens_per_second")]
    return median(speeds) if speeds else None


class MetricsFile:
    """`metrics.jsonl` of a run.

    Training lines hold step, loss (nats/token, mean since the last line), learning_rate, gradient_norm, tokens (seen
    so far), tokens_per_second (while training, evaluation and checkpoints not counted) and skipped_steps. Validation
    lines hold step, validation_loss (nats/token) and validation_bits_per_byte.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        """Add one line. Values that are not finite are written as null, which is what JSON has."""
        with writing(self.path), open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(to_json(record)) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines but a last one that a kill cut short. Raises `TesseraError` for a damaged one."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [self._record(number, line) for number, line in enumerate(lines[:-1], start=1) if line]

    def cut_after(self, step: int) -> None:
        """Drop everything written after `step`, in one atomic replacement: a resumed run writes it again."""
        kept = [record for record in self.read() if record["step"] <= step]
        with writing(self.path):
            write_text_atomically(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def skipped_steps(self) -> int:
        """How many steps were left out until the last line."""
        return max((record.get("skipped_steps", 0) for record in self.read()), default=0)

    def _record(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                return record
        except (ValueError, RecursionError):
            pass
        raise TesseraError(
            f"{self.path}: line {number} must be a JSON object with a step; got {line[:40]!r}. Delete damaged lines."
        )
