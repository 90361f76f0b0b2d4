"""A second derivative is right or refused: no backward pass takes part of itself for a constant, also compiled."""

import os

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM, MambaConfig

from tessera.base.errors import TesseraError
from tessera.kernels.functional import entmax
from tessera.kernels.rectified_polynomial import EntmaxOfRows
from tessera.models.mamba import use_selective_scan
from tessera.ops.association_matrix import read_association, write_association
from tessera.ops.gated_average import gated_average
from tessera.ops.gated_linear_attention import gated_linear_attention
from tessera.ops.kernel_regression import Window, kernel_regression
from tessera.ops.leaky_average import leaky_average
from tessera.ops.linear_cross_entropy import linear_cross_entropy
from tessera.ops.linear_recurrence import linear_recurrence
from tessera.ops.selective_scan import selective_scan
from tessera.ops.unit_norm import unit_norm
from tests.covering import some
from tests.kernels.contract import all_kernels, identifier
from tests.models.contract import CASES, tokens
from tests.refusals import refused

HEADS = torch.tensor([0.5, 0.9], dtype=torch.float64)
LABELS = torch.tensor([1, 0, 2, -100])
EMPTY = torch.zeros(2, dtype=torch.bool)


def drawn(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def average(x, gate, decay, backend=None):
    return gated_average(x, gate, -decay, backend=backend)[0]


MATRIX = [(2, 6, 4), (2, 6), (2, 3, 6)]
GATED = [(2, 2, 9, 3), (2, 2, 9), (2, 2, 9)]
OPERATIONS = {
    "unit_norm": (unit_norm, [(4, 3)]),
    "unit_norm with eps": (lambda x: unit_norm(x, 0.1), [(4, 3)]),
    "leaky_average": (lambda x: leaky_average(x, HEADS)[0], [(2, 2, 40, 3)]),
    "gated_average": (average, GATED),
    "gated_linear_attention": (
        lambda q, k, v, g: gated_linear_attention(q, k, v, -g)[0],
        [(1, 2, 20, 3), (1, 2, 20, 3), (1, 2, 20, 4), (1, 2, 20, 3)],
    ),
    "linear_recurrence": (lambda x, keep: linear_recurrence(x, keep)[0], GATED[:2]),
    "gated recurrence": (lambda x, new: linear_recurrence(x, 1 - new, new)[0], GATED[:2]),
    "linear_cross_entropy": (lambda h, w: linear_cross_entropy(h, w, LABELS), [(4, 3), (5, 3)]),
    "linear_cross_entropy of scaled logits": (
        lambda h, w: linear_cross_entropy(h, w, LABELS, scale=3.0),
        [(4, 3), (5, 3)],
    ),
    "selective_scan": (
        lambda x, step, rate, write, read: selective_scan(x, step, -rate, write, read),
        [(2, 7, 3), (2, 7, 3), (3, 2), (2, 7, 2), (2, 7, 2)],
    ),
    "read_association": (read_association, MATRIX),
    "write_association": (
        lambda *memory: write_association(*memory, EMPTY, correction=False)[0],
        [*MATRIX, (2, 3, 4), (2, 3)],
    ),
}


def second_derivative_is_right_or_refused(function, inputs, rtol=1e-4):
    """Along one direction, against a difference of first derivatives."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    output = function(*inputs)
    above = drawn(output.shape, dtype=output.dtype)[0] - 0.3

    def first(*points, **options):
        value = (function(*points).double() * above).sum() + sum(point.pow(3).sum() for point in points)
        return torch.autograd.grad(value, points, materialize_grads=True, allow_unused=True, **options)

    directions = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype) for x in inputs]
    gradients = first(*inputs, create_graph=True)
    try:
        along = sum((gradient * direction).sum() for gradient, direction in zip(gradients, directions))
        second = torch.autograd.grad(along, inputs, allow_unused=True, materialize_grads=True)
    except TesseraError as error:
        assert "a second derivative is not there" in str(error)  # noqa: PT017
        return
    except RuntimeError as error:  # PyTorch's own operations
        assert "is not implemented" in str(error)  # noqa: PT017
        return
    step = 1e-5
    ahead = first(*((x + step * d).detach().requires_grad_() for x, d in zip(inputs, directions)))
    behind = first(*((x - step * d).detach().requires_grad_() for x, d in zip(inputs, directions)))
    for actual, far, near in zip(second, ahead, behind, strict=True):
        expected = (far - near) / (2 * step)
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=1e-6 * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name):
    function, shapes = OPERATIONS[name]
    second_derivative_is_right_or_refused(function, drawn(*shapes))


@pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)
def test_weights_of_kernels(kernel):
    second_derivative_is_right_or_refused(kernel.weights, drawn((3, 9)))


@pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)
@pytest.mark.parametrize("backend", ["chunked", "reference", "fused"])
def test_kernel_regression(kernel, backend):
    if backend == "fused" and kernel.name != "gaussian":
        return

    def function(query, key, value, beta):
        query, key = normalize(query, dim=-1), normalize(key, dim=-1)
        slope, intercept = kernel.affine(beta + 0.5)
        return kernel_regression(
            query, key, value, kernel=kernel, slope=slope, intercept=intercept, window=Window(), backend=backend
        )

    second_derivative_is_right_or_refused(function, drawn((1, 2, 9, 3), (1, 2, 9, 3), (1, 2, 9, 4), (2, 1)))


ROWS = {identifier(kernel): (kernel.weights, [(3, 9)]) for kernel in all_kernels()}
ROWS |= {
    "entmax of rows": (lambda x, alpha: EntmaxOfRows(1 + alpha).weights(3 * x), [(3, 9), (3, 1)]),
    "entmax, alpha of all": (lambda x, alpha: entmax(3 * x, 1 + alpha), [(3, 9), (1,)]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize("name", [*OPERATIONS, *ROWS])
def test_torch_func_gives_the_same_gradients(name):
    """Of one call, mapped over many, and as a Jacobian; forward derivatives are right or refused."""
    function, shapes = (OPERATIONS | ROWS)[name]
    many = drawn(*((4, *shape) for shape in shapes))

    def total(*inputs):
        return function(*inputs).sin().sum()

    each = [[x[row].requires_grad_() for x in many] for row in range(4)]
    if name == "selective_scan":
        return refused("stand outside of torch.func", torch.func.grad(total), *each[0])
    places = tuple(range(len(shapes)))
    expected = [torch.autograd.grad(total(*inputs), inputs) for inputs in each]
    alone = torch.func.grad(total, places)(*(x[1] for x in many))
    torch.testing.assert_close(alone, expected[1])
    mapped = torch.vmap(torch.func.grad(total, places))(*many)
    torch.testing.assert_close(mapped, tuple(map(torch.stack, zip(*expected))))
    answer = function(*each[1]).detach().flatten()
    jacobian = torch.func.jacrev(function)(*(x[1] for x in many)).reshape(len(answer), -1)
    torch.testing.assert_close(answer.cos() @ jacobian, expected[1][0].flatten())
    refusal, direction = "", many[0][2]
    try:
        along = torch.func.jvp(lambda x: function(x, *each[1][1:]), (many[0][1],), (direction,))[1]
    except TesseraError as error:
        refusal = str(error)
    if refusal:
        assert "a forward derivative (jvp, jacfwd) is not there" in refusal
    else:
        torch.testing.assert_close(along.flatten(), jacobian @ direction.flatten())


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_forward_derivatives_outside_of_torch_func_are_the_same():
    x, direction = drawn((4, 3), (4, 3))
    x.requires_grad_()
    with forward_ad.dual_level():
        along = forward_ad.unpack_dual(unit_norm(forward_ad.make_dual(x, direction))).tangent
        refused("a forward derivative", all_kernels()[1].weights, forward_ad.make_dual(x, direction))
    torch.testing.assert_close(along, torch.func.jvp(unit_norm, (x,), (direction,))[1])


def test_torch_func_takes_bfloat16():
    """Whose own way on CPUs is an autograd function."""
    inputs = drawn((1, 2, 9, 3), (1, 2, 9, 3), (1, 2, 9, 4), dtype=torch.bfloat16)

    def total(*inputs):
        return kernel_regression(*inputs, kernel="gaussian", inverse_bandwidth=0.5).float().sin().sum()

    gradients = torch.func.grad(total, (0, 1, 2))(*inputs)
    expected = torch.func.grad(total, (0, 1, 2))(*(x.double() for x in inputs))
    torch.testing.assert_close(gradients, expected, rtol=0.05, atol=0.01, check_dtype=False)
    logits = linear_cross_entropy(inputs[0][0, 0], inputs[1][0, 0], torch.arange(9))
    mapped = torch.vmap(lambda x: linear_cross_entropy(x, inputs[1][0, 0], torch.arange(9)))(inputs[0][0])
    assert mapped.dtype == logits.dtype == torch.float32
    torch.testing.assert_close(mapped[0], logits, rtol=0.01, atol=0)


def test_triton(triton_device):
    """Each refuses: their kernels have no derivative."""
    assert os.environ.get("TRITON_INTERPRET") or triton_device.type == "cuda"
    x, gate, decay = (t.float().to(triton_device).requires_grad_() for t in drawn((1, 2, 5, 3), (1, 2, 5), (1, 2, 5)))
    key, value, strength = (t.float().to(triton_device).requires_grad_() for t in drawn((2, 3, 6), (2, 3, 4), (2, 3)))
    memory = [t.float().to(triton_device).requires_grad_() for t in drawn((2, 6, 4), (2, 6))]
    empty = EMPTY.to(triton_device)
    for function, leaf in (
        (lambda: leaky_average(x, HEADS.to(triton_device), backend="triton")[0], x),
        (lambda: average(x, gate, decay, backend="triton"), gate),
        (lambda: read_association(*memory, key, backend="triton"), key),
        (lambda: write_association(*memory, key, value, strength, empty, backend="triton")[0], strength),
        (lambda: kernel_regression(x, x, x, kernel="biweight", slope=2.0, backend="triton"), x),
    ):
        (first,) = torch.autograd.grad(function().square().sum(), leaf, create_graph=True)
        refused("a second derivative is not there", first.sum().backward)


@pytest.mark.parametrize(
    "name", ["v1 published", "v1 compact", "v2 gaussian", "linear attention gla", "armt around gpt2"]
)
def test_models(name):
    """By their embeddings."""
    model, ids = CASES[name].build(), tokens(1, 9)

    def function(embedded):
        return model(inputs_embeds=embedded).logits.log_softmax(-1)

    second_derivative_is_right_or_refused(function, [model.get_input_embeddings()(ids)], rtol=1e-3)


def mamba():
    config = MambaConfig(vocab_size=60, hidden_size=16, num_hidden_layers=2, state_size=4, use_cache=False)
    return use_selective_scan(AutoModelForCausalLM.from_config(config)).double()


@pytest.mark.parametrize("name", ["v1 published", "v2 compact", "linear attention retnet", "mamba"])
def test_each_row_of_a_batch_has_gradients_of_its_own(name):
    """By `torch.func`, as differential privacy and influence functions take them."""
    model, ids = mamba() if name == "mamba" else CASES[name].build(), tokens(3, 9) % 60
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights, row):
        inputs = {"input_ids": row[None], "labels": row[None]}
        return torch.func.functional_call(model, weights, (), inputs).loss

    mapped = torch.vmap(torch.func.grad(loss), (None, 0))(weights, ids)
    for number, row in enumerate(ids):
        model.zero_grad()
        model(row[None], labels=row[None]).loss.backward()
        for name, weight in model.named_parameters():
            torch.testing.assert_close(mapped[name][number], weight.grad)


COMPILED = ("unit_norm", "linear_cross_entropy", "linear_recurrence", "gated_average", "selective_scan")


@pytest.mark.grid  # compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the compiler's own
@some(
    ("name", "dtype"),
    [(name, dtype) for name in COMPILED for dtype in (torch.float32, torch.float64)],
    # Conversions to the same type are the danger.
    by_default=[("linear_cross_entropy", torch.float32), ("linear_recurrence", torch.float32)],
)
def test_compiled_operations_have_the_gradients_that_they_have_alone(name, dtype):
    """PyTorch 2.11 can lose them without a word."""
    torch._dynamo.reset()
    operation, shapes = OPERATIONS[name]
    leaves = [leaf.requires_grad_() for leaf in drawn(*shapes, dtype=dtype)]
    results = [run(*leaves) for run in (operation, torch.compile(operation, backend="aot_eager", fullgraph=True))]
    alone, compiled = (torch.autograd.grad(result.pow(3).sum(), leaves) for result in results)
    torch.testing.assert_close(compiled, alone)
    assert all(bool(gradient.any()) for gradient in alone)
