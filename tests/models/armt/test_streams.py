"""Long texts: token by token, alone, beside others, interrupted, in bfloat16, in one call, and by diagonal batching."""

import weakref

import pytest
import torch

from tessera.armt import wrap
from tessera.models.armt.diagonal import read_diagonally, read_stream_diagonally
from tessera.models.recurrence import read_stream, read_streams
from tessera.models.recurrence.segment_runner import SegmentRunner
from tests.covering import each_value, some
from tests.models.armt.bases import BASES, KINDS, PAIRS, make, same_memory, tokens
from tests.refusals import refused
from tests.tolerances import close


@some(("kind", "family"), PAIRS, by_default=[("armt", "gpt2"), ("rmt", "llama"), ("prmt", "memory_mosaic")])
def test_a_stream_is_the_text_and_may_be_interrupted(kind, family):
    model, ids = make(kind, family), tokens(1, 29)
    at_once = model(ids).memory_state
    same_memory(read_stream(model, iter(ids[0].tolist())), at_once)
    half = read_stream(model, ids[0, :16].tolist())
    same_memory(read_stream(model, ids[0, 16:].tolist(), half), at_once)
    assert at_once.tokens_read.item() == 29
    assert at_once.segments_read.item() == 4
    assert not any(tensor.requires_grad for tensor in half.tensors().values())


@pytest.mark.parametrize("kind", KINDS)
def test_texts_side_by_side_are_the_texts_alone(kind):
    model, lengths = make(kind), (29, 5, 16, 0, 31, 16)
    texts = [tokens(1, length)[0].tolist() for length in lengths]
    alone = [read_stream(model, text) for text in texts]
    together = read_streams(model, [iter(text) for text in texts])
    assert together.tokens_read.tolist() == list(lengths)
    same_memory(together, type(together).stack(alone))
    half = read_streams(model, [text[:8] for text in texts])
    same_memory(read_streams(model, [text[8:] for text in texts], half), together)


def test_readings_side_by_side_take_the_calls_of_the_longest(monkeypatch):
    model, calls = make(), []
    run = SegmentRunner.run
    monkeypatch.setattr(SegmentRunner, "run", lambda *arguments: calls.append(1) or run(*arguments))
    read_streams(model, [tokens(1, 40)[0].tolist()] * 3)
    assert len(calls) == 5


@pytest.mark.parametrize(
    ("texts", "rows", "message"), [([], None, "at least one"), ([[1], [2]], 1, "hold 2 rows; got 1")]
)
def test_readings_that_cannot_be_are_refused(texts, rows, message):
    model = make()
    refused(message, read_streams, model, texts, None if rows is None else model.empty_memory(rows))


@pytest.mark.parametrize(
    ("stream", "got"),
    [
        (tokens(1, 20), r"torch.int64 \(20,\)"),  # what a tokenizer gives with return_tensors="pt"
        ([[1, 2]], "list"),
        ("a text", "str"),
        ({"input_ids": [1, 2]}, "str"),
        ([1.5], "float"),
    ],
)
def test_what_is_no_stream_of_tokens_is_said(stream, got):
    """Of a list it said that it must be a sequence, of a text a traceback."""
    message = rf"tokens must be whole numbers, one by one \(of a tensor \(1, T\) its row\); got {got}\."
    for read in (read_stream, read_stream_diagonally):
        refused(message, read, make(), stream)
    refused(message, read_streams, make(), [stream, [1]])


def test_a_reading_in_bfloat16_is_near_and_the_memory_stays_float32(monkeypatch):
    model, ids = make().float(), tokens(1, 29)[0].tolist()
    exact, rounded = read_stream(model, ids, precision="fp32"), read_stream(model, ids, precision="bf16")
    assert rounded.A.dtype == torch.float32
    difference = (rounded.A - exact.A).norm() / exact.A.norm()
    assert 1e-5 < difference < 0.05
    for is_fast, expected in ((True, rounded), (False, exact)):
        monkeypatch.setattr("tessera.base.precision.has_fast_bfloat16", lambda device, fast=is_fast: fast)
        assert torch.equal(read_stream(model, ids, precision="auto").A, expected.A)


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_call_keeps_the_last_memory_alone(kind, monkeypatch):
    model, made, alive = make(kind, "gpt2"), [], []
    run = SegmentRunner.run

    def watched(self, segment, state):
        result = run(self, segment, state)
        made.append(weakref.ref(result.memory))
        alive.append(sum(memory() is not None for memory in made))
        return result

    monkeypatch.setattr(SegmentRunner, "run", watched)
    with torch.no_grad():
        model(tokens(1, 64), skip_logits=True)
        assert len(alive) == 8
        assert max(alive) <= 2  # the one that is read and the one that is written
        model(tokens(1, 64), skip_logits=True, output_segment_states=True)
    assert max(alive) > 2


