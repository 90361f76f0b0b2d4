"""The kernels as attention of models of transformers, against attention that is written out."""

import copy

import pytest
import torch
import transformers as hf
from transformers.masking_utils import eager_mask

import tessera
from tessera.base.errors import TesseraError
from tessera.kernels import entmax, knn_softmax, relumax, sparsemax
from tessera.models import attention
from tessera.models.saving.loading import load_model
from tests.covering import each_value
from tests.models.armt.bases import config_of, tiny
from tests.refusals import refused

SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
CONFIGURATIONS = {
    "gpt2": hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0),
    "gpt_neox": hf.GPTNeoXConfig(**SIZES),
    "llama": hf.LlamaConfig(**SIZES, num_key_value_heads=2),
    "qwen3": hf.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=8),
    "gemma3": hf.Gemma3TextConfig(**SIZES, num_key_value_heads=2, head_dim=8, sliding_window=5),
}
ORACLES = {
    "tessera_gaussian": lambda scores: scores.softmax(-1),
    "tessera_sparsemax": sparsemax,
    "tessera_biweight": lambda scores: entmax(scores, 1.5),
    "tessera_triweight": lambda scores: entmax(scores, 4 / 3),
    "tessera_entmax": lambda scores: entmax(scores, 1.7),
    "tessera_relumax": lambda scores: relumax(scores, 0.5),
    "tessera_knn": lambda scores: knn_softmax(scores, 3),
}
OPTIONS = {"entmax_alpha": 1.7, "relumax_margin": 0.5, "num_neighbours": 3}
# Times the weights of queries (all projections of GPT-2, NeoX), so that compact kernels leave pairs out.
SHARP = {"q_proj.weight": 400.0, "c_attn.weight": 20.0, "query_key_value.weight": 20.0, "q_norm.weight": 8.0}


