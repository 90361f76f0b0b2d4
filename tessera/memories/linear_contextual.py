"""The contextual memory of the paper's first example: linear keys, linear values, nothing learned between them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tessera.base.arguments import explains_mistakes
from tessera.base.errors import expect
from tessera.base.shapes import Float
from tessera.base.state import State
from tessera.kernels import Kernel, kernel_from_config
from tessera.ops.kernel_regression import Window, kernel_regression
from tessera.ops.unit_norm import unit_norm
from tessera.recall.pair_store import PairStore


class ComplexLinear(nn.Linear):
    """`y = W x` with a complex `weight` (out, in): reals (..., 2 in) -> (..., 2 out), both as (real, imaginary) pairs.

    The inner product of two such real vectors is `Re <x, y>`, the one that kernels of complex vectors need. It has half
    the parameters of a real layer of the same widths: 2 in out instead of 4 in out. `double()` and `float()` leave a
    complex weight alone; `dtype` (torch.float32 or float64, that of the real vectors) is chosen here.
    """

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype | None = None):
        real = torch.get_default_dtype() if dtype is None else dtype
        super().__init__(in_features, out_features, bias=False, dtype=real.to_complex())

    def reset_parameters(self) -> None:
        """Each part is the mean of two numbers uniform within `± 1 / sqrt(2 in)`.

        As published: a real layer of 2 in inputs, projected onto the complex ones.
        """
        bound = (2 * self.in_features) ** -0.5
        with torch.no_grad():
            parts = torch.view_as_real(self.weight)
            parts.uniform_(-bound, bound).add_(torch.empty_like(parts).uniform_(-bound, bound)).div_(2)

    @explains_mistakes
    def forward(self, x: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:
        """`W x` of complex numbers, whose real and imaginary parts alternate in the last dimension."""
        numbers = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(linear(numbers, self.weight)).flatten(-2)


OUTPUTS = ("projection", "sum")


@dataclass(frozen=True)
class LinearContextualState(State):
    """After step T: the pairs 1..T-1, and k_T (B, H, 1, K), whose value waits for x_{T+1}."""

    pairs: PairStore
    pending_key: Float[Tensor, "B H 1 K"]


class LinearContextualMemory(nn.Module):
    """`k_T = W_phi x_T`, `v_T = W_psi x_{T+1}`, `y_T = sum_{i<T} w_i v_i`, `z_T = W_z y_T` (Memory Mosaics, figure 3).

    z_T predicts x_{T+1}. At T = 1 the memory is empty and z_1 = 0. Keys and values are as long as they come unless
    `norm_eps` is given; weights are those of `kernel` with the fixed inverse bandwidth beta.

    Args:
        input_dim: width of x and of z. num_heads, head_dim: width of keys and of values per head, in real numbers.
        complex_numbers: x, keys and values hold complex numbers as (real, imaginary) pairs, and the matrices are
            complex: for input_dim 6 and num_heads head_dim = 6, three 3 x 3 matrices of 54 real parameters in all.
        inverse_bandwidth: beta. norm_eps: keys and values become `x / (|x| + norm_eps)`; None leaves them.
        learned_scale: keys are multiplied by `exp(log_key_scale)`, a parameter.
        embedding_dim: a linear layer of this width comes first; None for none.
        output: "projection" for W_z over all heads, "sum" for the plain sum of the heads (head_dim = input_dim).
        delay: the pair i is seen from step i + delay on.
        dtype: of the real vectors. backend: see `kernel_regression`.
    """

    def __init__(
        self,
        input_dim: int = 6,
        num_heads: int = 3,
        head_dim: int = 2,
        *,
        complex_numbers: bool = True,
        inverse_bandwidth: float = 50.0,
        norm_eps: float | None = None,
        learned_scale: bool = False,
        embedding_dim: int | None = None,
        output: str = "projection",
        delay: int = 1,
        kernel: Kernel | str | dict = "gaussian",
        dtype: torch.dtype | None = None,
        backend: str | None = None,
    ):
        super().__init__()
        where, width = "LinearContextualMemory", num_heads * head_dim
        expect(output in OUTPUTS, where, "output", "be one of " + ", ".join(OUTPUTS), repr(output))
        if output == "sum":
            expect(head_dim == input_dim, where, "head_dim", f"be input_dim ({input_dim}) for a sum of heads", head_dim)
        expect(inverse_bandwidth > 0, where, "inverse_bandwidth", "be positive", inverse_bandwidth)
        if complex_numbers:
            odd = [dim for dim in (input_dim, head_dim, embedding_dim or 0) if dim % 2]
            expect(not odd, where, "input_dim, head_dim and embedding_dim", "be even for complex numbers", odd)

        def matrix(inputs: int, outputs: int) -> nn.Linear:
            if complex_numbers:
                return ComplexLinear(inputs // 2, outputs // 2, dtype=dtype)
            return nn.Linear(inputs, outputs, bias=False, dtype=dtype)

        features = embedding_dim or input_dim
        self.num_heads, self.inverse_bandwidth, self.norm_eps = num_heads, inverse_bandwidth, norm_eps
        self.kernel, self.window, self.backend = kernel_from_config(kernel), Window(delay=delay), backend
        self.embedding = matrix(input_dim, embedding_dim) if embedding_dim else None
        self.key_extractor = matrix(features, width)
        self.value_extractor = matrix(features, width)
        self.output = matrix(width, input_dim) if output == "projection" else None
        self.log_key_scale = nn.Parameter(torch.zeros((), dtype=dtype)) if learned_scale else None

    def features(
        self, x: Float[Tensor, "B T input"]
    ) -> tuple[Float[Tensor, "B H T head_dim"], Float[Tensor, "B H T head_dim"]]:
        """Keys of the steps of x (B, T, input), and the values of the steps before: (B, H, T, head_dim) each."""
        embedded = x if self.embedding is None else self.embedding(x)
        keys, values = self._heads(self.key_extractor(embedded)), self._heads(self.value_extractor(embedded))
        return (keys if self.log_key_scale is None else keys * self.log_key_scale.exp()), values

    def combine(self, recalled: Float[Tensor, "B H T head_dim"]) -> Float[Tensor, "B T input"]:
        """z (B, T, input) of the heads' answers (B, H, T, head_dim)."""
        return recalled.sum(1) if self.output is None else self.output(recalled.transpose(1, 2).flatten(2))

    @explains_mistakes
    def forward(
        self, x: Float[Tensor, "B T input"], state: LinearContextualState | None = None, keep_state: bool = False
    ) -> tuple[Float[Tensor, "B T input"], LinearContextualState | None]:
        """z (B, T, input) for x (B, T, input) behind `state`, and the state after the last step if `keep_state`."""
        is_text = x.dim() == 3 and x.shape[1] > 0
        expect(is_text, "LinearContextualMemory", "x", "be (B, T, input), T >= 1", tuple(x.shape))
        held = len(x) if state is None else len(state.pending_key)
        expect(held == len(x), "LinearContextualMemory", "state", f"have {len(x)} rows, as x", held)
        keys, values = self.features(x)
        if state is None:
            pairs, offset = PairStore.of(keys[:, :, :-1], values[:, :, 1:]), 0
        else:
            pairs = state.pairs.append(torch.cat([state.pending_key, keys[:, :, :-1]], 2), values)
            offset = state.pairs.length + 1
        stored = pairs.documents  # of joined states of unequal lengths: which pairs are there
        recalled = kernel_regression(
            keys,
            pairs.keys,
            pairs.values,
            kernel=self.kernel,
            **self.scores(keys),
            window=self.window,
            query_offset=offset,
            query_documents=None if stored is None else torch.zeros_like(keys[:, 0, :, 0], dtype=torch.long),
            pair_documents=stored,
            backend=self.backend if keys.shape[2] > 1 else None,
        )
        return self.combine(recalled), LinearContextualState(pairs, keys[:, :, -1:]) if keep_state else None

    @torch.no_grad()
    def generate(self, x: Float[Tensor, "B T input"], steps: int) -> Float[Tensor, "B steps input"]:
        """The `steps` observations (B, steps, input) that follow x (B, T, input), each prediction being read next."""
        expect(steps >= 1, "LinearContextualMemory.generate", "steps", "be at least 1", steps)
        predictions, state = self(x, keep_state=True)
        observations = [predictions[:, -1:]]
        while len(observations) < steps:
            prediction, state = self(observations[-1], state, keep_state=True)
            observations.append(prediction)
        return torch.cat(observations, 1)

    def scores(self, like: Tensor) -> dict[str, Any]:
        """`slope` and `intercept` of the kernel's scores, as `kernel_regression` takes them."""
        precise = torch.promote_types(like.dtype, torch.float32)
        beta = torch.as_tensor(self.inverse_bandwidth, dtype=precise, device=like.device)
        return dict(zip(("slope", "intercept"), self.kernel.affine(beta)))

    def _heads(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads if self.norm_eps is None else unit_norm(heads, self.norm_eps)
