"""The threshold of alpha-entmax: where the rectified polynomial responses of a row sum to one."""

import torch
from torch import Tensor
from torch._higher_order_ops import while_loop

from tessera.base.shapes import Float
from tessera.kernels.base import Rows
from tessera.kernels.workspace import Workspace

# Columns are split into groups of this many; the group maxima give the starting point of the full iteration.
GROUP = 16
GROUPED_FROM = 1 << 15  # entries: of fewer, a pass takes no longer than the call
MAX_STEPS = 100


def threshold(
    shifted: Rows, order: int | float | Float[Tensor, "*#rows 1"], workspace: Workspace
) -> tuple[Float[Tensor, "*rows 1"], Rows, Float[Tensor, "*rows 1"]]:
    """Solve `sum_i [x_i - tau]_+^r = 1` for each row of x = `shifted` (..., N), whose largest entry must be 0.

    Newton's method on the r-norm, `|[x - tau]_+|_r = 1`: the norm is convex and decreasing in tau, so that the steps
    `(M_r - M_r^(1 - 1/r)) / M_(r-1)`, with the moments `M_j = sum_i [x_i - tau]_+^j`, rise monotonically to the
    root from any start below it. (On the sum itself, steps shrink like 1/r when r is large.) Tau lies in
    [-1, -n^(-1/r)]. A subset of the entries has its root to the left of the row's root: the maxima of groups of
    columns are solved first, at 1/16 of the cost, and leave one to three steps for the full row.

    Returns:
        tau (..., 1); the responses u = [x - tau]_+ (..., N); M_(r-1) (..., 1) (for r = 1 the size of the support).
        Rows of -inf have u = 0. Precision: that of the dtype.
    """
    tau = shifted.new_full((*shifted.shape[:-1], 1), -1.0)
    if torch.compiler.is_compiling():  # groups depend on the length, of which an exported program knows nothing
        return _newton_in_graph(shifted, tau, order)
    num_groups = shifted.shape[-1] // GROUP
    if num_groups >= 4 and shifted.numel() >= GROUPED_FROM:
        body = shifted[..., : num_groups * GROUP].unflatten(-1, (GROUP, num_groups))
        tops = torch.cat([body.amax(dim=-2), shifted[..., num_groups * GROUP :]], dim=-1)
        tau = _newton(tops, tau, order, workspace)[0]
    return _newton(shifted, tau, order, workspace)


def _newton(shifted: Tensor, tau: Tensor, order: float | Tensor, workspace: Workspace) -> tuple[Tensor, Tensor, Tensor]:
    """Newton steps from `tau`, a point at or to the left of the root, until none moves it by more than rounding."""
    responses, powers = workspace.empty_like(shifted), workspace.empty_like(shifted)
    for _ in range(MAX_STEPS):
        step, slope = _step(torch.sub(shifted, tau, out=responses), order, powers)
        if not bool(_moves(step)):
            break
        tau = tau + step
    return tau, responses, slope


def _newton_in_graph(shifted: Tensor, tau: Tensor, order: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`_newton` as one operation of a compiled or exported program, whose Python cannot look at numbers."""

    def advanced(steps: Tensor, tau: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One more step, tau behind it, and the next step's length."""
        tau = tau + step
        return steps + 1, tau, _step(shifted - tau, order, torch.empty_like(shifted))[0]

    first = _step(shifted - tau, order, torch.empty_like(shifted))[0]
    carried = (torch.zeros((), dtype=torch.long, device=tau.device), tau, first)
    tau = while_loop(lambda steps, _, step: _moves(step) & (steps < MAX_STEPS), advanced, carried)[1]
    responses = shifted - tau
    return tau, responses, _step(responses, order, torch.empty_like(shifted))[1]


def _step(differences: Tensor, order: float | Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's step and M_(r-1) at tau, from `x - tau`, which becomes the responses; `powers` is overwritten."""
    total, slope = _moments(differences.clamp_(min=0), order, powers)
    step = (total - total.pow(1 - 1 / order)).div_(slope.clamp_min(torch.finfo(slope.dtype).tiny))
    # A step to the left is rounding; rows of -inf have total 0 and, for r = 1, the step -1.
    return step.clamp_(min=0), slope


def _moves(step: Tensor) -> Tensor:
    return (step > 2 * torch.finfo(step.dtype).eps).any()


def _moments(responses: Tensor, order: float | Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """`sum_i u_i^r` and `sum_i u_i^(r-1)`, both (..., 1), in few passes over u; `powers` is overwritten."""
    if not isinstance(order, Tensor) and order == 2:
        return torch.linalg.vector_norm(responses, dim=-1, keepdim=True).square_(), responses.sum(-1, keepdim=True)
    powers = raise_to(responses, order - 1, out=powers)
    slope = powers.sum(-1, keepdim=True)
    total = responses if not isinstance(order, Tensor) and order == 1 else powers.mul_(responses)
    return total.sum(-1, keepdim=True), slope


def raise_to(responses: Rows, exponent: int | float | Float[Tensor, "*#rows 1"], out: Rows) -> Rows:
    """`u^exponent`, 0 where u = 0 (also for the exponent 0: entries at the threshold are outside).

    The result lies in `out`; in a compiled or exported program, whose operations make new tensors, somewhere.
    """
    target = None if torch.compiler.is_compiling() else out
    if isinstance(exponent, Tensor):
        return torch.pow(responses, exponent, out=target).mul_(torch.sign(responses))
    if exponent == 0:
        return torch.sign(responses, out=target)
    if exponent == 1:
        return responses.clone() if target is None else target.copy_(responses)
    if exponent == 2:
        return torch.mul(responses, responses, out=target)
    if exponent == 3:
        return torch.mul(responses, responses, out=target).mul_(responses)
    return torch.pow(responses, exponent, out=target)
