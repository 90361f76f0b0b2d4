"""Mamba by our scan is transformers' Mamba."""

import copy

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from tessera.models import mamba
from tessera.models.carried_state import read_document, read_on
from tessera.models.mamba import ScanMixer, use_selective_scan
from tessera.models.saving.loading import load_model
from tessera.models.small_models import untrained_model
from tests.models.armt.bases import config_of
from tests.refusals import refused

CONFIG = config_of("mamba", vocab_size=30, hidden_size=16, state_size=4)


@pytest.fixture
def pair():
    published = MambaForCausalLM(CONFIG).double()
    return published, use_selective_scan(copy.deepcopy(published))


@pytest.fixture
def ids():
    return torch.randint(1, 30, (2, 21), generator=torch.Generator().manual_seed(0))


def test_it_is_the_mamba_of_recipes_and_experiments():
    assert all(isinstance(layer.mixer, ScanMixer) for layer in untrained_model(CONFIG).backbone.layers)


def test_a_loaded_one_reads_on_and_one_of_transformers_alone_is_refused(tmp_path, ids):
    published = MambaForCausalLM(CONFIG)
    for layer in published.backbone.layers:  # what untrained weights carry is small
        torch.nn.init.normal_(layer.mixer.x_proj.weight)
    published.save_pretrained(tmp_path)
    model, plain = load_model(tmp_path), MambaForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        rest, _ = read_on(model, ids[:, 9:], read_on(model, ids[:, :9], None)[1])
        torch.testing.assert_close(rest, model(ids).logits[:, 9:], rtol=0, atol=1e-6)
    for kind in (torch.float32, torch.bfloat16):
        read_document(model.to(kind), ids[0], None, "memorize")
        message = "memorize: the model must read on behind its state; got mamba"
        refused(message, read_document, plain.to(kind), ids[0], None, "memorize")


def test_logits_and_gradients_are_those_of_transformers(pair, ids):
    published, ours = pair
    expected, got = (model(input_ids=ids, labels=ids, use_cache=False) for model in pair)
    # transformers takes the decays in float32, whatever the model's precision
    torch.testing.assert_close(got.logits, expected.logits, rtol=0, atol=1e-6)
    expected.loss.backward()
    got.loss.backward()
    for (name, peer), parameter in zip(published.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, peer.grad, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_training_is_the_same_and_leaves_the_scan_alone(pair, ids, monkeypatch):
    """A program of every step of a text took minutes for a dozen; by aot_eager its backward pass was an error."""
    torch._dynamo.reset()
    model = pair[1].train()
    expected = torch.autograd.grad(model(input_ids=ids, labels=ids).loss, list(model.parameters()))
    scans, scan = [], mamba.selective_scan
    monkeypatch.setattr(mamba, "selective_scan", lambda *inputs: scans.append(1) or scan(*inputs))
    model.compile(backend="aot_eager")
    gradients = torch.autograd.grad(model(input_ids=ids, labels=ids).loss, list(model.parameters()))
    torch.testing.assert_close(gradients, expected)
    assert len(scans) == len(model.backbone.layers)


@pytest.mark.parametrize("case", ["cache", "padding"])
def test_transformers_does_what_the_scan_does_not(pair, ids, case, monkeypatch):
    monkeypatch.setattr(mamba, "selective_scan", None)  # a call would be an error
    options = {"use_cache": True}
    if case == "padding":
        options = {"use_cache": False, "attention_mask": (torch.arange(21) > 3).long().expand(2, -1)}
    expected, got = (model.eval()(input_ids=ids, **options).logits for model in pair)
    assert torch.equal(got, expected)


@torch.no_grad()
def test_several_tokens_behind_a_state_ask_the_convolution(pair, ids):
    """An adapter or a hook on it acts."""
    model, calls = pair[1].eval(), []
    state = model(ids[:, :5], use_cache=True).cache_params
    for layer in model.backbone.layers:
        layer.mixer.conv1d.register_forward_hook(lambda *_: calls.append(1))
    model(ids[:, 5:], cache_params=state, use_cache=True)
    assert len(calls) == len(model.backbone.layers)


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True])
def test_a_state_goes_on_by_any_number_of_tokens(pair, ids, training):
    model = pair[1].train(training)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    expected = model(ids, use_cache=False).logits[:, 5:]
    state = model(ids[:, :5], use_cache=True).cache_params
    rest = []
    for part in ids[:, 5:].split([6, 1, 9], 1):
        output = model(part, cache_params=state, use_cache=True)
        state = output.cache_params
        rest.append(output.logits)
    torch.testing.assert_close(torch.cat(rest, 1), expected, rtol=0, atol=2e-6)  # states are float32 there


