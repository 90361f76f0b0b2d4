"""A stand-in for Triton's driver, so that kernels are compiled for a Hopper GPU that is not there."""

import torch
from triton.backends.compiler import GPUTarget


class HopperDriver:
    """As much of a driver as compilation asks for; `triton.runtime.driver.driver.set_active` takes it."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        return torch.device("cuda", 0)
