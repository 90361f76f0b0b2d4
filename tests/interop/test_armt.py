"""Published ARMT, RMT and PRMT checkpoints give the published numbers."""

import pytest
import torch
from torch.func import functional_call

from tessera.interop import armt, from_reference
from tests.covering import some
from tests.golden_files import cases, load, part
from tests.interop.published import close, expect_gradients, expect_refusals
from tests.refusals import refused

FAMILY = {"armt": "E_armt", "rmt": "F_rmt_prmt", "prmt": "F_rmt_prmt"}
ARMT_RUNS = "correction_main nocorrection_main correction_masked correction_align_right correction_align_center".split()
# Beside what the published constructors take.
OPTIONS = {"armt": {"correction": True}, "rmt": {}, "prmt": {"compatibility": "published"}}


def golden(source, case, **changes):
    """Tensors, and the arguments that `from_reference` takes."""
    tensors, description = load(FAMILY[source], case)
    arguments = {**description["constructor"], "base_model": description["base_model"], **OPTIONS[source]}
    return tensors, {**arguments, **changes}


def names(source):
    return [name for name in cases(FAMILY[source]) if f"_{source}_" in name]


def model_of(source, tensors, arguments):
    return from_reference(source, part(tensors, "param/"), arguments).double()


def assert_gradients(source, model, tensors, run):
    leaves = {name: tensor.double().requires_grad_() for name, tensor in part(tensors, "param/").items()}
    idx = tensors["in/main/idx"]
    ours = armt.convert(source, leaves, model.config)
    ours["base.lm_head.weight"] = ours["base.transformer.wte.weight"]
    loss = functional_call(model, ours, kwargs={"input_ids": idx, "labels": idx}).loss
    expect_gradients(loss, leaves, part(tensors, f"f64/{run}/grad/"))


@pytest.mark.parametrize("case", names("armt"))
@pytest.mark.parametrize("run", ARMT_RUNS)
def test_armt_logits_loss_and_memory(case, run):
    alignment = run.rpartition("align_")[2] if "align" in run else None
    tensors, arguments = golden("armt", case, correction=run.startswith("correction"), segment_alignment=alignment)
    expected = part(tensors, f"f64/{run}/")
    if not expected:
        pytest.skip("this case has no such run")
    idx = tensors["in/main/idx"][: len(expected["logits"])]
    masks = part(tensors, "in/masked/") if "masked" in run else {"attention_mask": torch.ones_like(idx)}
    masks = {"loss_mask" if name == "labels_mask" else name: mask for name, mask in masks.items()}
    output = model_of("armt", tensors, arguments)(idx, labels=idx, output_segment_states=alignment is None, **masks)
    close(output.logits, expected["logits"])
    close(output.loss, expected["loss"])
    if "W_mem" in expected:
        states = output.segment_states
        close(torch.stack([states[0].A, states[1].A, output.memory_state.A]), expected["W_mem"])
        close(torch.stack([state.z for state in states]), expected["z"])
    if "W_mem_last" in expected:
        close(output.memory_state.A, expected["W_mem_last"])
        close(output.memory_state.z, expected["z_last"])


@pytest.mark.parametrize("run", ["correction_main", "nocorrection_main"])
def test_armt_gradients(run):
    tensors, arguments = golden("armt", "E1_armt_nowrap", correction=run.startswith("correction"))
    assert_gradients("armt", model_of("armt", tensors, arguments), tensors, run)


AS = {"intended": "patched_clone", "published": "main"}


@pytest.mark.parametrize(
    ("source", "case", "options"),
    [("rmt", case, {}) for case in names("rmt")]
    + [("prmt", case, {"compatibility": word}) for case in names("prmt") for word in AS],
)
def test_the_relatives(source, case, options):
    tensors, arguments = golden(source, case, **options)
    run = AS[options.get("compatibility", "published")]
    states = "memory_state" if source == "rmt" else "prev_mem_tokens"
    model, idx = model_of(source, tensors, arguments), tensors["in/main/idx"]
    output = model(idx, attention_mask=torch.ones_like(idx), labels=idx, output_segment_states=True)
    close(output.logits, tensors[f"f64/{run}/logits"])
    close(output.loss, tensors[f"f64/{run}/loss"])
    close(torch.stack([state.memory_tokens for state in output.segment_states]), tensors[f"f64/{run}/{states}"])
    if part(tensors, f"f64/{run}/grad/"):
        assert_gradients(source, model, tensors, run)


@pytest.mark.parametrize(("source", "case"), [("rmt", "F1_rmt_nowrap"), ("prmt", "F3_prmt_nowrap")])
def test_hidden_keys_of_the_relatives(source, case):
    tensors, arguments = golden(source, case)
    idx = tensors["in/main/idx"]
    everything = torch.ones_like(idx)  # also what stands at padding, as published
    mask = tensors["in/masked/attention_mask"]
    output = model_of(source, tensors, arguments)(idx, mask, labels=idx, loss_mask=everything)
    close(output.logits[1:], tensors["f64/masked/logits_row1"])
    close(output.loss, tensors["f64/masked/loss"])


