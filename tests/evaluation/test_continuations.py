"""Continuations are as likely as one pass over each request says, and what contexts share is read once."""

import copy

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
)

from tessera.evaluation import continuations
from tessera.evaluation.continuations import Request, continuation_likelihoods, prefix_tree
from tessera.models.forking import fork, state_bytes, state_numbers
from tests.covering import each_value, some
from tests.models.contract import CASES, VOCABULARY, tokens
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT64


def test_a_recurrence_that_loses_its_state_reads_each_text_at_once():
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
    model = JambaForCausalLM(JambaConfig(**sizes, **heads, num_experts=1, mamba_d_state=4, mamba_dt_rank=4)).eval()
    for layer in (layer.mamba for layer in model.model.layers if hasattr(layer, "mamba")):
        torch.nn.init.normal_(layer.x_proj.weight)
    shots, *choices = drawn(30, 3, 4)
    requests = [Request(shots, choice) for choice in choices]
    for request, likelihood in zip(requests, continuation_likelihoods(model, requests)):
        assert likelihood.log_likelihood == pytest.approx(expected(model, request)[0], abs=1e-4)


def test_a_recurrence_that_hands_no_state_back_reads_each_text_at_once():
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 3, "intermediate_size": 32}
    config = RecurrentGemmaConfig(**sizes, num_attention_heads=2, lru_width=16, attention_window_size=64)
    model = RecurrentGemmaForCausalLM(config).eval()
    shots, *choices = drawn(30, 3, 4)
    several = [Request(shots, choice) for choice in choices]
    values = [expected(model, request)[0] for request in several]
    likelihoods = continuation_likelihoods(model, several, batch_size=2)
    assert [one.log_likelihood for one in likelihoods] == pytest.approx(values, abs=1e-4)


def drawn(*lengths):
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def requests():
    """Questions behind the same shots, choices behind the same question, choices that begin alike, and single ones."""
    shots, *questions = drawn(30, 5, 7)
    choices = drawn(1, 2, 3, 1)
    several = [Request(shots + question, choice) for question in questions for choice in choices]
    long, short, one = drawn(40, 1, 1)
    return [*several, several[2], Request(questions[0], long), Request(short, one), Request(one, short)]


@torch.no_grad()
def expected(model, request):
    context, continuation = request
    scores = model(torch.tensor([[*context, *continuation]])).logits[0, len(context) - 1 : -1].log_softmax(-1)
    next_tokens = torch.tensor(continuation)
    return float(scores.gather(1, next_tokens[:, None]).sum()), bool((scores.argmax(-1) == next_tokens).all())


KINDS = ["v2 gaussian", "linear attention gla", "armt around gpt2", "lstm", "transformer"]
# What these read by, another kind does too.
AS_OTHERS = ["v1 published", "v2 neighbours", "rmt around memory_mosaic", "prmt around gpt2"]


@some("name", [*KINDS, *AS_OTHERS], by_default=KINDS)
def test_likelihoods_are_those_of_single_passes(name, monkeypatch):
    model, drawn_requests = CASES[name].build(), requests()
    expected_pairs = [expected(model, request) for request in drawn_requests]
    for size, order, piece in ((1, 1, 4096), (4, -1, 4096), (4, 1, 9)):
        monkeypatch.setattr(continuations, "LEAST_PIECE", piece)
        monkeypatch.setattr(continuations, "LARGEST_PIECE", piece)
        results = continuation_likelihoods(model, drawn_requests[::order], batch_size=size)[::order]
        for result, (value, is_greedy) in zip(results, expected_pairs):
            assert result.log_likelihood == pytest.approx(value, rel=REORDERED_FLOAT64, abs=REORDERED_FLOAT64)
            assert result.is_greedy == is_greedy


