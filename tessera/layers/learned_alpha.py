"""The learned alpha of each head: how compact its kernel is."""

import math

import torch
from torch import Tensor, nn

from tessera.base.shapes import Float
from tessera.kernels import Entmax, EntmaxOfRows


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
