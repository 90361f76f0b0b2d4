"""Metrics of a run as JSON lines: appended while it runs, cut back to the checkpoint on resume."""

import json
import math
import os
from pathlib import Path
from typing import Any


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
        clean = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in record.items()
        }
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(clean) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All whole lines; a last line that a kill cut short is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1] if line]

    def cut_after(self, step: int) -> None:
        """Drop everything written after `step`, in one atomic replacement: a resumed run writes it again."""
        kept = [record for record in self.read() if record["step"] <= step]
        draft = self.path.with_suffix(".tmp")
        draft.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
        os.replace(draft, self.path)
