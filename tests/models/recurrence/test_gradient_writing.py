"""A memory written by gradient descent: what it minimises, what depends on what, and its second derivatives."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tessera.models.gradient_writing import GradientWriter
from tests.models.armt.bases import BASES, WRAPS
from tests.refusals import refused

TEXTS = torch.tensor([[3, 4, 5, 6, 7], [8, 3, 9, 4, 2]])
NEOX = {"vocab_size": 11, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "initializer_range": 0.5}


def around(base, kind="rmt", steps=3, rate=0.5):
    return GradientWriter(WRAPS[kind](base, segment_size=8, num_memory_tokens=2), steps, rate)


def writer(kind: str = "rmt", steps: int = 3) -> GradientWriter:
    """Around a GPT-NeoX in float64."""
    torch.manual_seed(0)
    return around(BASES["gpt_neox"](**NEOX).double(), kind, steps).eval()


def told_again(model, memory, texts):
    """The mean loss of each text's later tokens behind its memory, by the model's public call."""
    logits = model(input_ids=texts, memory_state=memory, use_cache=True).logits
    return cross_entropy(logits[:, :-1].transpose(1, 2), texts[:, 1:], reduction="none").mean(1)


@pytest.mark.parametrize("kind", WRAPS)
def test_every_step_goes_down_the_gradient_of_the_loss(kind):
    """One step equals `S - r dL/dS` computed from the model's own public call, and more steps tell the text better."""
    written = writer(kind, steps=1)
    start = written.empty_memory(2).map(lambda tensor: tensor.detach().clone())
    name = "matrix" if kind == "armt" else "tokens"
    tensors = [getattr(layer, name).requires_grad_() for layer in start.layers]
    loss = told_again(written.model, start, TEXTS).sum()
    expected = [t - 0.5 * g for t, g in zip(tensors, torch.autograd.grad(loss, tensors))]
    memory = written.write(TEXTS)
    torch.testing.assert_close([getattr(layer, name) for layer in memory.layers], expected, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        many = writer(kind, steps=20).write(TEXTS)
        assert (told_again(written.model, many, TEXTS) < told_again(written.model, start, TEXTS) - 0.05).all()
    assert memory.tokens_read.tolist() == [5, 5]


@pytest.mark.parametrize("kind", WRAPS)
def test_gradients_flow_through_the_steps(kind):
    """The derivative of an answer's loss by the rates and by what S_0 or the reading is made of, beside differences."""
    written = writer(kind)
    memory = written.model.memories[0].query if kind == "armt" else written.model.memory_tokens
    first = next(memory.parameters())

    def answer() -> torch.Tensor:
        memory = written.write(TEXTS)
        return written(input_ids=TEXTS[:, :2], labels=TEXTS[:, :2], memory_state=memory, use_cache=True).loss

    answer().backward()
    for parameter in (written.log_rates, first):
        direction = torch.randn_like(parameter)
        slopes = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * 1e-5)
                slopes.append(sign * answer().item() / 2e-5)
                parameter.sub_(direction, alpha=sign * 1e-5)
        slope = (parameter.grad * direction).sum().item()
        assert slope == pytest.approx(sum(slopes), rel=1e-5, abs=1e-9)
        assert slope != 0.0


@pytest.mark.parametrize("kind", WRAPS)
def test_rows_are_written_apart_and_without_gradients_the_same(kind):
    """Batch = alone; without gradients the same numbers, no graph, and no gradient left at a weight."""
    written = writer(kind)
    together = written.write(TEXTS)
    with torch.no_grad():
        alone = [written.write(text[None]) for text in TEXTS]
    stacked = type(together).stack(alone).tensors()
    assert not any(tensor.requires_grad for tensor in stacked.values())
    torch.testing.assert_close(stacked, together.tensors(), rtol=1e-10, atol=1e-12)
    assert all(parameter.grad is None for parameter in written.parameters())


@pytest.mark.parametrize("kind", WRAPS)
def test_every_memory_of_the_model_is_written_into(kind):
    """One that has read nothing, one in another dtype, and one of fewer rows, of which each serves several."""
    written = writer(kind)
    with torch.no_grad():
        expected = written.write(TEXTS).tensors()
        empty = written.model.empty_memory(1)
        states = [empty, written.empty_memory(1), empty.repeat_batch(2), empty.to(torch.float32)]
        actual = [written.write(TEXTS, state).tensors() for state in states]
    for tensors, tolerance in zip(actual, (1e-10, 1e-10, 1e-10, 1e-5), strict=True):
        torch.testing.assert_close(tensors, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", WRAPS)
def test_writes_in_inference_mode(kind):
    written = writer(kind)
    with torch.no_grad():
        expected = written.write(TEXTS).tensors()
    with torch.inference_mode():
        texts = TEXTS + 0  # made here, as a pipeline makes them
        first = written.write(texts)
        second = written.write(texts, first)
        read = written.model(input_ids=texts, memory_state=second).logits
    torch.testing.assert_close(first.tensors(), expected, rtol=1e-10, atol=1e-12)
    assert read.isfinite().all()
    assert second.tokens_read.tolist() == [10, 10]


def test_refuses_what_it_cannot_write():
    """A model without such a memory, one with first derivatives alone, texts that are too short or too long."""
    written, mask = writer(), torch.ones_like(TEXTS)
    refused("input_ids must be int64 or int32", written.write, TEXTS.float())
    refused(r"input_ids must lie in 0..10 \(vocab_size 11\); got values from", written.write, TEXTS + 9)
    refused("memory_state must be RMTState; got ARMTState", written.write, TEXTS, writer("armt").empty_memory(2))
    refused("rows that divides 2", written.write, TEXTS, written.empty_memory(3))
    shown = written(TEXTS, attention_mask=mask).memory_state
    assert torch.equal(shown.memory_tokens, written.write(TEXTS).memory_tokens)
    mask[0, 0] = 0
    refused("attention_mask must be ones", written, TEXTS, attention_mask=mask)
    cache = written.model(TEXTS, use_cache=True).past_key_values
    refused("past_key_values must be left out: a text is written whole", written, TEXTS, past_key_values=cache)
    gpt2 = BASES["gpt2"](n_positions=12)
    refused("model must be ARMT, RMT or PRMT; got GPT2LMHeadModel", GradientWriter, gpt2)
    refused("T > 1", writer().write, TEXTS[:, :1])
    (getattr(written.model, "activation_checkpointing_enable", None) or written.model.gradient_checkpointing_enable)()
    assert torch.equal(written.write(TEXTS).memory_tokens, shown.memory_tokens)  # nothing is computed twice
    refused("gradient checkpointing must be off; got on. Steps go backward", written.train().write, TEXTS)
    refused("at most 10 tokens", around(gpt2).write, torch.ones(1, 11, dtype=torch.long))
    tokens = around(BASES["memory_mosaic"]()).write(TEXTS).memory_tokens
    refused("second derivative", tokens.sum().backward)
