"""What transformers' models take in `forward` and `generate` is honoured by ours, or refused by name."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache

from tessera.data.tokenizers import byte_tokenizer
from tessera.models.lstm import LSTMModel
from tests.models.contract import lstm
from tests.models.three_models import MAKE, STACKS, make, tokens
from tests.refusals import refused
from tests.tolerances import close


@pytest.fixture(params=MAKE)
def model(request):
    return make(request.param)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"output_router_logits": True}, "output_router_logits must be left out: there are no experts"),
        ({"is_causal": False}, "is_causal must be True; got False"),
        ({"cu_seq_lens_q": torch.tensor([0, 12])}, "cu_seq_lens_q must be left out"),
        ({"atention_mask": None}, "unknown argument 'atention_mask'. Did you mean 'attention_mask'"),
        (
            {"past_key_values": DynamicCache()},
            "past_key_values must be what an earlier call returned; got DynamicCache",
        ),
        ({"logits_to_keep": -1}, "logits_to_keep must be 0 \\(all\\) or positive; got -1"),
        ({"attention_mask": torch.ones(2, 13)}, r"attention_mask must be \(2, 12\) of zeros and ones.*; got \(2, 13\)"),
        ({"attention_mask": torch.ones(2, 1, 12, 12)}, "attention_mask must be"),
        ({"attention_mask": torch.full((2, 12), -1e9)}, r"attention_mask must hold zeros and ones; got \[-1"),
        ({"attention_mask": torch.full((2, 12), 2)}, r"attention_mask must hold zeros and ones; got \[2\]"),
        ({"labels": torch.full((2, 12), -1)}, r"labels must lie in 0\.\.269 \(vocab_size\) or be -100; got -1"),
        ({"labels": torch.full((2, 12), 270)}, "labels must lie in .*; got 270"),
        ({"labels": torch.ones(2, 11, dtype=torch.long)}, r"labels must be \(2, 12\); got \(2, 11\)"),
        ({"labels": torch.ones(2, 12)}, "labels must be integers; got torch.float32"),
        ({"inputs_embeds": torch.ones(2, 12, 16)}, "input_ids or inputs_embeds must be given; got both"),
        (
            {"input_ids": None, "inputs_embeds": torch.ones(2, 12, 3)},
            r"inputs_embeds must be \(B, T, \d+\); got \(2, 12, 3\)",
        ),
        (
            {"input_ids": tokens() + 269},
            r"input_ids must lie in 0\.\.269 \(vocab_size 270\); got values from .* to [3-5]\d\d",
        ),
        ({"input_ids": tokens()[:, :0]}, "at least one token"),
        ({"input_ids": tokens()[0]}, r"input_ids must be \(B, T\)"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(model, keywords, message):
    refused(message, model, **{"input_ids": tokens(), **keywords})


def test_labels_of_fewer_bits_are_the_same_labels(model):
    ids, mask = tokens() % 256, torch.ones(2, 12, dtype=torch.long)
    mask[1, :4] = 0  # these are left out by -100, which no byte is
    for kind in (torch.int32, torch.uint8):
        close(model(ids, mask, labels=ids.to(kind)).loss, model(ids, mask, labels=ids).loss)


def test_keywords_that_ask_for_nothing_pass(model):
    ids = tokens()
    logits = model(ids, output_attentions=False, output_router_logits=None, is_causal=True).logits
    close(logits, model(ids).logits)


@pytest.mark.parametrize("name", STACKS)
def test_arguments_of_stacks(name):
    model, ids = make(name), tokens()
    past, mask = model(ids, use_cache=True).past_key_values, (torch.arange(48).view(2, 24) > 3).long()
    padded = model(ids, mask[:, :12], use_cache=True).past_key_values
    again, gap = (torch.tensor([[0] * 4 + [number] * 3 + [0] * 5, [0] * 12]) for number in (1, -1))
    for keywords, message in [
        ({"document_ids": torch.zeros(2, 13, dtype=torch.long)}, r"document_ids must be \(2, 12\)"),
        ({"document_ids": again}, "document_ids must hold each document in one piece"),
        ({"document_ids": again, "attention_mask": (again == 0).long().roll(1, 1)}, "in one piece"),
        ({"document_ids": gap, "labels": ids}, r"in one piece \(attention_mask says what is padding inside of one\)"),
        ({"position_ids": torch.zeros(2, 13, dtype=torch.long)}, "position_ids must be"),
        ({"past_key_values": past, "attention_mask": torch.ones(2, 12)}, r"attention_mask must be \(2, 24\)"),
        ({"past_key_values": past, "cache_position": torch.arange(12)}, "cache_position must count on from 12"),
        ({"logits_to_keep": torch.ones(2, 2)}, "logits_to_keep must be a number or a 1-d tensor"),
    ]:
        refused(message, model, ids, **keywords)
    beams = {"attention_mask": mask, "past_key_values": padded, "num_beams": 2, "max_new_tokens": 2}
    refused("past_key_values must have 4 rows, as the text; got 2", model.generate, ids.repeat(1, 2), **beams)
    model(ids, past_key_values=past, cache_position=torch.arange(12, 24))
    close(model(ids, logits_to_keep=torch.tensor([1, 5])).logits, model(ids).logits[:, [1, 5]])


def test_the_loss_of_an_lstm_has_its_precision():
    model, ids = lstm(vocab_size=270).eval(), tokens()
    for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
        assert model.to(dtype)(ids, labels=ids).loss.dtype == expected


def test_arguments_of_lstms():
    model, ids = lstm(vocab_size=270).eval(), tokens()
    past, positions = model(ids, use_cache=True).past_key_values, torch.arange(12)[None]
    left, right = torch.ones_like(ids), torch.ones_like(ids).tril(10)  # the last token of the first row is padding
    left[:, 0] = 0
    for keywords, message in [
        ({"output_hidden_states": True}, "output_hidden_states must be left out"),
        ({"attention_mask": torch.ones(2, 5), "position_ids": positions}, r"attention_mask must be \(2, 12\)"),
        ({"attention_mask": left}, "padding must follow the tokens"),
        ({"past_key_values": past, "attention_mask": torch.ones(2, 12)}, r"attention_mask must be \(2, 24\)"),
        ({"past_key_values": past, "position_ids": positions}, "position_ids must count on by 1"),
        ({"past_key_values": [past]}, "past_key_values must be of this model; got list"),
        ({"position_ids": positions % 6}, "LSTMForCausalLM: position_ids must"),
        ({"position_ids": positions.repeat(3, 1)}, "LSTMForCausalLM: position_ids must"),
    ]:
        refused(message, model, ids, **keywords)
    refused("the prompt must hold at least one token; got none", model, ids[:, :0])
    refused(r"input_ids must lie in 0\.\.269 \(vocab_size 270\); got values from 270 to 270", model, 0 * ids + 270)
    for kind in (model, LSTMModel(model.config)):
        refused("inputs_embeds must be left out: an LSTM takes none", kind, inputs_embeds=torch.ones(2, 12, 16))
        refused("input_ids must be given; got None", kind)
    refused("inputs_embeds must be left out", model.generate, inputs_embeds=torch.ones(2, 12, 16), max_new_tokens=1)
    message = "padding must follow the tokens; .* Read texts of several"  # `generate` says its positions
    refused(message, model.generate, ids, attention_mask=left, max_new_tokens=2, pad_token_id=0)
    behind = model(ids, past_key_values=past).logits
    close(model(ids, past_key_values=past, attention_mask=torch.ones(2, 24)).logits, behind)
    padded = positions.masked_fill(right == 0, 1)  # as `generate` makes them
    for mask, others in ((None, positions + 7), (right, padded)):
        assert torch.equal(model(ids, attention_mask=mask, position_ids=others).logits, model(ids).logits)
    ids = ids % 256
    of_bytes, of_words = (model(ids, attention_mask=right, labels=labels).loss for labels in (ids.byte(), ids))
    assert torch.equal(of_bytes, of_words)
    with torch.autocast("cpu", torch.bfloat16):  # also on a processor without products in bfloat16
        loss = model.train()(ids, labels=ids).loss
    loss.backward()
    torch.testing.assert_close(loss, model(ids, labels=ids).loss, rtol=1e-2, atol=0)


def test_arguments_of_segmented_models():
    model, ids = make("armt"), tokens()
    cache = model(ids, use_cache=True).past_key_values
    hidden = torch.ones(2, 24)
    hidden[1, 15] = 0
    for keywords, message in [
        ({"position_ids": torch.arange(12)[None] % 7}, r"count on by 1: documents \(TRL's packing=True\) need"),
        ({"labels_mask": torch.ones(2, 12)}, "it is called loss_mask"),
        ({"attention_mask": torch.zeros(2, 12)}, "a row of zeros"),
        ({"logits_to_keep": torch.tensor([1])}, "logits_to_keep must be a number"),
        ({"past_key_values": cache, "attention_mask": torch.ones(2, 12)}, r"attention_mask must be \(2, 24\)"),
        ({"past_key_values": cache, "position_ids": torch.arange(12)[None]}, "position_ids must count on by 1"),
        ({"past_key_values": cache, "attention_mask": hidden}, "must be one for tokens after a cache; got zeros"),
    ]:
        refused(message, model, ids, **keywords)
    model(ids, past_key_values=cache, attention_mask=torch.ones(2, 24))


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("name", [*MAKE, "lstm"])
def test_what_was_read_as_text_cannot_be_hidden_later(name, padding):
    """`generate` puts padding behind a row that has ended, and reads it; transformers' caches can hide it later."""
    model, ids = lstm().double().eval() if name == "lstm" else make(name), tokens(3, 13) % 60
    mask = torch.ones_like(ids)
    mask[1, : 0 if name == "lstm" else padding] = 0
    state = model(ids[:, :7], attention_mask=mask[:, :7], use_cache=True).past_key_values
    middle = model(ids[:, 7:9], attention_mask=mask[:, :9], past_key_values=state, use_cache=True).past_key_values
    for held in (middle, middle if name == "lstm" else middle.select_batch(torch.tensor([0, 1, 2]))):
        goes_on = model(ids[:, 9:], attention_mask=mask, past_key_values=held, use_cache=True).logits
        assert goes_on.shape[:2] == (3, 4)
        for row in (0, 1):
            hidden = mask.clone()
            hidden[row, 8] = 0
            message = "attention_mask must be one for steps that were read as text, which a state cannot forget; got z"
            refused(message, model, ids[:, 9:], attention_mask=hidden, past_key_values=held)