def written_out(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **options):
    """Attention over a mask to be added, with all scores in memory, as the oracle of the model says."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = scaling * query @ key.mT
    if attention_mask is not None:
        scores = scores.masked_fill(attention_mask < 0, -torch.inf)
    weights = ORACLES[module.config.oracle](scores)
    return (weights @ value).transpose(1, 2).contiguous(), weights


hf.AttentionInterface.register("written_out", written_out)
hf.AttentionMaskInterface.register("written_out", eager_mask)


def make(family, implementation, oracle):
    torch.manual_seed(0)
    config = CONFIGURATIONS[family].__class__(**CONFIGURATIONS[family].to_dict())
    for option, setting in {**OPTIONS, "oracle": oracle}.items():
        setattr(config, option, setting)
    model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__.endswith("RMSNorm"):  # transformers' rounds to float32
                setattr(module, name, torch.nn.RMSNorm(len(child.weight), eps=1e-6))
    model = model.double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(SHARP.get(".".join(name.split(".")[-2:]), 1.0))
    return model


def pair(family, name):
    return make(family, name, name), make(family, "written_out", name)


def ids(batch=2, length=12):
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1))


@each_value(name=ORACLES.keys(), family=CONFIGURATIONS.keys())
def test_logits_gradients_and_steps_behind_a_cache_are_those_written_out(family, name):
    model, oracle = pair(family, name)
    tokens = ids()
    expected = oracle(tokens, labels=tokens)
    actual = model(tokens, labels=tokens)
    torch.testing.assert_close(actual.logits, expected.logits, rtol=0, atol=1e-9)
    for loss in (actual.loss, expected.loss):
        loss.backward()
    for (parameter_name, ours), theirs in zip(model.named_parameters(), oracle.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-9, msg=parameter_name)
    with torch.no_grad():
        first = model(tokens[:, :7], use_cache=True)
        several = model(tokens[:, 7:10], past_key_values=first.past_key_values, use_cache=True)
        last = model(tokens[:, 10:11], past_key_values=several.past_key_values)
    chunks = torch.cat([first.logits, several.logits, last.logits], 1)
    torch.testing.assert_close(chunks, expected.logits[:, :11].detach(), rtol=0, atol=1e-9)


@each_value(family=["llama", "gemma3", "gpt2"], weights=[False, True], sizes=[[6, 1, 5], [1, 3, 8]])
@torch.no_grad()
def test_a_static_cache_is_read_as_far_as_it_is_filled(family, weights, sizes):
    """Of its beginning transformers gives no mask: query i sees keys 0 to i of as many as there is room for."""
    model, tokens, read = make(family, "tessera_triweight", ""), ids(), []
    cache = hf.StaticCache(config=model.config, max_cache_len=17)
    for part in tokens.split(sizes, 1):
        read.append(model(part, past_key_values=cache, use_cache=True, output_attentions=weights).logits)
    torch.testing.assert_close(torch.cat(read, 1), model(tokens).logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_padding_changes_nothing(family, side):
    model = make(family, "tessera_triweight", "")
    tokens, padding = ids(1, 9), torch.zeros(1, 4, dtype=torch.long)
    pieces = (padding, tokens) if side == "left" else (tokens, padding)
    mask = torch.cat([torch.full_like(piece, int(piece is tokens)) for piece in pieces], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = model(torch.cat(pieces, 1), attention_mask=mask, position_ids=positions).logits
    kept = padded[:, 4:] if side == "left" else padded[:, :9]
    torch.testing.assert_close(kept, model(tokens).logits, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_packed_documents_are_read_apart(family):
    model = make(family, "tessera_sparsemax", "")
    first, second = ids(1, 12)[:, :5], ids(1, 12)[:, 5:]
    positions = torch.cat([torch.arange(5), torch.arange(7)])[None]
    packed = model(torch.cat([first, second], 1), position_ids=positions, use_cache=False).logits
    alone = torch.cat([model(first).logits, model(second).logits], 1)
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-9)


def test_masks_of_windows_documents_and_padding_are_recognised_and_others_are_not():
    def of(mask, size=None):
        return attention._structure(torch.as_tensor(mask, dtype=torch.bool)[:, None], size)

    causal = torch.ones(6, 6).tril()[None]
    assert of(causal) == (attention._causal_window(None), None)
    window, documents = of(causal.triu(-2), 3)
    assert (window.span, documents) == (4, None)
    packed = torch.block_diag(torch.ones(2, 2).tril(), torch.ones(4, 4).tril())[None]
    assert of(packed)[1].tolist() == [[1, 1, 2, 2, 2, 2]]
    left_padded = torch.block_diag(torch.zeros(2, 2), torch.ones(4, 4).tril())[None]
    assert of(left_padded)[1].tolist() == [[-1, -1, 1, 1, 1, 1]]
    with_a_hole = causal.clone()
    with_a_hole[0, 4, 1] = 0
    assert of(with_a_hole) is None
    assert of(torch.ones(1, 6, 6)) is None, "a query that sees later keys"


@pytest.mark.parametrize(
    ("family", "name"), [("llama", "tessera_biweight"), ("llama", "tessera_relumax"), ("gpt2", "tessera_biweight")]
)
def test_output_attentions_are_the_weights(family, name):
    model, oracle = pair(family, name)
    weights = model(ids(), output_attentions=True).attentions
    expected = oracle(ids(), output_attentions=True).attentions
    assert len(weights) == 2
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-9)
    for layer in weights:
        assert (layer == 0).double().mean() > 0.6, "beyond the causal half, pairs are left out"


@pytest.mark.parametrize("name", ["tessera_gaussian", "tessera_biweight"])
def test_a_mask_of_numbers_is_added_to_the_scores(name):
    """Relative positions of BEiT and Swin come as such a mask."""
    model, lowest = make("llama", name, ""), torch.finfo(torch.float64).min
    bias = torch.randn(2, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    hidden = torch.ones(6, 6).triu(1).bool()
    layer = model.model.layers[0].self_attn
    query, key, value = torch.randn(3, 2, 4, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for low in (lowest, -torch.inf):
        mask = bias.masked_fill(hidden, low)
        output, _ = hf.AttentionInterface()[name](layer, query, key, value, mask, scaling=3.0)
        scores = (3 * query @ key.mT + bias).masked_fill(hidden, -torch.inf)
        torch.testing.assert_close(output.transpose(1, 2), ORACLES[name](scores) @ value, rtol=0, atol=1e-9)
    refused("be of booleans or floats", model, ids(2, 6), attention_mask=(~hidden).long().expand(2, 1, 6, 6))


@pytest.mark.parametrize("is_autocast", [False, True])
@pytest.mark.parametrize("name", ["tessera_gaussian", "tessera_biweight"])
def test_a_padded_token_in_bfloat16_is_as_near_as_others(name, is_autocast):
    """Behind padding a decoded token's mask is no window: its scores are in float32 all the same."""
    layer = make("llama", name, "").model.layers[0].self_attn
    query, key, value = (torch.nn.functional.normalize(1.5 + torch.randn(2, 4, n, 16), dim=-1) for n in (1, 60, 60))
    tensors = [tensor.bfloat16() for tensor in (query, key, value)]
    mask = torch.ones(2, 1, 1, 60, dtype=torch.bool)
    mask[1, ..., :20] = False
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
        output, _ = hf.AttentionInterface()[name](layer, *tensors, mask, scaling=50.0)
    query, key, value = (tensor.double() for tensor in tensors)
    expected = ORACLES[name]((50 * query @ key.mT).masked_fill(~mask, -torch.inf)) @ value
    torch.testing.assert_close(output.transpose(1, 2).double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
def test_autocast_without_a_cache(family):
    """Rotation leaves queries and keys in float32, and values are bfloat16; a cache would hold all in float32."""
    model = make(family, "tessera_gaussian", "").float()
    expected = model(ids(), use_cache=False).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = model(ids(), use_cache=False).logits
    assert 0 < (actual.float() - expected).abs().mean() < 0.02 * expected.std()


@pytest.mark.parametrize(
    ("option", "what"),
    [("softcap", "soft-capping"), ("s_aux", "sinks"), ("sinks", "sinks"), ("indices", "keys for each query")],
)
def test_what_kernels_cannot_do_is_refused_by_name(option, what):
    model = make("llama", "tessera_biweight", "")
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 4, 3, 4).double()
    attend = hf.AttentionInterface()["tessera_biweight"]
    refused(what, attend, layer, x, x[:, :2], x[:, :2], None, **{option: torch.ones(1)})


