"""The precision of a run: float32 or bfloat16."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from tessera.base.errors import expect

# As `torch.cpu.get_capabilities` calls them: x86's, and Arm's last.
CPU_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16")


def resolve_precision(precision: str, device_type: str | None = None) -> str:
    """ "bf16" or "fp32"; "auto" is bf16 where `device_type` multiplies bfloat16 matrices natively.

    Without `device_type`: where the GPU does, or, without one, the CPU. Without such instructions PyTorch multiplies
    bfloat16 matrices on a CPU a hundred times slower than float32 ones.
    """
    expect(
        precision in ("auto", "bf16", "fp32"), "number format", "precision", "be auto, bf16 or fp32", repr(precision)
    )
    if precision != "auto":
        return precision
    return "bf16" if has_fast_bfloat16(device_type) else "fp32"


def has_fast_bfloat16(device_type: str | None = None) -> bool:
    """Does this kind of device ("cpu", "cuda") have bfloat16 instructions? `None`: the GPU or, without one, the CPU."""
    if (device_type or "cuda") == "cuda" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(cpu_instructions(CPU_BFLOAT16))


def cpu_instructions(names: tuple[str, ...]) -> list[str]:
    """Those of `names` that this processor has."""
    abilities = torch.cpu.get_capabilities()
    return [name for name in names if abilities.get(name, False)]


def autocast(precision: str | None, device_type: str) -> Any:
    """The context of a forward pass: bfloat16 or none, by `resolve_precision`; None: as the surroundings say."""
    if precision is None:
        return nullcontext()
    is_bfloat16 = resolve_precision(precision, device_type) == "bf16"
    return torch.autocast(device_type, dtype=torch.bfloat16, enabled=is_bfloat16)


def without_autocast(x: Tensor) -> AbstractContextManager[None]:
    """Inside, products on the device of `x` are those of the tensors as they are, whatever the surroundings say.

    Where autocast is off nothing is entered, so that programs that are exported have no part for it.
    """
    kind = x.device.type
    is_on = not x.is_meta and torch.is_autocast_enabled(kind)  # PyTorch knows no autocast of the meta device
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()
