"""Recall weights against weights computed from the model's own parts."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import CONFIG_MAPPING, Gemma2Config, LlamaConfig, MistralConfig, StaticCache
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from tessera.base.errors import TesseraError
from tessera.inspection import Removal, find_sites, loss_of, trace
from tessera.inspection.attention_weights import returned_weights
from tessera.inspection.recall import recall_weights
from tessera.models.attention import learn_alpha
from tessera.models.transformer import transformer_config
from tessera.ops.unit_norm import unit_norm
from tests.inspection.models import build, gpt2, v1, v2
from tests.refusals import refused

IDS = torch.arange(1, 21)[None] % 30
GROUPED = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 8}
GROUPED |= {"num_key_value_heads": 1, "intermediate_size": 32, "sliding_window": 4}


@pytest.mark.parametrize(
    "kernel", ["gaussian", "triweight", "normalized_relu", {"name": "knn", "base": "gaussian", "k": 3}]
)
def test_weights_times_values_are_the_answer(kernel):
    """The contextual memory of the first layer, made again from its extractors."""
    model = build(v1(kernel=kernel))
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


def test_short_and_long_term_memories_see_their_windows():
    short, long = recall_weights(build(v2(num_layers=1)), IDS, queries=[5, 15])
    assert (short.site.kind, long.site.kind) == ("short_term", "long_term")
    assert [row.nonzero().flatten().tolist() for row in short.weights[0]] == [[2, 3, 4], [12, 13, 14]]
    assert [row.nonzero().flatten().tolist() for row in long.weights[0]] == [[], list(range(10))]
    assert long.num_pairs.tolist() == [0, 10]


@pytest.mark.parametrize(
    ("config", "num_pairs"),
    [
        (gpt2(), 20),
        (LlamaConfig(**{**GROUPED, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}), 20),
        (transformer_config(positions="alibi", vocab_size=30, hidden_size=16, num_layers=2, num_heads=2), 20),
        (MistralConfig(**GROUPED), 4),
        (Gemma2Config(**GROUPED, attn_logit_softcapping=0.1, attn_implementation="eager"), 4),
    ],
    ids=["gpt2", "llama", "bloom", "sliding windows", "soft caps"],
)
def test_attention_of_transformers_is_what_transformers_say(config, num_pairs):
    model, queries = build(config, scale=0.5), [0, 3, 19]
    losses, recalls = loss_of(model, IDS), recall_weights(model, IDS, queries=queries)
    if model._can_set_attn_implementation():
        model.set_attn_implementation("eager")
    output = model(IDS, output_attentions=True)
    assert len(recalls) == 2
    for recall, attention in zip(recalls, output.attentions):
        torch.testing.assert_close(recall.weights, attention[0][:, queries], rtol=0, atol=1e-5)
    assert recalls[0].num_pairs.tolist() == [1, 4, num_pairs]
    expected = cross_entropy(output.logits[0, :-1], IDS[0, 1:], reduction="none")
    torch.testing.assert_close(losses[1:], expected)


SPARSE = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SPARSE |= {"intermediate_size": 16, "index_topk": 3, "index_n_heads": 2, "index_head_dim": 8}
SPARSE |= {"first_k_dense_replace": 2, "num_key_value_heads": 2}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 4}


@pytest.mark.parametrize("kind", ["deepseek_v32", "glm_moe_dsa"])
def test_keys_that_a_model_chooses_for_each_query_are_the_ones_that_are_seen(kind):
    if kind not in CONFIG_MAPPING:
        pytest.skip("this transformers has no such model")
    model = build(CONFIG_MAPPING[kind](**SPARSE, **LATENT))
    model.set_attn_implementation("eager")
    recalls = recall_weights(model, IDS, queries=[1, 19])
    attentions = model(IDS, output_attentions=True).attentions
    for recall, attention in zip(recalls, attentions, strict=True):
        torch.testing.assert_close(recall.weights, attention[0][:, [1, 19]], rtol=0, atol=1e-5)
        assert recall.num_pairs.tolist() == [2, 3]
    refused("but no head or pair left out", loss_of, model, IDS, Removal(find_sites(model)[0], head=0))


LONGCAT = {"num_layers": 1, "ffn_hidden_size": 16, "expert_ffn_hidden_size": 8, "n_routed_experts": 4, "moe_topk": 2}
LONGCAT |= {"head_dim": 4, **LATENT}
LOOPED = {
    "hrm_text": ({}, r"every memory must run once in a pass; got model\.L_module\.layers\.0\.self_attn"),
    "diffllama": ({}, r"must run once in a pass; got attention in model\.layers\.0\.self_attn of DiffLlama"),
    "longcat_flash": (LONGCAT, r"every attention must run; got model\.layers\.0\.self_attn, which did not"),
}


@pytest.mark.parametrize("kind", LOOPED)
def test_layers_that_run_several_times_or_are_not_known_are_refused(kind):
    """Weights of one pass stood for all of a loop, those of DiffLlama twice, and LongCat's layers had none."""
    if kind not in CONFIG_MAPPING:
        pytest.skip("this transformers has no such model")
    more, message = LOOPED[kind]
    sizes = {name: SPARSE[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}
    model = build(CONFIG_MAPPING[kind](**{**sizes, "intermediate_size": 16, **more}))
    for make in (trace, recall_weights):
        refused(message, make, model, IDS)


@pytest.mark.parametrize("is_autocast", [False, True])
def test_weights_of_a_bfloat16_model_are_those_of_its_queries_and_keys(is_autocast):
    """A large score that is rounded to bfloat16 is off by more than its weight."""
    model, seen = build(gpt2(1)), []
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight[:, :32] *= 60
    model = model if is_autocast else model.bfloat16()
    model.transformer.h[0].attn.c_attn.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
        (recall,) = (one for one in recall_weights(model, IDS, queries=range(20)) if one.site.kind == "attention")
    assert seen[-1].dtype == torch.bfloat16
    query, key, _ = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in seen[-1].double().split(16, -1))
    scores = (8**-0.5 * query @ key.mT)[0].masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf)
    assert scores.amax() > 50
    torch.testing.assert_close(recall.weights.double(), scores.softmax(-1), rtol=0, atol=1e-4)


