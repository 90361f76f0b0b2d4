"""Which bases can be wrapped: what works is exact, what does not is one sentence and leaves the base as it was."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    GPT2Model,
    LlamaConfig,
    LlamaForSequenceClassification,
)

import tessera.armt as armt
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.causality import expect_causal
from tessera.models.memory_mosaic import MemoryMosaicModel
from tests.covering import some
from tests.models.armt.bases import BASES, FAMILIES, READERS, ROTARY, config_of, is_greedy, tiny, tokens
from tests.models.contract import CASES, OF_EACH_CLASS
from tests.refusals import refused

EXPERTS = ("mixtral", "olmoe", "qwen3_moe", "inkling_text")  # whose products of groups have no float64
# Narrow embeddings, experts, positions that are counted in ways of their own, a configuration without tied embeddings.
OFTEN = (*EXPERTS, "opt", "electra", "roberta", "biogpt", "gpt_neo", "bloom")


def of(*families):
    """A parametrisation over `families`, the others of transformers by `make test-slow`."""
    rare = [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in (*BASES, *OFTEN)]
    return pytest.mark.parametrize("family", [*families, *rare])


def base_of(family, **changes):
    if family in BASES:
        torch.manual_seed(2)
        return BASES[family]().eval()
    return tiny(family, **changes)


@pytest.mark.filterwarnings("ignore")  # transformers' words on its own configurations
@of(*BASES, *OFTEN, *READERS)
@torch.no_grad()
def test_an_untrained_memory_adds_nothing(family):
    base, ids = base_of(family), 2 + tokens(2, 20, 58)  # a RoBERTa counts no position for padding, 1
    expected = torch.cat([base(part).logits for part in ids.split(8, 1)], 1)
    before = {name.replace(".layer.", "."): tensor.clone() for name, tensor in base.state_dict().items()}
    model = armt.wrap(base, segment_size=8, num_memory_tokens=3, memory_dim=4)
    tolerance = 1e-5 if family in (*BASES, *OFTEN, "openai-gpt") else 1e-4  # float32 sums
    torch.testing.assert_close(model(ids).logits, expected, rtol=tolerance, atol=tolerance)
    after = {name.replace(".layer.", "."): tensor for name, tensor in model.base.state_dict().items()}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.filterwarnings("ignore")
@of(*OFTEN)
@torch.no_grad()
def test_generation_is_reading_the_grown_text(family):
    model = armt.wrap(base_of(family), segment_size=8, num_memory_tokens=3, memory_dim=4).eval()
    model = model.double() if family in OFTEN and family not in EXPERTS else model
    for parameter in model.memories.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    prompt = 2 + tokens(1, 5, 58)
    made = model.generate(prompt, attention_mask=prompt > 0, max_new_tokens=9, do_sample=False, pad_token_id=0)
    assert made.shape[1] > 5
    assert torch.equal(made[:, :5], prompt)
    assert is_greedy(model, made, 5)


@pytest.mark.filterwarnings("ignore")  # transformers' and PEFT's words
@pytest.mark.parametrize("family", ["bert", "mamba", "mpt", "phi3", "rwkv"])
def test_an_adapter_goes_on_what_no_user_named(family):
    peft = pytest.importorskip("peft")
    model = armt.wrap(tiny(family), segment_size=8, num_memory_tokens=3, memory_dim=4)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM"))
    layers = [name for name, _ in adapted.named_modules() if name.endswith(".lora_A")]
    assert layers
    assert not [name for name in layers if ".memories." in name]


@pytest.mark.parametrize("wrap", [armt.wrap, armt.wrap_rmt, armt.wrap_prmt])
@torch.no_grad()
def test_a_head_that_passes_the_base_model_by(wrap):
    """OPT's calls the decoder inside it. What the head reads is carried (RMT), and the last of the hidden states."""
    base = base_of("opt", word_embed_proj_dim=32)
    model, ids = wrap(base, segment_size=8, num_memory_tokens=3).eval(), tokens(2, 20)
    output = model(ids, output_hidden_states=True)
    torch.testing.assert_close(base.lm_head(output.hidden_states[-1]), output.logits)
    read = model(ids[:, :8], skip_logits=True).memory_state  # by the base model alone
    torch.testing.assert_close(model(ids[:, 8:], memory_state=read).logits, output.logits[:, 8:])


