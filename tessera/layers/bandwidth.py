"""What each head learns of its kernel: a bandwidth, one that shrinks as a memory fills, how compact it is."""

import math

import torch
from torch import Tensor, nn

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Documents, Float, Int
from tessera.kernels import Entmax, EntmaxOfRows, Kernel


class Bandwidth(nn.Module):
    """One inverse squared bandwidth `beta = 1 / h^2 > 0` per head, kept as log beta.

    It starts where `kernel` says, `kernel.initial_inverse_bandwidth`.

    With `free_intercept` the intercept of the scores is a parameter of its own rather than the kernel's function of
    beta: some published normalised-ReLU checkpoints have a slope and an offset that no bandwidth produces.

    `scale`, which is not learned, multiplies beta: see `inverse_bandwidth_scale` of the models.
    """

    scalar_parameters = ("log_inverse_bandwidth", "intercept")
    counts_pairs = False

    def __init__(self, num_heads: int, kernel: Kernel, free_intercept: bool = False):
        super().__init__()
        self.initial_log = math.log(kernel.initial_inverse_bandwidth)
        self.scale = 1.0
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
        self, kernel: Kernel, num_pairs: Documents = None
    ) -> tuple[Float[Tensor, "H 1"], Float[Tensor, "H 1"] | None]:
        """Slope and intercept (H, 1) of the scores, for every step alike, whatever the number of pairs."""
        beta = self.log_inverse_bandwidth.exp()[:, None]
        slope, intercept = kernel.affine(beta if self.scale == 1 else self.scale * beta)
        return slope, intercept if self.intercept is None else self.intercept[:, None]


# In units of the kernel's own start, e^2 = 7.4 for the Gaussian: its beta(1) is 3.7, beta(256) 10.4, beta(4096) 24.
INITIAL_LOG_OFFSET = -1.0
INITIAL_LOG_SLOPE = -2.0
INITIAL_EXPONENT_RATE = 1.0


class AdaptiveBandwidth(nn.Module):
    """`beta(n) = beta_1 n^a + beta_0` per head, n the number of pairs the memory holds for a query (v2, equation 6).

    `beta_0 = exp(t_0) > 0`, `beta_1 = exp(t_1) > 0`, `a = exp(-|t_a|)` in (0, 1]. An empty memory has
    `beta(0) = beta_0`. `scale`, which is not learned, multiplies beta.
    """

    scalar_parameters = ("log_offset", "log_slope", "exponent_rate")
    counts_pairs = True

    def __init__(self, num_heads: int, kernel: Kernel):
        super().__init__()
        self.initial_log = math.log(kernel.initial_inverse_bandwidth)
        self.scale = 1.0
        self.log_offset = nn.Parameter(torch.empty(num_heads))
        self.log_slope = nn.Parameter(torch.empty(num_heads))
        self.exponent_rate = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All heads alike; training tells them apart."""
        with torch.no_grad():
            self.log_offset.fill_(INITIAL_LOG_OFFSET + self.initial_log)
            self.log_slope.fill_(INITIAL_LOG_SLOPE + self.initial_log)
            self.exponent_rate.fill_(INITIAL_EXPONENT_RATE)

    def inverse_bandwidth(self, num_pairs: Int[Tensor, "B T"]) -> Float[Tensor, "B H T"]:
        """beta (B, H, T) for counts (B, T) of at least 0."""
        exponent = torch.exp(-self.exponent_rate.abs())[:, None]
        filled = num_pairs.unsqueeze(1)
        # log 0 never enters the graph, so that beta(0) and its gradient are finite. Float16 ends at 65,504 pairs.
        log_pairs = filled.clamp(min=1).to(torch.promote_types(exponent.dtype, torch.float32)).log()
        grown = torch.exp(self.log_slope[:, None] + exponent * log_pairs.to(exponent.dtype))
        return torch.where(filled > 0, grown, 0.0) + self.log_offset.exp()[:, None]

    @explains_mistakes
    def forward(
        self, kernel: Kernel, num_pairs: Int[Tensor, "B T"]
    ) -> tuple[Float[Tensor, "B H T"], Float[Tensor, "B H T"] | None]:
        """Slope and intercept (B, H, T) of the scores of queries over `num_pairs` (B, T) pairs each."""
        beta = self.inverse_bandwidth(num_pairs)
        return kernel.affine(beta if self.scale == 1 else self.scale * beta)


class LearnedAlpha(nn.Module):
    """`alpha = lowest + (highest - lowest) sigmoid(a)` for each head, with a learned from the kernel's start.

    As in Adaptively Sparse Transformers (arXiv:1909.00015), whose bounds are 1 and 2. alpha = 2 is sparsemax; at 1,
    softmax, the order of the kernel is infinite, so that `lowest` lies above.
    """

    scalar_parameters = ("alpha_logit",)

    def __init__(self, num_heads: int, kernel: Entmax):
        super().__init__()
        self.settings = kernel
        self.alpha_logit = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """All heads at the kernel's alpha."""
        share = (self.settings.alpha - self.settings.lowest) / (self.settings.highest - self.settings.lowest)
        with torch.no_grad():
            self.alpha_logit.fill_(math.log(share / (1 - share)))

    @property
    def alpha(self) -> Float[Tensor, " H"]:
        """The alpha of each head."""
        return self.settings.lowest + (self.settings.highest - self.settings.lowest) * self.alpha_logit.sigmoid()

    def forward(self) -> EntmaxOfRows:
        """The kernel of all heads (H, 1, 1)."""
        return EntmaxOfRows(self.alpha[:, None, None])
