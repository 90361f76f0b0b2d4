"""What the Memory Mosaic does beyond the contract of all models."""

import math
from functools import partial

import pytest
import torch
from transformers import TextStreamer, pipeline

from tessera.data.tokenizers import byte_tokenizer
from tests.models.contract import Case, tokens, v1


def build(**changes):
    return Case(partial(v1, **changes)).build()


@pytest.mark.parametrize("place", ["weight_dropout", "head_dropout", "residual_dropout"])
def test_dropout_acts_in_training_alone(place):
    model, ids = build(**{place: 0.5}), tokens()
    assert torch.equal(model(ids).logits, model(ids).logits)
    torch.testing.assert_close(model(ids).logits, build()(ids).logits)
    model.train()
    assert not torch.allclose(model(ids).logits, model(ids).logits)


def test_streams_and_serves_a_pipeline(capsys):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    tokenizer.padding_side = "left"
    model = build(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id).float()
    ids = tokenizer("the cat sat", return_tensors="pt").input_ids
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out.startswith("the cat sat")
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = generator(["the cat", "a mat and"], max_new_tokens=3, do_sample=False, batch_size=2)
    assert [text[0]["generated_text"].startswith(("the cat", "a mat and")) for text in texts] == [True, True]


WIDTH, LAYERS, RANGE = 256, 3, 0.05
WIDE = {"vocab_size": 500, "hidden_size": WIDTH, "num_layers": LAYERS, "num_heads": 4, "num_persistent_slots": 64}


def deviations(**changes):
    """Standard deviation of each matrix of a new model, by its name."""
    torch.manual_seed(3)
    parameters = v1(**WIDE, initializer_range=RANGE, **changes).named_parameters()
    return {name: tensor.std().item() for name, tensor in parameters if tensor.dim() >= 2}


def expected(name, linear, combining, embedding, convolution):
    if "embed_tokens" in name:
        return embedding
    if ".output.projection." in name:
        return combining
    if "slot_" in name:
        return 1 / math.sqrt(WIDTH // 4)
    return convolution if ".value_extractor." in name else linear


@pytest.mark.parametrize(
    ("changes", "linear", "combining", "embedding", "convolution"),
    [
        ({}, RANGE, RANGE / math.sqrt(2 * LAYERS), RANGE, RANGE),
        ({"initialization": "fan_in"}, 1 / 16, 1 / 16 / math.sqrt(LAYERS), 1 / 16, 1 / 16),
        ({"initialization": "fan_in", "tie_word_embeddings": False}, 1 / 16, 1 / 16 / math.sqrt(LAYERS), 1.0, 1 / 16),
        (
            {"initialization": "fan_in", "value_extractor": "convolution"},
            1 / 16,
            1 / 16 / math.sqrt(LAYERS),
            1 / 16,
            1 / 16 / math.sqrt(2),  # fan-in: two steps
        ),
    ],
)
def test_standard_deviations(changes, linear, combining, embedding, convolution):
    measured = deviations(**changes)
    targets = {name: expected(name, linear, combining, embedding, convolution) for name in measured}
    assert measured == pytest.approx(targets, rel=0.02)  # the smallest matrix has 65,536 entries: 0.3 % is one sigma


def test_dropout_of_contextual_weights_alone():
    for changes, expected in (({"contextual_weight_dropout": 0.1}, 0.1), ({}, 0.3)):
        layer = v1(weight_dropout=0.3, **changes).model.layers[0]
        assert (layer.contextual.weight_dropout, layer.persistent.weight_dropout) == (expected, 0.3)
