"""Where and how large: real sizes on a GPU, or tiny ones on the CPU (dry run)."""

from dataclasses import dataclass
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """`pick(real, tiny)` chooses sizes."""

    device: torch.device
    dry: bool

    @classmethod
    def of(cls, dry: bool) -> "Settings":
        torch.manual_seed(0)
        if dry:
            torch.set_num_threads(1)
        return cls(torch.device("cpu" if dry else "cuda"), dry)

    def pick(self, real: T, tiny: T) -> T:
        return tiny if self.dry else real

    @property
    def dtype(self) -> torch.dtype:
        """The type that speeds are measured in."""
        return torch.bfloat16