@each_value(family=["gpt2", "gpt_neox", "llama", "qwen3", "memory_mosaic"], segments=[1, 2, 5])
def test_read_diagonally_logits_and_memory_are_the_same(family, segments):
    model, ids = make(family=family), tokens(2, 8 * segments)
    before = model(tokens(2, 16)).memory_state
    for state in (None, before):
        expected = model(ids, memory_state=state)
        logits, memory = read_diagonally(model, ids, state)
        close(logits, expected.logits)
        same_memory(memory, expected.memory_state)


def test_one_memory_is_asked_by_many_diagonally():
    model, ids = make(), tokens(4, 16)
    state = model(tokens(2, 19)).memory_state
    expected = model(ids, memory_state=state)
    logits, memory = read_diagonally(model, ids, state)
    close(logits, expected.logits)
    assert memory.batch_size == 4
    refused("divides 3, the rows of input_ids; got 2", read_diagonally, model, ids[:3], state)


def test_closed_gates_leave_the_memory_empty_diagonally():
    model, ids = make(strength_stretch=0.1, gate_normalizer=True), tokens(2, 24)
    with torch.no_grad():
        for memory in model.memories.in_order():
            memory.strength.weight.zero_()
            memory.strength.bias.fill_(-6.0)
    state = read_diagonally(model, ids)[1]
    assert all(layer.empty.all() for layer in state.layers)
    assert not state.z.any()


def test_gradients_of_a_diagonal_reading():
    model, ids = make(own_memory_positions=True, update_order="sequential"), tokens(1, 24)
    both = (model(ids).logits, read_diagonally(model, ids)[0])
    expected, actual = (torch.autograd.grad(logits.square().sum(), list(model.parameters())) for logits in both)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * b.abs().max().item())


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_a_stream_read_diagonally(segments):
    """In parts of whole segments, the last of them short, and going on from an earlier memory."""
    model, ids = make(), tokens(1, 3 * 8 + 5)[0].tolist()
    for before in (None, model(tokens(1, 16)).memory_state):
        same_memory(read_stream_diagonally(model, iter(ids), before, segments), read_stream(model, ids, before))
    assert not read_stream_diagonally(model, []).segments_read.any()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        (
            "qwen3",
            {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
        ),
    ],
)
def test_layers_that_differ_in_more_than_weights_are_not_read_as_the_first(family, changes):
    """All cells of a step are computed by the module of one, with the arguments of the first layer."""
    model = wrap(BASES[family](**changes).double().eval(), segment_size=8, num_memory_tokens=2, memory_dim=4)
    for parameter in model.base.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    needed = "read_diagonally: model must have layers that differ in their weights alone; got .* Read with model"
    refused(needed, read_diagonally, model, tokens(1, 16))
    refused(needed, read_stream_diagonally, model, tokens(1, 16)[0].tolist())


def test_what_cannot_be_read_diagonally_is_refused():
    refused("segments must be at least 1; got 0", read_stream_diagonally, make(), [1], segments=0)
    refused("be ARMT", read_stream_diagonally, make("rmt"), [1])
    refused("whole segments of 8 tokens", read_diagonally, make(), tokens(1, 12))
    refused("be ARMT", read_diagonally, make("rmt"), tokens(1, 8))
    model = make()
    for layer in model.base.transformer.h:
        layer.mlp.register_forward_hook(lambda module, inputs, output: output if output.sum() > 0 else -output)
    refused(r"torch\.vmap can batch them; got: .* Read with model", read_diagonally, model, tokens(1, 16))