@pytest.mark.parametrize("name", STACKS)
def test_documents_in_few_bits_with_padding_between_their_tokens(name):
    model, ids = make(name), tokens(1, 12)
    documents, mask = torch.tensor([[0] * 7 + [200] * 5], dtype=torch.uint8), torch.ones(1, 12, dtype=torch.long)
    mask[0, [2, 3, 6, 9, 11]] = 0
    outputs = [model(ids[mask.bool() & (documents == number)][None]) for number in (0, 200)]
    actual = model(ids, mask, document_ids=documents, labels=ids)
    close(actual.logits[mask.bool()], torch.cat([output.logits[0] for output in outputs]))
    close(actual.loss, model(ids, mask, document_ids=documents.long(), labels=ids).loss)


@pytest.mark.parametrize("name", STACKS)
def test_a_document_goes_on_behind_steps_of_none(name):
    model, ids = make(name), tokens()
    documents = torch.tensor([[-1] * 2 + [3] * 4 + [-1] * 2]).expand(2, -1)
    past = model(ids[:, :8], document_ids=documents, use_cache=True).past_key_values
    expected = model(ids[:, [2, 3, 4, 5, 8, 9, 10, 11]]).logits[:, 4:]
    close(model(ids[:, 8:], past_key_values=past).logits, expected)
    close(model(ids[:, 8:], past_key_values=past, document_ids=torch.full((2, 4), 3)).logits, expected)


