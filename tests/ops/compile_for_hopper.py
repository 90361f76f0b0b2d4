"""Compile every Triton kernel for a Hopper GPU that need not be there, and print what each needs; run by a test.

A stand-in driver names the target, and launches are turned into compilations.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from benchmarks.hopper_driver import HopperDriver
from tessera.kernels import Biweight, Gaussian, NormalizedReLU, ReLUmax
from tessera.ops.association_matrix import ReadCall, WriteCall
from tessera.ops.association_matrix import triton as association
from tessera.ops.gated_average import GatedAverageCall, GatedAverageState
from tessera.ops.gated_average import triton as gated
from tessera.ops.kernel_regression import Call, Window
from tessera.ops.kernel_regression import triton as regression
from tessera.ops.linear_recurrence import RecurrenceCall
from tessera.ops.linear_recurrence import triton as recurrence


def compile_instead(actual: list[dict]):
    """A replacement of `JITFunction.run` that compiles, and notes registers, stack and matrix instructions."""
    launch = JITFunction.run
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

    def run(self, *args, grid, warmup, **options):
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
            Path(cubin.name).write_bytes(kernel.asm["cubin"])
            report = subprocess.run([tool, "-res-usage", cubin.name], capture_output=True, text=True, check=True).stdout
        usage = {name.lower(): int(count) for name, count in re.findall(r"(REG|STACK):(\d+)", report)}
        ptx = kernel.asm["ptx"]
        usage |= {"shared": kernel.metadata.shared, "wgmma": "wgmma.mma_async" in ptx, "pipelined": "cp.async" in ptx}
        actual.append({"kernel": self.fn.__name__, "arguments": str(options.get("FAMILY", "")), **usage})
        return kernel

    return run


def differentiate(outputs, leaves):
    torch.autograd.grad(outputs, leaves, [torch.zeros_like(x) for x in outputs])


def call_everything(dtype: torch.dtype, width: int):
    """One training step's worth of each operation."""
    x = torch.zeros(2, 1024, 4, width, dtype=dtype).transpose(1, 2).requires_grad_()
    for kernel in (Gaussian(), Biweight(), ReLUmax(), NormalizedReLU()):
        call = Call(x, x, x, kernel, torch.ones(4, 1), torch.ones(4, 1), window=Window())
        differentiate([regression.run(call)], [x])
    differentiate([recurrence.run(RecurrenceCall(x, torch.ones(1, 4, 1024)))[0]], [x])
    gates = torch.zeros(2, 4, 1024).requires_grad_()
    differentiate([gated.run(GatedAverageCall(x, gates, gates, GatedAverageState.empty(x)))[0]], [x])
    matrix, normaliser = torch.zeros(2, 384, 256), torch.zeros(2, 384)  # float32 also under autocast
    association.run(ReadCall(matrix, normaliser, torch.zeros(2, 522, 384, dtype=dtype), 1e-5))
    key, value = torch.zeros(2, 10, 384, dtype=dtype), torch.zeros(2, 10, 256, dtype=dtype)
    empty = torch.zeros(2, dtype=torch.bool)
    association.run(WriteCall(matrix, normaliser, key, value, key[..., 0], empty, True, "parallel", 1e-5))


if __name__ == "__main__":
    kernels: list[dict] = []
    driver.set_active(HopperDriver())
    JITFunction.run = compile_instead(kernels)
    call_everything(getattr(torch, sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(kernels))