@pytest.mark.parametrize(
    ("source", "case"), [(s, c) for s in ("armt", "rmt", "prmt") for c in names(s) if "E3" not in c]
)
def test_greedy_generation_reads_the_last_segment_only(source, case):
    tensors, arguments = golden(source, case)
    expected = part(tensors, f"f64/{'correction_' if source == 'armt' else ''}generate/")
    prompt = tensors["in/main/idx"][:1, :68]
    model = model_of(source, tensors, arguments)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    tokens = model.generate(prompt, extend_segment=True, **options)
    assert torch.equal(tokens[:, 68:], expected["new_tokens"])
    # generate() keeps logits in float32; the same steps by hand are exact.
    output = model(prompt, use_cache=True, extend_segment=True)
    logits = [output.logits[:, -1]]
    for token in expected["new_tokens"][:, :-1].unbind(1):
        output = model(token[:, None], past_key_values=output.past_key_values, use_cache=True, extend_segment=True)
        logits.append(output.logits[:, -1])
    close(torch.stack(logits, 1), expected["logits"])


def test_second_names_and_masks_of_a_real_checkpoint_are_understood():
    tensors, arguments = golden("armt", "E3_armt_small_activations")
    published = part(tensors, "param/")
    doubled = {name.replace("model.transformer.h", "layers"): tensor for name, tensor in published.items()}
    masks = {"memory_cell.model.transformer.h.0.layer.attn.bias": torch.ones(1, 1, 64, 64)}
    head = {"memory_cell.model.lm_head.weight": published["memory_cell.model.transformer.wte.weight"]}
    model = from_reference("armt", {**doubled, **published, **masks, **head}, arguments)
    plain = from_reference("armt", published, arguments)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters()))
    another = {name: weight + 1 for name, weight in head.items()}
    message = "lm_head.weight and the embedding must be one parameter; they differ"
    refused(message, from_reference, "armt", {**published, **another}, arguments)


@pytest.mark.parametrize(("source", "case"), [("armt", "E3_armt_small_activations"), ("rmt", "F1_rmt_nowrap")])
def test_no_weight_is_rounded(source, case):
    """To the type that the base's configuration names, to that of the first tensor, or to float32."""
    tensors, arguments = golden(source, case)
    published = part(tensors, "param/")
    embedding = "memory_cell.model.transformer.wte.weight"
    named = {**arguments, "base_model": {**arguments["base_model"], "dtype": "bfloat16"}}
    mixed = {name: tensor if name == embedding else tensor.bfloat16() for name, tensor in published.items()}
    exact = {name: tensor.double() + 1e-12 for name, tensor in published.items()}
    for weights, how in ((published, named), (mixed, arguments), (exact, arguments)):
        model = from_reference(source, weights, how)
        assert torch.equal(model.get_input_embeddings().weight, weights[embedding])
        assert model.dtype == weights[embedding].dtype


@pytest.mark.parametrize(
    ("source", "case", "change", "message"),
    [
        ("armt", "E3_armt_small_activations", {"d_memory": 8}, "unknown argument 'd_memory'. Did you mean 'd_mem'"),
        ("armt", "E3_armt_small_activations", {"d_mem": 9}, "must have shape"),
        ("armt", "E3_armt_small_activations", {"segment_alignment": "middle"}, "segment_alignment must be"),
        ("armt", "E3_armt_small_activations", {"num_mem_tokens": 3}, "'memory_cell.memory' must have shape"),
        ("rmt", "F1_rmt_nowrap", {"wrap_pos": True}, "must have shape"),
        ("rmt", "F1_rmt_nowrap", {"correction": True}, "unknown argument 'correction'"),
        ("prmt", "F3_prmt_nowrap", {"compatibility": "clone"}, "compatibility must be 'intended' or 'published'"),
        ("prmt", "F3_prmt_nowrap", {"segment_size": None}, "'segment_size' is missing"),
    ],
)
def test_refusals_name_what_is_wrong(source, case, change, message):
    tensors, arguments = golden(source, case)
    refused(message.replace("(", r"\("), from_reference, source, part(tensors, "param/"), {**arguments, **change})


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("llama", "rms_norm_epsilon", "argument 'rms_norm_epsilon'. Did you mean 'rms_norm_eps'"),
        ("gpt2", "n_layers", "argument 'n_layers'. Did you mean 'n_layer'"),
        ("gpt2", "bands", "argument 'bands'."),
    ],
)
def test_misspelt_fields_of_a_base_are_refused(kind, name, message):
    """transformers keeps them, and the default took their place."""
    refused(message, armt.base_configuration, "armt", {"model_type": kind, name: 1})
    assert armt.base_configuration("armt", {"model_type": "llama", "rope_theta": 7.0, "of_a_later_release": 1})


def test_missing_and_unexpected_tensors_are_refused():
    tensors, arguments = golden("rmt", "F1_rmt_nowrap")
    published = part(tensors, "param/")
    fewer = {name: tensor for name, tensor in published.items() if "ln_f.bias" not in name}
    refused(r"base\.transformer\.ln_f\.bias", from_reference, "rmt", fewer, arguments)
    for name in ("memory_cell.extra", "memory_cell.model.transformer.extra"):
        refused("unexpected", from_reference, "rmt", {**published, name: torch.ones(1)}, arguments)


@pytest.mark.filterwarnings("ignore:.*quantize")
@some("source", ["armt", "rmt", "prmt"], by_default=["prmt"])
def test_tensors_that_are_no_weights_are_one_line(source):
    tensors, arguments = golden(source, names(source)[0])
    expect_refusals(source, part(tensors, "param/"), arguments)
