"""The kernels that keep the contract of `tessera.testing`."""

from tessera.kernels import KERNELS, Kernel, kernel_from_config
from tests.kernels.oracles import VARIANTS


def all_kernels() -> list[Kernel]:
    """Every registered kernel with its default fields, and the variants: one of entmax, whose default is biweight."""
    names = [name for name in KERNELS if name != "entmax"]
    return [kernel_from_config(spec) for spec in (*names, *VARIANTS)]


def identifier(kernel: Kernel) -> str:
    return "-".join(str(value) for value in kernel.to_config().values())
