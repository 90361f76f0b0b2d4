"""What the Memory Mosaic does beyond the contract of all models."""

import pytest
import torch
from transformers import TextStreamer, pipeline

from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM, TesseraError
from tessera.data.tokenizers import byte_tokenizer
from tests.refusals import refused

VOCABULARY = 61
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_layers": 2, "num_heads": 3, "num_persistent_slots": 10}


def build(dtype=torch.float64, **changes):
    torch.manual_seed(1)
    return MemoryMosaicForCausalLM(MemoryMosaicConfig(**{**SIZES, **changes})).to(dtype).eval()


def tokens(batch=2, steps=30):
    return torch.randint(0, VOCABULARY, (batch, steps))


def test_a_single_step_recalls_nothing():
    model = build(num_persistent_slots=0, num_layers=1)
    ids = tokens(steps=1)
    embedded = model.model.embed_tokens(ids)
    torch.testing.assert_close(model(ids).logits, model.lm_head(model.model.norm(embedded)))


@pytest.mark.parametrize("place", ["weight_dropout", "head_dropout", "residual_dropout"])
def test_dropout_acts_in_training_alone(place):
    model, ids = build(**{place: 0.5}), tokens()
    assert torch.equal(model(ids).logits, model(ids).logits)
    torch.testing.assert_close(model(ids).logits, build()(ids).logits)
    model.train()
    assert not torch.allclose(model(ids).logits, model(ids).logits)


def test_bad_tokens_are_named():
    model = build()
    refused(r"input_ids must lie in 0\.\.60 \(vocab_size 61\); got values from 3 to 61", model, torch.tensor([[3, 61]]))
    with pytest.raises(TesseraError, match=r"labels must lie in 0\.\.60 \(vocab_size\) or be -100; got 61"):
        model(torch.tensor([[3, 4]]), labels=torch.tensor([[3, 61]]))
    refused("the prompt must hold at least one token", model, torch.zeros(1, 0, dtype=torch.long))


def test_labels_of_eight_bits_leave_out_what_others_do():
    model, ids = build(), tokens()
    documents = torch.arange(ids.shape[1]).expand_as(ids) // 4
    of_bytes, of_words = (model(ids, document_ids=documents, labels=labels).loss for labels in (ids.byte(), ids))
    assert torch.equal(of_bytes, of_words)


def test_streams_and_serves_a_pipeline(capsys):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.padding_side = "left"
    model = build(torch.float32, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    ids = tokenizer("the cat sat", return_tensors="pt").input_ids
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.startswith("the cat sat")
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = generator(["the cat", "a mat and"], max_new_tokens=3, do_sample=False, batch_size=2)
    assert [text[0]["generated_text"].startswith(("the cat", "a mat and")) for text in texts] == [True, True]


def test_impossible_configurations_are_refused_all_problems_at_once():
    with pytest.raises(TesseraError, match=r"num_heads must divide hidden_size \(24\); got 5") as error:
        MemoryMosaicConfig(**{**SIZES, "num_heads": 5, "head_dropout": 1.5, "kernel": "gausian"})
    assert "head_dropout must lie in [0, 1); got 1.5" in str(error.value)
    assert "unknown kernel 'gausian'. Did you mean 'gaussian'" in str(error.value)
    refused("unknown argument 'num_head'. Did you mean 'num_heads'", MemoryMosaicConfig, num_head=3)