# Models with an attention of their own, or with none.
OWN = "bloom xglm gptj git gpt_neo falcon openai-gpt xlm xlnet cpmant trocr rwkv mamba lstm".split()


@pytest.mark.parametrize("kind", OWN)
def test_a_model_with_an_attention_of_its_own_is_refused(kind):
    """It would go on with softmax (BLOOM without a mask: it would see the future), or with none, without a word."""
    needed = "tessera_biweight: the model must take its attention from transformers' AttentionInterface"
    config = config_of(kind)
    with pytest.raises(TesseraError, match=needed), torch.device("meta"):
        hf.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="tessera_biweight")
    if kind == "mamba":  # of others transformers itself warns
        model = hf.AutoModelForCausalLM.from_config(config)
        refused(needed, model.set_attn_implementation, "tessera_biweight")


def test_a_mask_says_so_of_what_was_told_later():
    model = tiny("bloom")
    model.config._attn_implementation = "tessera_biweight"
    refused("take its attention from transformers' AttentionInterface; got BloomModel", model, ids())


def test_an_encoder_with_an_attention_of_its_own_is_refused():
    """BigBird-Pegasus reads the text by sparse softmax; its decoder alone would have the kernel."""
    sizes = {"vocab_size": 50, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    config = hf.BigBirdPegasusConfig(**sizes, encoder_ffn_dim=16, decoder_ffn_dim=16)
    with pytest.raises(TesseraError, match="got BigBirdPegasusEncoder"), torch.device("meta"):
        hf.AutoModelForSeq2SeqLM.from_config(config, attn_implementation="tessera_biweight")


BIG_BIRD = {"vocab_size": 50, "d_model": 16, "decoder_attention_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
QWEN2_MOE = {**SIZES, "num_key_value_heads": 4, "moe_intermediate_size": 16}


@pytest.mark.parametrize(
    ("family", "sizes", "dtype", "atol"),
    [("bigbird_pegasus", BIG_BIRD, torch.float64, 1e-9), ("qwen2_moe", QWEN2_MOE, torch.float32, 1e-5)],
)
@torch.no_grad()
def test_a_model_that_relies_on_its_mask_or_has_a_needless_one_is_causal(family, sizes, dtype, atol):
    """One does not say that it is causal; without sliding windows the other has a mask of 0 keys beside its own."""
    config = hf.AutoConfig.for_model(family, **sizes)
    kernel = hf.AutoModelForCausalLM.from_config(config, attn_implementation="tessera_gaussian").to(dtype).eval()
    softmax = hf.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager").to(dtype).eval()
    softmax.load_state_dict(kernel.state_dict())
    torch.testing.assert_close(kernel(ids()).logits, softmax(ids()).logits, rtol=0, atol=atol)


def test_an_alpha_that_is_no_kernel_is_refused():
    model = make("llama", "tessera_entmax", "")
    model.config.entmax_alpha = 2.5
    refused("entmax_alpha", model, ids())


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_kernel_is_saved_with_the_weights(family, is_wrapped, tmp_path):
    """transformers saves no attention, and would load a model of another function; who names one gets that."""
    model, softmax = make(family, "tessera_knn", ""), make(family, "sdpa", "")
    model.config.num_neighbours = 2
    if is_wrapped:
        model, softmax = (tessera.wrap(each, 8, 2, 4).double() for each in (model, softmax))
        softmax.load_state_dict(model.state_dict())
    expected, other = model(ids()).logits, softmax(ids()).logits
    assert (expected - other).abs().max() > 1e-3
    model.save_pretrained(tmp_path / "kernel")
    for options, logits in (({}, expected), ({"attn_implementation": "sdpa"}, other)):
        loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "kernel", **options)
        torch.testing.assert_close(loaded(ids()).logits, logits, rtol=0, atol=1e-6)
    loaded.save_pretrained(tmp_path / "softmax")
    loaded = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "softmax")
    torch.testing.assert_close(loaded(ids()).logits, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_heads_with_alphas_of_their_own(family, tmp_path):
    """Logits and gradients are those of attention that is written out; saved, they are loaded."""
    model, oracle = make(family, "eager", ""), make(family, "written_out", "")
    learned = attention.learn_alpha(model, {"name": "entmax", "alpha": 1.3, "lowest": 1.01})
    assert len(learned) == 2
    for layer, alphas in enumerate(learned.values()):
        with torch.no_grad():
            alphas.alpha_logit.copy_(torch.linspace(-2 + layer, 2 - 2 * layer, 4))
    values = [alphas.alpha.detach().double()[:, None, None].requires_grad_() for alphas in learned.values()]
    layers = iter(values)
    ORACLES["learned"] = lambda scores: entmax(scores, next(layers))
    oracle.config.oracle = "learned"
    losses = [one(ids(), labels=ids()).loss for one in (model, oracle)]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(*losses, rtol=0, atol=1e-8)
    for alphas, expected in zip(learned.values(), values):
        share = alphas.alpha_logit.detach().sigmoid()
        chain = (0.99 * share * (1 - share)).double()
        torch.testing.assert_close(
            alphas.alpha_logit.grad.double(), chain * expected.grad.flatten(), rtol=1e-4, atol=1e-7
        )
    model.float().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    torch.testing.assert_close(loaded(ids()).logits, model(ids()).logits, rtol=0, atol=1e-6)
    for options in ({}, {"attn_implementation": "tessera_entmax"}):
        unread = hf.AutoModelForCausalLM.from_pretrained(tmp_path, **options)
        refused("must be read from its folder", unread, ids())


@pytest.mark.parametrize("is_wrapped_before", [True, False])
def test_alphas_of_a_model_that_has_a_memory_too(is_wrapped_before, tmp_path):
    model = hf.LlamaForCausalLM(copy.deepcopy(CONFIGURATIONS["llama"])).eval()
    sizes = {"segment_size": 8, "num_memory_tokens": 2, "memory_dim": 4}
    wrapped = tessera.wrap(model, **sizes) if is_wrapped_before else None
    learned = attention.learn_alpha(wrapped or model)
    with torch.no_grad():
        for alphas in learned.values():
            alphas.alpha_logit.copy_(torch.linspace(-2, 2, 4))
    wrapped = wrapped or tessera.wrap(model, **sizes)
    wrapped.save_pretrained(tmp_path)
    torch.testing.assert_close(load_model(tmp_path)(ids()).logits, wrapped(ids()).logits, rtol=0, atol=1e-6)
