"""Whole models take the way of a GPU, with Triton's kernels in the interpreter, and give what the CPU's way gives."""

import pytest
import torch

from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tessera.kernels import Gaussian
from tessera.ops import kernel_regression
from tests.models.armt.bases import make

SIZES = {"vocab_size": 20, "hidden_size": 16, "num_layers": 1, "num_heads": 2}


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """A function that turns every choice by device into that for a GPU, for float32 and narrower on Triton."""
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, which tests more")

    def begin():
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)

    return begin


def v1(kernel):
    return MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, num_persistent_slots=6, kernel=kernel))


def v2(kernel):
    spans = {"short_term_span": 4, "long_term_delay": 3}
    return MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**SIZES, **spans, intermediate_size=16, kernel=kernel))


MODELS = {
    **{f"v1 {kernel}": lambda kernel=kernel: v1(kernel) for kernel in ("gaussian", "biweight")},
    **{f"v2 {kernel}": lambda kernel=kernel: v2(kernel) for kernel in ("gaussian", "triweight")},
    "armt": lambda: make("armt").float(),
}


def results(model, ids, documents):
    """Loss, its gradients, and the logits of two steps behind a state."""
    options = {} if documents is None else {"document_ids": documents}
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, **options).loss
    loss.backward()
    with torch.no_grad():
        output, logits = model(input_ids=ids[:, :-2], use_cache=True), []
        for step in (-2, -1):
            output = model(input_ids=ids[:, step:][:, :1], past_key_values=output.past_key_values, use_cache=True)
            logits.append(output.logits)
    return [loss.detach(), *logits], {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("name", MODELS)
def test_equal_to_the_cpu(as_on_a_gpu, name):
    model = MODELS[name]().eval()  # training draws its delays
    ids = torch.randint(1, 20, (1, 14))
    documents = None if name == "armt" else torch.tensor([[0] * 5 + [1] * 9])
    outputs, gradients = results(model, ids, documents)
    as_on_a_gpu()
    found, found_gradients = results(model, ids, documents)
    torch.testing.assert_close(found, outputs, rtol=1e-4, atol=1e-5)
    assert found_gradients.keys() == gradients.keys()
    for parameter, gradient in gradients.items():
        error = (found_gradients[parameter] - gradient).abs().max().item()
        assert error <= 1e-4 * max(gradient.abs().max().item(), 1e-2), parameter


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # PyTorch's own, while it sets its compiler up
@pytest.mark.parametrize("name", ["v1 biweight", "v2 triweight"])
def test_compiled_in_one_graph(monkeypatch, name):
    """The compiler keeps the layouts that the kernels were promised, and finds nothing to break the graph at."""
    model = MODELS[name]().eval()
    ids = torch.randint(1, 20, (1, 14))
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    # The compiler's own tensors say where they are, so the choice by device is made here.
    chosen = {False: "triton", True: "fused"}
    monkeypatch.setattr(kernel_regression, "_volunteers", lambda name, call: name == chosen[call.kernel == Gaussian()])
    outputs, gradients = step(model, ids)
    found, found_gradients = step(torch.compile(model, fullgraph=True), ids)
    torch.testing.assert_close(found, outputs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found_gradients, gradients, rtol=1e-3, atol=1e-5)


def step(model, ids):
    """Loss and gradients."""
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