@pytest.mark.parametrize("name", STACKS)
def test_positions_that_start_again_separate_documents(name):
    model, ids = make(name), tokens()
    starts = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3])[None]
    documents = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]).expand(2, -1)
    kernels = {"cu_seq_lens_q": torch.tensor([0, 5, 8, 12]), "max_length_q": 5}  # as collators of packed texts add
    actual = model(ids, position_ids=starts, labels=ids, **kernels)
    expected = model(ids, document_ids=documents, labels=ids)
    close(actual.logits, expected.logits)
    close(actual.loss, expected.loss)
    assert (actual.logits - model(ids).logits).abs().max() > 1e-3
    # Cut inside a document and at its border.
    for cut in (3, 5, 7):
        first = model(ids[:, :cut], position_ids=starts[:, :cut], use_cache=True)
        second = model(ids[:, cut:], position_ids=starts[:, cut:], past_key_values=first.past_key_values)
        close(second.logits, expected.logits[:, cut:])
    one = model(ids, position_ids=torch.arange(12)[None], labels=ids, **kernels)
    close(one.logits, model(ids).logits)


def test_stop_strings_and_caches_of_other_models(model):
    tokenizer, ids = byte_tokenizer(), tokens(1, 4)
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0}
    options |= {"max_new_tokens": 9, "suppress_tokens": list(range(128, 270))}
    text = model.generate(ids, **options)[0, 4:].tolist()
    stopped = model.generate(ids, stop_strings=[chr(text[2])], tokenizer=tokenizer, **options)
    assert stopped.shape[1] == 4 + text.index(text[2]) + 1
    refused("got DynamicCache", model.generate, ids, past_key_values=DynamicCache(), **options)


@pytest.mark.parametrize("name", [*STACKS, "armt"])
def test_shifted_labels_are_the_targets_themselves(name):
    model, ids = make(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, 8:] = 0
    documents = (torch.arange(12) >= 5).long().expand(2, -1)
    shifted = nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    for keywords in ({}, {"attention_mask": mask}, *([{"document_ids": documents}] if name in STACKS else [])):
        expected = model(ids, labels=ids, **keywords).loss
        close(model(ids, labels=torch.full_like(ids, 7), shift_labels=shifted, **keywords).loss, expected)
        close(model(ids, shift_labels=shifted, **keywords).loss, expected)
    # The last step of a part has a target in the next one.
    targets = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    output = model(ids, shift_labels=targets)
    close(output.loss, cross_entropy(output.logits.flatten(0, 1), targets.flatten()))
    refused("must lie in 0..269", model, ids, shift_labels=targets + 300)