@pytest.mark.parametrize("family", EXPERTS[:2])
def test_the_balancing_loss_of_experts_counts(family):
    ids = tokens(2, 20)
    options = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    model = armt.wrap(base_of(family, **options), segment_size=20, num_memory_tokens=1, memory_dim=4)
    with torch.no_grad():
        expected = base_of(family, **options)(ids, labels=ids)
        plain = armt.wrap(base_of(family), segment_size=20, num_memory_tokens=1, memory_dim=4)(ids, labels=ids).loss
        loss = model(ids, labels=ids).loss
        assert loss.item() == pytest.approx(expected.loss.item(), abs=0.02)  # the memory token is routed too
        assert (loss - plain).item() == pytest.approx(0.5 * expected.aux_loss.item(), abs=0.02)
        in_two_parts = [model(ids, labels=ids, num_items_in_batch=2 * 38).loss.item() for _ in range(2)]
        summed = model(ids, labels=ids, num_items_in_batch=1).loss.item()  # as `answer_loss` asks for it
        assert sum(in_two_parts) == pytest.approx(loss.item(), abs=1e-5), "charged once for a step, not for each part"
        assert model(ids, labels=torch.full_like(ids, -100), num_items_in_batch=0).loss == 0
        assert summed == pytest.approx(38 * loss.item(), rel=1e-5), "a sum has it for each answer"
        model.config.segment_size = 10
        assert (model(ids, labels=ids).loss - plain).item() == pytest.approx(0.5 * expected.aux_loss.item(), abs=0.1)
    model(ids, labels=ids).loss.backward()
    assert all(layer.mlp.gate.weight.grad.abs().max() > 0 for layer in model.base.model.layers)


def shapes(model):
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def attributes(model):
    """Of every module: hooks, mode, and the mark of what transformers must not draw anew."""
    return [
        (len(m._forward_hooks), len(m._forward_pre_hooks), m.training, getattr(m, "_is_hf_initialized", None))
        for m in model.modules()
    ]


REFUSED = [
    (lambda: GPT2Model(BASES["gpt2"]().config), {}, "make logits, as AutoModelForCausalLM loads it; got GPT2Model"),
    (lambda: LlamaForSequenceClassification(LlamaConfig(**ROTARY)), {}, "make logits"),
    (lambda: MemoryMosaicModel(BASES["memory_mosaic"]().config), {}, "make logits"),
    (lambda: AutoModelForMaskedLM.from_config(config_of("bert", is_decoder=False)), {}, "see no later token"),
    (lambda: AutoModelForCausalLM.from_config(config_of("bert", is_decoder=False)), {}, r"decoder \(is_decoder"),
    (BASES["gpt2"], {"segment_sise": 8}, "unknown argument 'segment_sise'. Did you mean 'segment_size'"),
    (BASES["gpt2"], {"segment_size": 0}, "segment_size must be a positive integer"),
    (BASES["gpt2"], {"memory_dim": 1, "num_rolls": 3}, "num_rolls must lie below 2 memory_dim"),
    (BASES["gpt2"], {"update_order": "random"}, "update_order must be one of parallel, sequential"),
    (BASES["gpt2"], {"segment_alignment": "middle"}, "segment_alignment must be one of"),
    (BASES["gpt2"], {"backprop_segments": 0}, "backprop_segments must be a positive integer"),
    (BASES["gpt2"], {"layers_path": "transformer.blocks"}, "name a ModuleList"),
    (BASES["gpt2"], {"segment_size": 63}, "fit into the base's 64 positions; got 65 positions"),
    (BASES["gpt2"], {"segment_size": 500, "own_memory_positions": True}, "fit into the base's 66 positions"),
    (lambda: base_of("opt"), {"segment_size": 63}, "fit into the base's 64 positions"),
    (lambda: base_of("roberta"), {"segment_size": 62}, "fit into the base's 62 positions"),
]


@pytest.mark.parametrize(("build", "options", "message"), REFUSED)
@pytest.mark.parametrize("mode", [True, False])
def test_what_cannot_be_wrapped_is_left_as_it_was(build, options, message, mode):
    base = build().train(mode)
    before, marks = shapes(base), attributes(base)
    refused(message, armt.wrap, base, **{"segment_size": 8, "num_memory_tokens": 2, "memory_dim": 4} | options)
    assert shapes(base) == before
    assert attributes(base) == marks


@pytest.mark.parametrize("wrap", [armt.wrap_rmt, armt.wrap_prmt])
def test_embeddings_that_cannot_carry_a_memory_are_refused(wrap):
    refused("have embeddings as wide as its layers", wrap, base_of("opt"), 8, 2)


def test_a_base_without_a_cache_reads_but_does_not_generate():
    model, ids = armt.wrap(base_of("openai-gpt"), segment_size=8, num_memory_tokens=2, memory_dim=4), tokens(1, 20)
    assert model(ids).logits.isfinite().all()
    message = "needs a cache of the base, and this OpenAIGPTLMHeadModel gave none"
    refused(message, model.generate, ids, attention_mask=ids > 0, max_new_tokens=2)


def test_a_model_of_a_configuration_is_tried_too():
    config = ARMTConfig(base_config=config_of("bert", is_decoder=False), segment_size=8, memory_dim=4)
    refused("see no later token when it predicts one; got BertLMHeadModel", ARMTForCausalLM, config)


def test_small_first_weights_hide_no_later_token():
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(config_of("bert", is_decoder=False, initializer_range=0.002))
    refused("see no later token when it predicts one; got BertLMHeadModel", expect_causal, base, "test")


@some("name", CASES, by_default=OF_EACH_CLASS)
def test_our_models_are_causal(name):
    expect_causal(CASES[name].build(), "test")


def test_a_trial_leaves_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    base = base_of("mixtral").train()
    torch.manual_seed(5)
    expect_causal(base, "test")
    assert torch.equal(torch.rand(3), expected)
