"""Recall weights against weights computed from the model's own parts."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

import tessera
from tessera.errors import TesseraError
from tessera.inspection.recall import recall_weights
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config
from tessera.ops.unit_norm import unit_norm

V1 = {"vocab_size": 30, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "num_persistent_slots": 5}
IDS = torch.arange(1, 21)[None] % 30


def build(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.mark.parametrize(
    "kernel", ["gaussian", "triweight", "normalized_relu", {"name": "knn", "base": "gaussian", "k": 3}]
)
def test_weights_times_values_are_the_answer(kernel):
    """The contextual memory of the first layer, made again from its extractors."""
    model = build(tessera.MemoryMosaicConfig(kernel=kernel, **V1))
    memory = model.model.layers[0].contextual
    answers = []
    memory.output.register_forward_pre_hook(lambda module, arguments: answers.append(arguments[0]))
    recalls = recall_weights(model, IDS, queries=[0, 7, 19])
    x = model.model.layers[0].contextual_norm(model.model.embed_tokens(IDS))
    now, next_ = memory.value_extractor(x)
    values = unit_norm(now[:, :, :-1] + next_[:, :, 1:])
    first = recalls[0]
    assert first.site.name == "model.layers.0.contextual"
    torch.testing.assert_close(first.weights @ values[0], answers[0][0][:, [0, 7, 19]], rtol=0, atol=1e-5)
    assert first.num_pairs.tolist() == [0, 7, 19]
    assert first.weights[:, 0].eq(0).all()
    torch.testing.assert_close(first.weights[:, 1:].sum(-1), torch.ones(2, 2))
    assert first.bandwidth[:, 0].isnan().all()
    assert (first.bandwidth[:, 1:] > 0).all()


def test_all_memories_in_their_order():
    model = build(tessera.MemoryMosaicConfig(**V1))
    recalls = recall_weights(model, IDS)
    assert [(recall.site.layer, recall.site.kind) for recall in recalls] == [
        (0, "contextual"),
        (0, "persistent"),
        (1, "contextual"),
        (1, "persistent"),
    ]
    assert recalls[1].weights.shape == (2, 1, 5)


def test_short_and_long_term_memories_see_their_windows():
    config = MemoryMosaicV2Config(
        vocab_size=30,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        intermediate_size=16,
        short_term_span=4,
        long_term_delay=6,
        training_long_term_delay=(6, 8),
    )
    short, long = recall_weights(build(config), IDS, queries=[5, 15])
    assert (short.site.kind, long.site.kind) == ("short_term", "long_term")
    assert [row.nonzero().flatten().tolist() for row in short.weights[0]] == [[2, 3, 4], [12, 13, 14]]
    assert [row.nonzero().flatten().tolist() for row in long.weights[0]] == [[], list(range(10))]
    assert long.num_pairs.tolist() == [0, 10]


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=32),
        LlamaConfig(
            vocab_size=30,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
        ),
    ],
    ids=["gpt2", "llama"],
)
def test_attention_of_transformers_is_what_transformers_say(config):
    model = build(config)
    queries = [0, 3, 19]
    recalls = recall_weights(model, IDS, queries=queries)
    model.set_attn_implementation("eager")
    attentions = model(IDS, output_attentions=True).attentions
    assert len(recalls) == 2
    for recall, attention in zip(recalls, attentions):
        torch.testing.assert_close(recall.weights, attention[0][:, queries], rtol=0, atol=1e-5)
        assert recall.num_pairs.tolist() == [1, 4, 20]


def test_the_model_is_as_before():
    model = build(GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, n_positions=32)).train()
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    recall_weights(model, IDS)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_errors():
    model = build(tessera.MemoryMosaicConfig(**V1))
    with pytest.raises(TesseraError, match=r"queries must lie in 0\.\.19"):
        recall_weights(model, IDS, queries=[20])
    with pytest.raises(TesseraError, match=r"input_ids must be \(1, T\)"):
        recall_weights(model, IDS.repeat(2, 1))
