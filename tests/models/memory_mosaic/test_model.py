"""The Memory Mosaic as a model: causality, state, packing, padding, loss."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM, TesseraError
from tests.tolerances import REORDERED_FLOAT32, REORDERED_FLOAT64

VOCABULARY = 61
CHUNKINGS = ([30], [1] * 30, [7, 1, 15, 1, 6])
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_layers": 2, "num_heads": 3, "num_persistent_slots": 10}
VARIANTS = {
    "published": {},
    "convolution": {"value_extractor": "convolution", "bias": True, "num_persistent_banks": 2},
    "post-norm": {"norm_position": "post", "tie_word_embeddings": False},
    "contextual only": {"num_persistent_slots": 0},
    "compact": {"kernel": "triweight", "persistent_kernel": {"name": "knn", "base": "gaussian", "k": 3}},
    "normalized relu": {"kernel": "normalized_relu", "free_intercept": True},
    "training code": {
        "kernel": {"name": "normalized_relu", "min_total": 0.5},
        "contextual_delay": 2,
        "mean_keys": True,
        "key_norm_eps": 0.1,
        "persistent_key_norm_eps": 0.0,
    },
}


def build(dtype=torch.float64, **changes):
    torch.manual_seed(1)
    return MemoryMosaicForCausalLM(MemoryMosaicConfig(**{**SIZES, **changes})).to(dtype).eval()


def tokens(batch=2, steps=30):
    return torch.randint(0, VOCABULARY, (batch, steps))


def read_in_chunks(model, ids, sizes, **inputs):
    state, logits = None, []
    for chunk in ids.split(sizes, dim=1):
        with torch.no_grad():
            output = model(chunk, past_key_values=state, use_cache=True, **inputs)
        state = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits, dim=1), state


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sizes", CHUNKINGS)
def test_any_chunking_equals_the_full_forward(variant, sizes):
    ids = tokens()
    for dtype, tolerance in ((torch.float64, REORDERED_FLOAT64), (torch.float32, REORDERED_FLOAT32)):
        model = build(dtype, **VARIANTS[variant])
        found, state = read_in_chunks(model, ids, sizes)
        torch.testing.assert_close(found, model(ids).logits, rtol=0, atol=tolerance)
        assert state.get_seq_length() == ids.shape[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_future_has_no_influence(variant):
    model, ids = build(**VARIANTS[variant]), tokens()
    changed = ids.clone()
    changed[:, 20] = (changed[:, 20] + 1) % VOCABULARY
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


def test_a_single_step_recalls_nothing():
    model = build(num_persistent_slots=0, num_layers=1)
    ids = tokens(steps=1)
    embedded = model.model.embed_tokens(ids)
    torch.testing.assert_close(model(ids).logits, model.lm_head(model.model.norm(embedded)))


@pytest.mark.parametrize("variant", ["published", "convolution", "compact", "training code"])
def test_packed_documents_do_not_see_each_other(variant):
    model, ids = build(**VARIANTS[variant]), tokens(batch=1)
    documents = torch.tensor([[0] * 11 + [1] * 19])
    packed = model(ids, document_ids=documents).logits
    apart = torch.cat([model(ids[:, :11]).logits, model(ids[:, 11:]).logits], dim=1)
    torch.testing.assert_close(packed, apart, rtol=0, atol=REORDERED_FLOAT64)
    state, pieces = None, []
    for piece, document in zip(ids.split([5, 9, 1, 15], dim=1), documents.split([5, 9, 1, 15], dim=1)):
        output = model(piece, document_ids=document, past_key_values=state, use_cache=True)
        state = output.past_key_values
        pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), apart, rtol=0, atol=REORDERED_FLOAT64)


def test_padding_on_either_side_has_no_influence():
    model, ids = build(), tokens(batch=1)
    alone = model(ids).logits
    for padded, real in (
        (torch.cat([tokens(1, 6), ids], dim=1), slice(6, None)),
        (torch.cat([ids, tokens(1, 6)], dim=1), slice(0, 30)),
    ):
        mask = torch.zeros_like(padded)
        mask[:, real] = 1
        found = model(padded, attention_mask=mask).logits[:, real]
        torch.testing.assert_close(found, alone, rtol=0, atol=REORDERED_FLOAT64)


def test_loss_is_the_shifted_cross_entropy_and_needs_no_logits():
    model, ids = build(), tokens()
    labels = ids.clone()
    labels[0, :5] = -100
    output = model(ids, labels=labels)
    expected = cross_entropy(output.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(output.loss, expected)
    lean = model.train()(ids, labels=labels)
    assert lean.logits is None
    torch.testing.assert_close(lean.loss, expected)
    counted = (labels[:, 1:] != -100).sum()
    torch.testing.assert_close(model(ids, labels=labels, num_items_in_batch=2 * counted).loss, expected / 2)


def test_gradient_checkpointing_gives_the_same_gradients():
    ids = tokens()
    model = build().train()
    model(ids, labels=ids).loss.backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for layer in model.model.layers:
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = lambda function, *args: torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False
        )
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


@pytest.mark.parametrize("place", ["weight_dropout", "head_dropout", "residual_dropout"])
def test_dropout_acts_in_training_alone(place):
    model, ids = build(**{place: 0.5}), tokens()
    assert torch.equal(model(ids).logits, model(ids).logits)
    torch.testing.assert_close(model(ids).logits, build()(ids).logits)
    model.train()
    assert not torch.allclose(model(ids).logits, model(ids).logits)


def test_a_state_is_a_value():
    model, ids = build(), tokens()
    with torch.no_grad():
        state = model(ids[:, :10], use_cache=True).past_key_values
        first = model(ids[:, 10:], past_key_values=state).logits
        model(ids[:, 12:], past_key_values=state)
        again = model(ids[:, 10:], past_key_values=state).logits
        swapped = model(ids[:, 10:].flip(0), past_key_values=state.select_batch(torch.tensor([1, 0]))).logits
    assert torch.equal(first, again)
    torch.testing.assert_close(swapped.flip(0), first)
    assert state.num_bytes() > 0
    assert state.to(torch.float32).layers[0][0].carry.dtype == torch.float32


def test_bad_tokens_are_named():
    model = build()
    with pytest.raises(TesseraError, match=r"input_ids must lie in 0\.\.60 \(vocab_size 61\); got values from 3 to 61"):
        model(torch.tensor([[3, 61]]))
    with pytest.raises(TesseraError, match=r"labels must lie in 0\.\.60 \(vocab_size\) or be -100; got 61"):
        model(torch.tensor([[3, 4]]), labels=torch.tensor([[3, 61]]))
    with pytest.raises(TesseraError, match="the prompt must hold at least one token"):
        model(torch.zeros(1, 0, dtype=torch.long))


def test_impossible_configurations_are_refused_all_problems_at_once():
    with pytest.raises(TesseraError, match=r"num_heads must divide hidden_size \(24\); got 5") as error:
        MemoryMosaicConfig(**{**SIZES, "num_heads": 5, "head_dropout": 1.5, "kernel": "gausian"})
    assert "head_dropout must lie in [0, 1); got 1.5" in str(error.value)
    assert "unknown kernel 'gausian'. Did you mean 'gaussian'" in str(error.value)
    with pytest.raises(TesseraError, match="unknown argument 'num_head'. Did you mean 'num_heads'"):
        MemoryMosaicConfig(num_head=3)