@torch.no_grad()
@pytest.mark.parametrize("parts", [[600], [200, 400]])
def test_states_of_a_bfloat16_model_are_float32(parts):
    """A decay of 0.999 rounds to 1 there, and a sum over hundreds of steps grows no further."""
    model = MambaForCausalLM(MambaConfig(**CONFIG.to_dict() | {"time_step_min": 0.001, "time_step_max": 0.01}))
    for layer in model.backbone.layers:
        layer.mixer.D.zero_()
        for weight in (layer.mixer.in_proj.weight, layer.mixer.x_proj.weight):
            weight.copy_(torch.randn_like(weight).abs())
        layer.mixer.x_proj.weight[: layer.mixer.time_step_rank] *= 0.01
    model = use_selective_scan(model.bfloat16().eval())
    ids = torch.randint(1, 30, (1, 600), generator=torch.Generator().manual_seed(0))
    expected, state, read = copy.deepcopy(model).double()(ids, use_cache=False).logits, None, []
    for part in ids.split(parts, 1):
        output = model(part, cache_params=state, use_cache=len(parts) > 1)
        state = output.cache_params
        read.append(output.logits.double())
    error = (torch.cat(read, 1) - expected)[:, 300:].norm() / expected[:, 300:].norm()
    assert error < 0.02  # that of weights and products in eight bits


def test_what_is_saved_is_transformers_own(pair, ids, tmp_path):
    _, ours = pair
    ours.save_pretrained(tmp_path)
    loaded = MambaForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert type(loaded.backbone.layers[0].mixer) is not ScanMixer
    expected, got = (model.eval()(input_ids=ids, use_cache=False).logits for model in (ours, loaded))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "hidden"),
    [(2, slice(0, 5)), (1, slice(0, 3)), (1, slice(4, 8)), (1, slice(15, 21))],
    ids=["left, beside another row", "left", "between", "right"],
)
@torch.no_grad()
def test_padding_of_a_row_has_no_influence(pair, ids, rows, hidden):
    """transformers ignores the mask of a single row. Behind a state comes the mask of all tokens."""
    ours, ids, mask = pair[1].eval(), ids[:rows], torch.ones_like(ids[:rows])
    mask[-1, hidden] = 0
    real = mask[-1].bool()
    expected = ours(ids[-1:, real]).logits
    whole = ours(ids, attention_mask=mask).logits
    first = ours(ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
    last = ours(ids[:, 6:], attention_mask=mask, cache_params=first.cache_params)
    for logits in (whole, torch.cat([first.logits, last.logits], 1)):
        # transformers takes the decays in float32
        torch.testing.assert_close(logits[-1:, real], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cut", [None, 12, 8])
def test_padding_that_would_be_read_as_text_is_refused(pair, ids, cut):
    ours, mask = pair[1].eval(), torch.ones_like(ids)
    mask[1, 8:12] = 0
    cache = None if cut is None else ours(ids[:, :cut], attention_mask=mask[:, :cut], use_cache=True).cache_params
    message = r"^Mamba: .* got .*\. Read such rows one at a time\.$"
    refused(message, ours, ids[:, cut or 0 :], attention_mask=mask, cache_params=cache)


def test_tokens_behind_padding_are_refused_without_a_mask_too(pair, ids):
    ours, mask = pair[1].eval(), torch.ones_like(ids)
    mask[1, 18:] = 0
    refused(r"^Mamba: past tokens must end without padding", ours.generate, ids, attention_mask=mask, max_new_tokens=2)
