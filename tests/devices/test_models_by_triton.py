"""Whole models take the way of a GPU and give what the CPU's way gives: on a GPU if there is one, else with its choices
made on the CPU and Triton's kernels in the interpreter."""

from collections import Counter
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tessera.kernels import Biweight, Gaussian
from tessera.models.armt.diagonal import read_diagonally
from tessera.ops import kernel_regression
from tests.covering import some
from tests.models.armt.bases import make
from tests.models.contract import v1, v2

pytestmark = pytest.mark.grid  # a dry run of a GPU

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_layers": 1, "num_heads": 2}
CUDA = torch.cuda.is_available()


class Operators(TorchDispatchMode):
    """Counts the library's own operators: the proof that Triton ran."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "tessera":
            self.count[function._schema.name.split("::")[1]] += 1
        return function(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """A function that moves a model to the GPU, or turns every choice by device into that for a GPU."""
    pytest.importorskip("triton")

    def begin(model):
        if CUDA:
            return model.to("cuda")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        return model

    return begin


MODELS = {
    **{f"v1 {kernel}": partial(v1, **SIZES, kernel=kernel) for kernel in ("gaussian", "biweight")},
    **{f"v2 {kernel}": partial(v2, **SIZES, long_term_delay=3, kernel=kernel) for kernel in ("gaussian", "triweight")},
    "armt": lambda: make("armt").float(),
}
REGRESSION = {"kernel_regression", "kernel_regression_backward"}
RECURRENCE = {"linear_recurrence", "linear_recurrence_backward"}
OPERATORS = {
    "v1": REGRESSION | RECURRENCE,
    "v2": REGRESSION | RECURRENCE | {"gate_shares"},
    "armt": {"association_read", "association_write"},
}


def results(model, ids, documents=None):
    """Loss, the logits of two steps behind a state, and the loss's gradients; all on the CPU."""
    device = model.get_input_embeddings().weight.device
    ids, options = ids.to(device), {} if documents is None else {"document_ids": documents.to(device)}
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, **options).loss
    loss.backward()
    with torch.no_grad():
        output, logits = model(input_ids=ids[:, :-2], use_cache=True), []
        for step in (-2, -1):
            output = model(input_ids=ids[:, step:][:, :1], past_key_values=output.past_key_values, use_cache=True)
            logits.append(output.logits)
    gradients = {name: p.grad.clone().cpu() for name, p in model.named_parameters() if p.grad is not None}
    return [x.detach().cpu() for x in (loss, *logits)], gradients


# tests/ops compares every operator, kernel and window by itself.
@some("name", MODELS, by_default=("v1 biweight", "armt"))
def test_equal_to_the_cpu(as_on_a_gpu, name):
    model = MODELS[name]().eval()  # training draws its delays
    ids = torch.randint(1, 20, (1, 11 if name == "armt" else 7))
    documents = None if name == "armt" else torch.tensor([[0] * 3 + [1] * 4])
    outputs, gradients = results(model, ids, documents)
    model = as_on_a_gpu(model)
    with Operators() as operators:
        actual, found_gradients = results(model, ids, documents)
    assert operators.count.keys() == OPERATORS[name.split()[0]]
    torch.testing.assert_close(actual, outputs, rtol=1e-4, atol=1e-5)
    assert found_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        error = (found_gradients[parameter] - gradient).abs().max().item()
        assert error <= 1e-4 * max(gradient.abs().max().item(), 1e-2), parameter


def test_diagonal_batching_is_one_launch_per_wave(as_on_a_gpu):
    model, ids = make("armt").float(), torch.randint(1, 60, (1, 24))
    expected = model(ids)
    model = as_on_a_gpu(model)
    ids = ids.to(model.get_input_embeddings().weight.device)
    with Operators() as operators:
        logits, memory = read_diagonally(model, ids)
    assert operators.count == {"association_read": 4, "association_write": 4}  # 3 segments, 2 layers: 4 waves
    torch.testing.assert_close(logits.cpu(), expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(memory.A.cpu(), expected.memory_state.A, rtol=1e-4, atol=1e-5)
    gradients = (torch.autograd.grad(x.square().mean(), list(model.parameters())) for x in (logits, model(ids).logits))
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("pairs", "backend"), [(16_384, "triton"), (16_385, "reference")])
def test_one_query_of_a_gpu(as_on_a_gpu, pairs, backend):
    as_on_a_gpu(torch.nn.Identity())
    key = torch.empty(1, 1, pairs, 4, device="cuda" if CUDA else "cpu")
    call = kernel_regression.Call(key[:, :, :1], key, key, Biweight(), torch.ones(()), query_offset=pairs)
    assert kernel_regression.choose_backend(call) is kernel_regression.BACKENDS[backend]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # PyTorch's own, while it sets its compiler up
@pytest.mark.parametrize("name", ["v1 biweight", "v2 triweight"])
def test_compiled_in_one_graph(monkeypatch, name):
    """The compiler keeps the layouts that the kernels were promised, and finds nothing to break the graph at."""
    pytest.importorskip("triton")
    model, device = MODELS[name]().eval(), "cuda" if CUDA else "cpu"
    if not CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        # The compiler's own tensors say where they are, so the choice by device is made here.
        chosen = {False: "triton", True: "fused"}
        choose = lambda backend, call: backend == chosen[call.kernel == Gaussian()]  # noqa: E731
        monkeypatch.setattr(kernel_regression, "_is_preferred", choose)
    model, ids = model.to(device), torch.randint(1, 20, (1, 14), device=device)
    outputs, gradients = step(model, ids)
    actual, found_gradients = step(torch.compile(model, fullgraph=True), ids)
    torch.testing.assert_close(actual, outputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_gradients, gradients, rtol=1e-3, atol=1e-5)


def step(model, ids):
    """Loss and gradients."""
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
