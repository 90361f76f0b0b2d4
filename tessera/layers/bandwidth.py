"""The learned bandwidth of each head's kernel."""

import math

import torch
from torch import Tensor, nn

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Float, Int
from tessera.kernels import Kernel


class Bandwidth(nn.Module):
    """One inverse squared bandwidth `beta = 1 / h^2 > 0` per head, kept as log beta.

    It starts where `kernel` says, `kernel.initial_inverse_bandwidth`.

    With `free_intercept` the intercept of the scores is a parameter of its own rather than the kernel's function of
    beta: some published normalised-ReLU checkpoints have a slope and an offset that no bandwidth produces.
    """

    scalar_parameters = ("log_inverse_bandwidth", "intercept")
    counts_pairs = False

    def __init__(self, num_heads: int, kernel: Kernel, free_intercept: bool = False):
        super().__init__()
        self.initial_log = math.log(kernel.initial_inverse_bandwidth)
        self.log_inverse_bandwidth = nn.Parameter(torch.empty(num_heads))
        self.intercept = nn.Parameter(torch.empty(num_heads)) if free_intercept else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The kernel's own start, and no intercept."""
        with torch.no_grad():
            self.log_inverse_bandwidth.fill_(self.initial_log)
            if self.intercept is not None:
                self.intercept.zero_()

    @explains_mistakes
    def forward(
        self, kernel: Kernel, num_pairs: Int[Tensor, "B T"] | None = None
    ) -> tuple[Float[Tensor, "H 1"], Float[Tensor, "H 1"] | None]:
        """Slope and intercept (H, 1) of the scores, for every step alike, whatever the number of pairs."""
        slope, intercept = kernel.affine(self.log_inverse_bandwidth.exp()[:, None])
        return slope, intercept if self.intercept is None else self.intercept[:, None]