def test_pairs_are_seen_whose_weight_is_too_small_for_float32():
    """They were counted by the weights of the first head that are not 0."""
    model = build(gpt2(1))
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight[:, :32] *= 300
    (recall,) = recall_weights(model, IDS, queries=[5, 19])
    assert (recall.weights == 0).any()
    assert recall.num_pairs.tolist() == [6, 20]


KERNEL_CONFIGS = {"sliding windows": MistralConfig(**GROUPED), "whole text": LlamaConfig(**GROUPED)}


@pytest.mark.parametrize("name", ["tessera_biweight", "tessera_gaussian", "tessera_entmax", "learned"])
@pytest.mark.parametrize("kind", KERNEL_CONFIGS)
def test_our_kernels_as_attention_are_seen_and_parts_of_them_left_out(kind, name):
    model = build(copy.deepcopy(KERNEL_CONFIGS[kind]), scale=0.7)
    if name == "learned":
        learn_alpha(model)
    else:
        model.set_attn_implementation(name)
    expected = model(IDS, output_attentions=True)
    recalls = recall_weights(model, IDS, queries=[3, 19])
    for recall, attention in zip(recalls, expected.attentions, strict=True):
        torch.testing.assert_close(recall.weights, attention[0][:, [3, 19]], rtol=0, atol=1e-5)
        assert recall.num_pairs.tolist() == [4, 4 if kind == "sliding windows" else 20]
    first = model.model.layers[0].self_attn
    site, heads, values = find_sites(model)[0], [], []
    first.o_proj.register_forward_pre_hook(lambda module, arguments: heads.append(arguments[0].unflatten(-1, (2, 8))))
    first.v_proj.register_forward_hook(lambda module, arguments, output: values.append(output))
    losses = loss_of(model, IDS)
    loss_of(model, IDS, Removal(site, head=1))
    assert not heads[1][..., 1, :].any()
    torch.testing.assert_close(heads[1][..., 0, :], heads[0][..., 0, :])
    changed = loss_of(model, IDS, Removal(site, head=0, pair=3))
    torch.testing.assert_close(heads[2][..., 1, :], heads[0][..., 1, :])
    torch.testing.assert_close(changed[1:4], losses[1:4])
    without = (expected.attentions[0][0, 0, :, 3] == 0).nonzero()[:, 0]  # whose answers owe it nothing
    torch.testing.assert_close(heads[2][0, without, 0], heads[0][0, without, 0])
    recalling = (expected.attentions[0][0, 0, :, 3] > 0.01).nonzero()[:, 0]
    assert bool((heads[2][0, recalling, 0] - heads[0][0, recalling, 0]).abs().amax(-1).gt(1e-4).all())
    assert not heads[2][0, 3:, 0].isnan().any()


