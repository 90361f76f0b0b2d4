"""The blocked cross entropy is PyTorch's, in values and gradients."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tessera.ops import linear_cross_entropy as module
from tessera.ops.linear_cross_entropy import IGNORED, ROWS, linear_cross_entropy
from tests.refusals import refused


@pytest.fixture
def rows(monkeypatch):
    """How many rows each block has."""
    rows, block = [], module._block
    monkeypatch.setattr(module, "_block", lambda logits, *rest: rows.append(len(logits)) or block(logits, *rest))
    return rows


@pytest.mark.parametrize("num_rows", [1, ROWS, ROWS + 1, 2 * ROWS + 7])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("compiling", [False, True])  # a compiler gets the gradient written otherwise
def test_agrees_with_pytorch(monkeypatch, num_rows, scale, compiling):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    hidden = torch.randn(num_rows, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(31, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 31, (num_rows,))
    if num_rows > 1:
        labels[::3] = IGNORED
    actual = linear_cross_entropy(hidden, weight, labels, scale)
    expected = cross_entropy(scale * hidden @ weight.T, labels, reduction="sum")
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(2.5 * loss, (hidden, weight)) for loss in (actual, expected)))


def test_labels_of_fewer_bits_are_the_same_labels():
    hidden, weight = torch.randn(2, 4), torch.randn(300, 4)
    for kind, label in ((torch.int8, IGNORED), (torch.int16, 299)):
        labels = torch.tensor([50, label])
        assert torch.equal(*(linear_cross_entropy(hidden, weight, some) for some in (labels, labels.to(kind))))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        *((torch.tensor(n), rf"lie in 0\.\.6 \(vocab_size\) or be -100; got {n}\.") for n in (7, -1)),
        *((torch.ones((), dtype=kind), f"be integers; got {kind}") for kind in (torch.float, torch.bool, torch.cfloat)),
    ],
)
def test_labels_that_are_none_are_refused(label, message):
    refused(f"labels must {message}", linear_cross_entropy, torch.randn(1, 4), torch.randn(7, 4), label[None])


def test_rows_that_do_not_count_are_not_computed(rows):
    labels = torch.full((3 * ROWS,), IGNORED)
    labels[::10] = 2
    linear_cross_entropy(torch.randn(3 * ROWS, 4), torch.randn(7, 4), labels)
    assert rows == [len(labels[::10])]


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    hidden, weight, labels = torch.randn(300, 16, requires_grad=True), torch.randn(50, 16), torch.randint(0, 50, (300,))
    with torch.autocast("cpu", torch.bfloat16):
        actual = linear_cross_entropy(hidden, weight, labels)
    actual.backward()
    assert actual.dtype == torch.float32
    assert hidden.grad.dtype == torch.float32
    expected = cross_entropy(hidden.detach() @ weight.T, labels, reduction="sum")
    torch.testing.assert_close(actual.detach(), expected, rtol=1e-2, atol=0)  # eight bits in each logit


def test_blocks_of_a_gpu_hold_so_many_logits(rows, monkeypatch):
    """Rows by the size of the vocabulary, and never fewer than on a CPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(module, "GPU_LOGITS", 31 * 300)
    linear_cross_entropy(torch.randn(700, 4), torch.randn(31, 4), torch.zeros(700, dtype=torch.long))
    linear_cross_entropy(torch.randn(300, 4), torch.randn(310, 4), torch.zeros(300, dtype=torch.long))
    assert rows == [300, 300, 100, ROWS, 300 - ROWS]


def test_small_probabilities_survive_float16():
    """A gradient scaler scales the loss after the gradients were made: each of 1e-8, below float16's smallest."""
    hidden, weight = torch.zeros(2, 4), torch.randn(50_000, 4)
    weight[0] = torch.tensor([20.0, 0, 0, 0])
    hidden[:, 0] = 1.0
    hidden, weight = hidden.requires_grad_(), weight.requires_grad_()
    labels, results = torch.tensor([0, 0]), []
    for dtype in (torch.float32, torch.float16):
        with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
            loss = linear_cross_entropy(hidden, weight, labels)
        results.append(torch.autograd.grad(65536.0 * loss, weight)[0][1:])
    assert results[1].abs().max() > 0
    torch.testing.assert_close(results[1], results[0], rtol=0.05, atol=1e-5)