@torch.no_grad()
def of_its_length(model, request):
    """From one call, in which the last token is asked about, and not read."""
    context, continuation = request
    scores = model(torch.tensor([[*context, *continuation[:-1]]])).logits[0, len(context) - 1 :].log_softmax(-1)
    return float(scores.gather(1, torch.tensor(continuation)[:, None]).sum())


@each_value(name=["armt around gpt2", "prmt around memory_mosaic"], alignment=["center", "right"])
def test_texts_that_are_cut_by_their_length_do_not_depend_on_the_batch(name, alignment):
    """A row's segments are those of its own length, not of the longest in the batch."""
    model, drawn_requests = CASES[name].build(), requests()
    model.config.segment_alignment = alignment
    values = [of_its_length(model, request) for request in drawn_requests]
    for size in (1, 5):
        results = continuation_likelihoods(model, drawn_requests, batch_size=size)
        assert [one.log_likelihood for one in results] == pytest.approx(values, rel=REORDERED_FLOAT64)


LONG = {"original_max_position_embeddings": 32, "short_factor": [1.0] * 4, "long_factor": [1.0, 3.0, 6.0, 9.0]}
ROTARY = {
    "longrope": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, **LONG},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
}


@pytest.mark.parametrize(
    ("model_type", "kind"), [("llama", "longrope"), ("llama", "dynamic"), ("gemma3_text", "longrope")]
)
def test_frequencies_that_depend_on_the_length_of_a_call_are_those_of_each_text(model_type, kind):
    """Neither shared contexts, nor longer rows of a batch, nor longer calls before change them."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "head_dim": 8,
    }
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32}
    rotary = ROTARY[kind]
    if model_type == "gemma3_text":  # a type per layer type
        plain, heads["layer_types"] = (
            {"rope_type": "default", "rope_theta": 1e4},
            ["sliding_attention", "full_attention"],
        )
        rotary = {"full_attention": rotary, "sliding_attention": plain}
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **sizes, **heads, rope_parameters=rotary, initializer_range=0.5)
    model = AutoModelForCausalLM.from_config(config).double().eval()
    drawn_requests = [
        *requests(),
        Request(*drawn(20, 2)),
    ]  # shots, and this text, are shorter than 32, the others longer
    values = [of_its_length(copy.deepcopy(model), request) for request in drawn_requests]
    for size in (1, 5):
        results = continuation_likelihoods(model, drawn_requests, batch_size=size)
        assert [one.log_likelihood for one in results] == pytest.approx(values, rel=1e-5)


def test_the_likeliest_continuation_is_greedy():
    model, [prompt] = CASES["v2 gaussian"].build(), drawn(12)
    ids = torch.tensor([prompt])
    best = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)[0, 12:].tolist()
    other = [*best[:-1], best[-1] % (VOCABULARY - 1) + 1]
    pairs = [Request(prompt, best), Request(prompt, other)]
    assert [one.is_greedy for one in continuation_likelihoods(model, pairs)] == [True, False]


def test_nan_is_no_likelihood():
    """Weights may be finite and logits not: infinity minus infinity."""
    model, [prompt] = CASES["transformer"].build(), drawn(12)
    for parameter in model.parameters():
        parameter.data.fill_(torch.finfo(parameter.dtype).max)
    two = [Request(prompt, [1]), Request(prompt, [2])]
    refused("the model's logits must be numbers; got NaN", continuation_likelihoods, model, two)


def tokens_read(model, requests):
    counts = []
    with model.register_forward_pre_hook(
        lambda _, arguments, __: counts.append(arguments[0].numel()), with_kwargs=True
    ):
        continuation_likelihoods(model, requests)
    return sum(counts)


@pytest.mark.parametrize("name", ["v1 published", "v2 gaussian", "armt around gpt2", "transformer"])
def test_shared_contexts_are_read_once(name, monkeypatch):
    model, (shots, one, other, *choices) = CASES[name].build(), drawn(100, 30, 30, 3, 3, 3)
    six = [Request(shots + question, choice) for question in (one, other) for choice in choices]
    # The shots, both questions up to their last tokens, and this last token with each choice.
    assert tokens_read(model, six) == 100 + 2 * 29 + 6 * (1 + 2)
    monkeypatch.setitem(continuations.LEAST_SAVING, "cpu", 10_000)
    assert tokens_read(model, six) == 6 * 132
    # Choices of one token differ in nothing that is read.
    letters = [Request(shots, [letter]) for letter in range(1, 9)]
    assert tokens_read(model, letters) == 100


@torch.no_grad()
def test_a_fork_is_apart_from_what_it_is_of():
    ids = tokens(1)
    for name in ("v1 published", "v2 gaussian", "rmt around gpt2", "armt around memory_mosaic", "transformer"):
        model = CASES[name].build()
        state = model(ids[:, :10], use_cache=True).past_key_values
        first = model(ids[:, 10:].repeat(3, 1), past_key_values=fork(state, 3)).logits
        again = model(ids[:, 10:], past_key_values=fork(state, 1)).logits
        torch.testing.assert_close(first, again.repeat(3, 1, 1))
        torch.testing.assert_close(again, model(ids).logits[:, 10:])
        assert state_bytes(fork(state, 3)) > 2 * state_bytes(fork(state, 1)) > 0


def test_a_tensor_that_stands_twice_in_a_state_counts_once_and_positions_are_no_numbers():
    shared, positions = torch.zeros(2, 3), torch.zeros(5, dtype=torch.long)
    state = {"keys": shared, "layers": [(shared, positions)]}
    assert state_numbers(state) == 6
    assert state_bytes(state) == 6 * 4 + 5 * 8


def test_rows_are_few_where_their_states_are_large(monkeypatch):
    model, (shots, *choices) = CASES["v2 gaussian"].build(), drawn(100, 3, 4, 5)
    three, sizes = [Request(shots, choice) for choice in choices], []
    model.register_forward_pre_hook(lambda _, arguments, __: sizes.append(arguments[0].shape[0]), with_kwargs=True)
    together = continuation_likelihoods(model, three, batch_size=8)
    assert sizes == [1, 3]
    monkeypatch.setattr(continuations, "FORKED_BYTES", 1)
    alone = continuation_likelihoods(model, three, batch_size=8)
    assert [one.log_likelihood for one in alone] == pytest.approx([one.log_likelihood for one in together])
    assert sizes[2:] == [1, 1, 1, 1]


def test_an_empty_continuation_is_an_error():
    model = CASES["v1 published"].build()
    refused("the continuation must hold at least one token", continuation_likelihoods, model, [Request([1], [])])


def leaves(node, depth=0):
    """(row, how many of its tokens its ancestors read)"""
    inner = [leaf for branch in node.branches for leaf in leaves(branch, node.end)]
    return [*((row, node.end) for row in node.rows), *inner]


def test_prefix_tree_of_random_sequences_holds_every_row_below_its_own_prefix():
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(2, (int(n),), generator=generator).tolist() for n in torch.arange(200) % 13]
    for worth in (1, 5, 40, 10_000):
        tree, saved = prefix_tree(sequences, worth), 0
        assert sorted(row for row, _ in leaves(tree)) == list(range(200))
        pending = [(tree, 0)]
        while pending:
            node, start = pending.pop()
            below = [row for row, _ in leaves(node)]
            shared = sequences[node.sequence][: node.end]
            assert all(sequences[row][: node.end] == shared for row in below)
            gain = (node.end - start) * (len(below) - 1)
            assert node.end == start == 0 or gain >= worth
            saved += gain
            pending += [(branch, node.end) for branch in node.branches]
        assert (saved == 0) == (worth == 10_000)


def test_prefix_tree_is_as_deep_as_the_sequences_are_long():
    deep = prefix_tree([[0] * length for length in range(3000)], worth=1)
    assert deep.end == 0
    assert not prefix_tree([], worth=1).rows
