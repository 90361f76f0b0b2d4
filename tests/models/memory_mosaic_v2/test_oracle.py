"""Memory Mosaics v2 against the step-by-step oracle: outputs to 1e-9, gradients to 1e-7."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
from tests.models.memory_mosaic_v2 import oracle

SIZES = {"vocab_size": 23, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "intermediate_size": 10}
# Both sides are float64; gradients are sums over all steps.
OUTPUTS, GRADIENTS = {"rtol": 0, "atol": 1e-9}, {"rtol": 1e-7, "atol": 1e-7}


def build(**changes):
    torch.manual_seed(5)
    config = MemoryMosaicV2Config(**{**SIZES, "short_term_span": 5, "long_term_delay": 3, **changes})
    model = MemoryMosaicV2ForCausalLM(config).double().eval()
    with torch.no_grad():  # away from the initial values, where heads agree and gates are near 1
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
        model.model.layers[0].long_term.bandwidth.exponent_rate.neg_()  # whose sign does not matter
    return model


def compare(model, ids, delays, documents=None, **oracle_arguments):
    parameters = dict(model.named_parameters())
    actual = model(ids, document_ids=documents).logits
    rows = zip(ids, delays, [None] * len(ids) if documents is None else documents)
    expected = torch.stack([oracle.read(parameters, model.config, *row, **oracle_arguments) for row in rows])
    torch.testing.assert_close(actual, expected, **OUTPUTS)
    is_used = oracle_arguments.get("long_term", True)
    used = [parameter for name, parameter in parameters.items() if is_used or "long_term" not in name]
    losses = (cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) for logits in (actual, expected))
    torch.testing.assert_close(*(torch.autograd.grad(loss, used) for loss in losses), **GRADIENTS)


@pytest.mark.parametrize("steps", [1 + 4, 17])
def test_whole_sequences(steps):
    compare(build(), torch.randint(0, 23, (2, steps)), [3, 3])


def test_training_draws_one_delay_per_sequence(monkeypatch):
    delays = torch.tensor([1, 4, 7])
    monkeypatch.setattr(torch, "randint", lambda *args, **kwargs: delays)
    ids = torch.full((3, 14), 2).scatter(1, delays[:, None], 9)
    compare(build(training_long_term_delay=(1, 7)).train(), ids, delays.tolist())


def test_packed_documents():
    documents = torch.tensor([[0] * 7 + [1] * 9, [-1] * 4 + [2] * 12])
    compare(build(), torch.randint(0, 23, (2, 16)), [3, 3], documents)


def test_without_long_term_memory():
    model = build()
    model.disable_long_term_memory()
    compare(model, torch.randint(0, 23, (1, 13)), [3], long_term=False)


def test_with_another_kernel():
    def sparsemax(scores):
        ranked = scores.sort(descending=True).values
        counts = torch.arange(1, len(scores) + 1)
        size = int((1 + counts * ranked > ranked.cumsum(0)).sum())
        return (scores - (ranked[:size].sum() - 1) / size).clamp(min=0)

    compare(build(kernel="epanechnikov"), torch.randint(0, 23, (1, 13)), [3], kernel=sparsemax)