def test_all_pairs_that_compact_attention_gives_weight_are_listed():
    model = build(LlamaConfig(**GROUPED), scale=0.3)
    model.set_attn_implementation("tessera_biweight")
    done = trace(model, IDS, removals="none", share=0.5, most_pairs=2)
    attentions = model(IDS, output_attentions=True).attentions
    memories = [memory for memory in done.memories if memory.recalls]
    for memory, attention in zip(memories, attentions, strict=True):
        assert memory.rows.diff().tolist() == (attention[0] > 0).sum(-1).T.flatten().tolist()
        torch.testing.assert_close(memory.share, torch.ones(20, 2))


@pytest.mark.parametrize("removal", [False, True])
def test_a_static_cache_is_seen_as_far_as_it_is_filled(removal):
    """transformers gives no mask at its beginning: what lies behind the text is empty, and no pair."""
    config = LlamaConfig(**GROUPED)
    model, ids = build(config, scale=0.5), torch.arange(8)[None] * 5 % 30
    cache = StaticCache(config=config, max_cache_len=20)
    if removal:
        pair = Removal(find_sites(model)[0], pair=2)
        expected = loss_of(model, ids, pair)
        torch.testing.assert_close(loss_of(model, ids, pair, past_key_values=cache), expected, equal_nan=True)
        return
    read = recall_weights(model, ids, [1, 7], past_key_values=cache)
    for filled, plain in zip(read, recall_weights(model, ids, [1, 7]), strict=True):
        torch.testing.assert_close(filled.weights, plain.weights)


def test_the_model_is_as_before():
    model = build(gpt2(1)).train()
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    recall_weights(model, IDS)
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_blooms_attention_and_network_are_left_out_without_the_stream_that_they_add_to():
    model = build(transformer_config(positions="alibi", vocab_size=30, hidden_size=16, num_layers=1, num_heads=2))
    attention, network = find_sites(model)
    bloom, block = model.transformer, model.transformer.h[0]
    with torch.no_grad():
        stream = bloom.word_embeddings_layernorm(bloom.word_embeddings(IDS))
        without_attention = stream + block.mlp(block.post_attention_layernorm(stream), torch.zeros_like(stream))
        mask = torch.full((1, 1, 20, 20), -torch.inf).triu(1)
        alibi = build_alibi_tensor(torch.ones(1, 20), 2, torch.float32)
        without_network = block.self_attention(block.input_layernorm(stream), stream, alibi, mask)[0]
        for site, left in ((attention, without_attention), (network, without_network)):
            losses = cross_entropy(model.lm_head(bloom.ln_f(left))[0, :-1], IDS[0, 1:], reduction="none")
            torch.testing.assert_close(loss_of(model, IDS, Removal(site))[1:], losses)
    refused("BloomForCausalLM does not", loss_of, model, IDS, Removal(attention, head=0))


def test_attention_that_hides_its_weights_is_an_error():
    with (
        pytest.raises(TesseraError, match="Linear does neither"),
        returned_weights([part := torch.nn.Linear(2, 2)], print),
    ):
        part(torch.ones(2))


def test_errors():
    model = build(v1())
    refused(r"queries must lie in 0\.\.19", recall_weights, model, IDS, queries=[20])
    refused(r"input_ids must be \(1, T\)", recall_weights, model, IDS.repeat(2, 1))
