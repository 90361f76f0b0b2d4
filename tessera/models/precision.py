"""The precision of a run: float32 or bfloat16."""

from typing import Any

import torch


def resolve_precision(precision: str) -> str:
    """ "bf16" or "fp32"; "auto" is bf16 where the hardware multiplies bfloat16 matrices natively."""
    if precision != "auto":
        return precision
    return "bf16" if has_fast_bfloat16() else "fp32"


def has_fast_bfloat16() -> bool:
    """Does the GPU (or, without one, the CPU) have bfloat16 instructions?"""

    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    abilities = torch.cpu.get_capabilities()
    return any(abilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def autocast(precision: str, device_type: str) -> Any:
    """The context of a forward pass: bfloat16 autocast, or nothing. Weights stay in float32."""

    return torch.autocast(device_type, dtype=torch.bfloat16, enabled=precision == "bf16")
