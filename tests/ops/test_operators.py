"""What `torch.compile` relies on: the registered operators describe their results and gradients truly, and no operation
by Triton breaks the graph."""

import pytest
import torch
from torch.library import opcheck

from tessera.base.errors import TesseraError
from tessera.kernels import Biweight, Gaussian, NearestNeighbours, NormalizedReLU, ReLUmax
from tessera.ops.association_matrix import read_association, write_association
from tessera.ops.association_matrix.triton import read_op, write_op
from tessera.ops.gated_average import gated_average
from tessera.ops.gated_average.triton import gate_shares
from tessera.ops.kernel_regression import Call, Window, kernel_regression
from tessera.ops.kernel_regression import chunked as chunked_regression
from tessera.ops.kernel_regression.triton import plan_of, regress
from tessera.ops.leaky_average import leaky_average
from tessera.ops.linear_recurrence.triton import recur
from tests.covering import some

KERNELS = (Gaussian(), Biweight(), ReLUmax(), NormalizedReLU())
WINDOWS = {"past": Window(), "all": None, "span": Window(delay=2, span=5), "delays": Window(delay=torch.tensor([2, 4]))}
DOCUMENTS = torch.tensor([[0] * 4 + [1] * 5])


def drawn(device, heads, steps, *width):
    """Values of one sequence, interleaved in memory as the models hold heads."""
    return torch.randn(1, steps, heads, *width, device=device).transpose(1, 2).requires_grad_()


@some(
    ("name", "kernel"),
    [(name, kernel) for name in WINDOWS for kernel in KERNELS],
    by_default=[("delays", NormalizedReLU())],
)
def test_kernel_regression(triton_device, name, kernel):
    window = WINDOWS[name]
    query, key, value = (drawn(triton_device, 2, 9, width) for width in (4, 4, 3))
    documents = None if window is None else DOCUMENTS.to(triton_device)
    call = Call(query, key, value, kernel, torch.ones(()), None, window, 0, documents, documents)
    slope = torch.ones(1, 2, 9, device=triton_device, requires_grad=True)
    opcheck(regress, (query, key, value, slope, torch.zeros(1, 2, 9, device=triton_device), True, *plan_of(call)))


BLOCKED = [(NearestNeighbours(k=3), Window(delay=2, span=5)), (NormalizedReLU(), Window(delay=torch.tensor([2, 4])))]


@pytest.mark.parametrize(("kernel", "window"), [*BLOCKED, (Biweight(), None)], ids=["knn", "relu", "biweight"])
def test_kernel_regression_in_blocks(kernel, window):
    """The operator of compiled programs is what the blocked implementation is without it, to the last bit."""
    query, key, value = (drawn("cpu", 2, 9, width) for width in (4, 4, 3))
    slope = torch.rand(1, 2, 9, requires_grad=True)
    intercept = torch.rand(1, 2, 9, requires_grad=True) if kernel.name == "normalized_relu" else None
    documents = None if window is None else DOCUMENTS
    call = Call(query, key, value, kernel, slope, intercept, window, 0, documents, documents)
    tensors = [tensor for tensor in (query, key, value, slope, intercept) if tensor is not None]
    results, plain = [], chunked_regression.arguments(call)
    for y in (chunked_regression.run(call), chunked_regression.regress(*plain)):
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), tensors)])
    for own, operator in zip(*results, strict=True):
        assert torch.equal(own, operator)
    opcheck(chunked_regression.regress, plain)
    plain = [x.detach() if isinstance(x, torch.Tensor) else x for x in plain]
    opcheck(chunked_regression.regress_backward, (drawn("cpu", 2, 9, 3).detach(), *plain))


@some("gated", [False, True], by_default=[True])
def test_linear_recurrence(triton_device, gated):
    x, initial = drawn(triton_device, 1, 5, 3), torch.randn(1, 1, 3, device=triton_device, requires_grad=True)
    new = torch.rand(1, 1, 5, device=triton_device)
    if gated:
        opcheck(recur, (x, new.clone().requires_grad_(), 1 - new, initial))
    else:
        opcheck(recur, (x, None, new.requires_grad_(), initial))


def test_gate_shares(triton_device):
    gate, decay = (torch.randn(1, 1, 9, device=triton_device, requires_grad=True) for _ in range(2))
    log_weight = torch.zeros(1, 1, device=triton_device, dtype=torch.float64, requires_grad=True)
    opcheck(gate_shares, (gate, decay, log_weight))


def test_association_matrix(triton_device):
    matrix, key, value = (
        torch.rand(2, *shape, device=triton_device).requires_grad_() for shape in ((6, 4), (3, 6), (3, 4))
    )
    normaliser, strength = (torch.rand(2, n, device=triton_device).requires_grad_() for n in (6, 3))
    empty = torch.tensor([True, False], device=triton_device)
    opcheck(read_op, (matrix, normaliser, key, 1e-5))
    opcheck(write_op, (matrix, normaliser, key, value, strength, empty, True, 1e-5, True))


def operations(x, gates, strength):
    """One of each, on Triton."""
    documents = torch.tensor([[0] * 3 + [1] * 2], device=x.device)
    x = leaky_average(x, torch.tensor([0.9], device=x.device), documents=documents, backend="triton")[0]
    x = x + gated_average(x, gates, -gates.square(), documents=documents, backend="triton")[0]
    for kernel in (Biweight(), NormalizedReLU()):
        x = x + kernel_regression(
            x, x, x, kernel=kernel, slope=torch.ones((), device=x.device), intercept=0.0, window=Window(),
            query_documents=documents, pair_documents=documents, backend="triton",
        )  # fmt: skip
    features = x.flatten(0, 1).relu()
    matrix, normaliser = features.transpose(1, 2) @ features, features.sum(1)
    empty = torch.zeros(len(features), dtype=torch.bool, device=x.device)
    memory = write_association(matrix, normaliser, features, features, strength, empty, backend="triton")
    return x.sum() + read_association(*memory, features, backend="triton").square().sum()


@pytest.mark.grid
def test_nothing_breaks_the_graph(triton_device):
    leaves = drawn(triton_device, 1, 5, 3), drawn(triton_device, 1, 5), torch.rand(1, 5, device=triton_device)
    expected = operations(*leaves)
    compiled = torch.compile(operations, fullgraph=True, backend="aot_eager")(*leaves)
    torch.testing.assert_close(compiled, expected)
    differentiable = leaves[:2]
    gradients = [torch.autograd.grad(output, differentiable) for output in (compiled, expected)]
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_a_forward_derivative_is_refused(triton_device):
    """PyTorch would take it to be 0."""
    x, decay = torch.randn(1, 1, 4, 2, device=triton_device), torch.ones(1, device=triton_device)
    with pytest.raises(TesseraError, match="the Triton kernels have no forward-mode derivative"):
        torch.func.jvp(lambda x: leaky_average(x, decay, backend="triton")[0], (x,), (x,))
