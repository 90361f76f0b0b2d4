"""`torch.export` and `torch.compile`: one program for any length, one graph where the model allows it."""

import pytest
import torch

from tessera.memories.linear_attention import VARIANTS
from tests.models.contract import CASES, close, tokens

AUTO = torch.export.Dim.AUTO
EXPORTED = ["v1 published", "v2 gaussian"]
ONE_GRAPH = [*EXPORTED, *(f"linear attention {variant}" for variant in VARIANTS)]
SEVERAL_GRAPHS = ["armt around gpt2"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the exporter's own
@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_program_takes_any_batch_and_length(name):
    model = CASES[name].build().float()
    sizes = {"input_ids": {0: AUTO, 1: AUTO}, "use_cache": None}
    arguments = {"input_ids": tokens(), "use_cache": False}
    program = torch.export.export(model, (), arguments, dynamic_shapes=sizes).module()
    for batch, steps in ((2, 3), (1, 5), (3, 31), (2, 32), (1, 33), (2, 64), (2, 65), (1, 200)):
        ids = tokens(batch, steps)
        # Another order of sums than that of the model, in float32 over several layers.
        torch.testing.assert_close(program(input_ids=ids, use_cache=False).logits, model(ids).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", EXPORTED)
def test_what_is_exported_computes_the_same(name, monkeypatch):
    """The ways that only an export takes, in float64: with padding, with documents, and after a state."""
    model, ids = CASES[name].build(), tokens(2, 75)
    mask = torch.ones_like(ids)
    mask[1, 70:] = 0
    documents = (torch.arange(75) >= 40).long().expand(2, -1)
    state = model(tokens(2, 9, seed=1), use_cache=True).past_key_values
    calls = [{}, {"attention_mask": mask}, {"document_ids": documents}, {"past_key_values": state}]
    expected = [model(ids, **call).logits for call in calls]
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    for call, logits in zip(calls, expected, strict=True):
        close(model(ids, **call).logits, logits)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the compiler's own
def test_one_graph():
    _compiles("v1 published", "aot_eager", fullgraph=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_training_is_one_graph(name):
    _compiles(name, "aot_eager", fullgraph=True, training=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
@pytest.mark.parametrize("name", SEVERAL_GRAPHS)
def test_training_in_several_graphs_is_the_same(name):
    _compiles(name, "aot_eager", fullgraph=False, training=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_training_by_the_default_compiler():
    _compiles("linear attention linear_transformer", "inductor", fullgraph=True, training=True)


def _compiles(name, backend, fullgraph, training=False):
    """Compiled and not: the same loss, and in training the same gradients."""
    model, ids = CASES[name].build().float().train(training), tokens()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):  # which draws other numbers in another order of graphs
            module.p = 0.0
    torch._dynamo.reset()
    options = {} if CASES[name].state == "memory_state" else {"use_cache": False}
    results = []
    for forward in (model, torch.compile(model, backend=backend, fullgraph=fullgraph)):
        model.zero_grad()
        torch.manual_seed(0)
        loss = forward(ids, labels=ids, **options).loss
        if training:
            loss.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        assert bool(gradients) == training
        results.append({"loss": loss.detach(), **gradients})
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
