"""Published Memory Mosaics, nanoMosaics and sparse-kernel checkpoints give the published numbers."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from tessera.interop import from_reference, nano_mosaics, recognised_source
from tessera.interop.memory_mosaics import (
    SparseKernelImporter,
    SparseKernelTrainingImporter,
    StackAssoMemImporter,
    TrainingScriptImporter,
)
from tests.covering import some
from tests.golden_files import cases, load, part
from tests.interop.published import close, expect_gradients, expect_refusals
from tests.refusals import refused, refused_in_a_line
from tests.tolerances import GOLDEN_FLOAT32_RATIO

IMPORTERS = {
    "A_library": ("memory-mosaics", StackAssoMemImporter),
    "B_nano": ("nano-mosaics", None),
    "C_sparse": ("sparse-kernel-regression", SparseKernelImporter),
    "H_eft": ("memory-mosaics-eft", TrainingScriptImporter),
    "I_eft_sparse": ("sparse-kernel-regression-eft", SparseKernelTrainingImporter),
}
SOURCES = {family: source for family, (source, _) in IMPORTERS.items()}
LEAKING = "C11_norm_relu_low_beta"
# Parameters and inputs of the cases that have none of their own.
SHARED = {"C_sparse": "C0_shared_params_inputs", "I_eft_sparse": "I0_shared_params_inputs"}
CASES = [(family, case) for family in SOURCES for case in cases(family) if case not in (LEAKING, *SHARED.values())]


def golden(family, case):
    tensors, description = load(family, case)
    if "param/emb.weight" not in tensors and family in SHARED:
        tensors = {**load(family, SHARED[family])[0], **tensors}
    return tensors, description, part(tensors, "param/")


def converted(family, published, arguments):
    """Our parameters as a function of the published ones, for gradients under the published names."""
    if family == "B_nano":
        return nano_mosaics.convert(published, {**nano_mosaics.ARGUMENTS, **arguments})
    source, importer = IMPORTERS[family]
    return importer(source, published, arguments).parameters()


def runs(description):
    """Names of the runs that have logits and a loss: T and the length, the longest first."""
    return [name for name in description["runs"] if name[0] == "T"]


def outputs(family, model, leaves, tensors, description, run):
    """Logits and loss of our model whose parameters are functions of `leaves`, and which positions hold no padding."""
    ours = converted(family, leaves, description["constructor"])
    if model.config.tie_word_embeddings:
        ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
    inputs = part(tensors, f"in/{run}/")
    mask = inputs.get("attention_mask")
    logits = functional_call(model, ours, (inputs["idx"],), {"attention_mask": mask}).logits
    targets = inputs["targets"]
    if "loss_mask" in inputs:  # the synthetic tasks: the target alone
        targets = targets.masked_fill(inputs["loss_mask"] == 0, -1)
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    return logits, loss, torch.ones_like(targets, dtype=torch.bool) if mask is None else mask.bool()


@pytest.mark.parametrize(("family", "case"), CASES)
def test_float64_logits_losses_and_gradients(family, case):
    tensors, description, published = golden(family, case)
    model = from_reference(SOURCES[family], published, description["constructor"]).double()
    for number, run in enumerate(runs(description)):
        leaves = {name: tensor.double().requires_grad_() for name, tensor in published.items()}
        logits, loss, visible = outputs(family, model, leaves, tensors, description, run)
        expected = tensors[f"f64/{run}/logits"]
        close(logits[visible], expected[visible])
        close(loss, tensors[f"f64/{run}/loss"])
        gradients = part(tensors, f"f64/{run}/grad/")
        assert bool(gradients) == (number == 0)  # the files hold gradients of the long run alone
        if gradients:
            expect_gradients(loss, leaves, gradients)


@some(("family", "case"), CASES, by_default=[next(case for case in CASES if case[0] == family) for family in SOURCES])
def test_float32_is_as_accurate_as_the_published_code(family, case):
    tensors, description, published = golden(family, case)
    model = from_reference(SOURCES[family], published, description["constructor"])
    for run in runs(description):
        recorded = description["runs"][run]
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in published.items()}
        logits, loss, visible = outputs(family, model, leaves, tensors, description, run)
        error = (logits - tensors[f"f64/{run}/logits"])[visible].abs().max().item()
        assert error <= GOLDEN_FLOAT32_RATIO * recorded["f32_vs_f64_logits_max_abs"]
        if gradients := part(tensors, f"f64/{run}/grad/"):
            expect_gradients(loss, leaves, gradients, GOLDEN_FLOAT32_RATIO * recorded["f32_vs_f64_grad_max_rel_to_max"])


FIRST = [("A_library", "A1_lowr_nobias_pmem1"), ("B_nano", "B1_nobias_pmem1"), ("H_eft", "H1_lowr_nobias_pmem1")]


@some(("family", "case"), FIRST, by_default=FIRST[:1])
def test_greedy_continuation_with_the_published_cropping(family, case):
    """Published generation recomputes the last block_size tokens, as this loop does; until then, the cache agrees."""
    tensors, description, published = golden(family, case)
    model = from_reference(SOURCES[family], published, description["constructor"]).double()
    block, prompt = description["constructor"]["block_size"], tensors["in/greedy/prompt"]
    expected = next(tensor for name, tensor in part(tensors, "f64/greedy/").items() if tensor.dtype == torch.int64)
    tokens = prompt
    while tokens.shape[1] < expected.shape[1]:
        tokens = torch.cat([tokens, model(tokens[:, -block:]).logits[:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(tokens, expected)
    uncropped = block - prompt.shape[1]
    cached = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=uncropped, do_sample=False)
    assert torch.equal(cached, expected[:, :block])


def test_a_checkpoint_that_leaks_the_future_is_refused():
    _, description, published = golden("C_sparse", LEAKING)
    refused("lets the future leak", from_reference, "sparse-kernel-regression", published, description["constructor"])


@pytest.mark.parametrize(
    ("source", "change", "message"),
    [
        ("memory-mosaics", {"v_shift": 2}, "v_shift must be 1"),
        ("memory-mosaics", {"k_kernel_size": 3}, "k_kernel_size must be 1"),
        ("memory-mosaics", {"v_kernel_size": 3}, "v_fe_type, v_kernel_size"),
        ("memory-mosaics", {"n_heads": 4}, "unknown argument 'n_heads'. Did you mean 'n_head'"),
        ("memory-mosaics", {"n_layer": 3}, "'blocks.2.ln1.weight' is missing"),
        ("memory-mosaics", {"n_layer": 1}, "unexpected tensors: 'blocks.1"),
        ("memory-mosaics", {"n_embd": 64}, "must have shape"),
        ("memory-mosaic", {}, "unknown reference source 'memory-mosaic'. Did you mean 'memory-mosaics'"),
        ("sparse-kernel-regression", {"method": "quartic"}, "method must be softmax or"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_with_the_reason(source, change, message):
    _, description, published = golden("A_library", "A1_lowr_nobias_pmem1")
    refused(message, from_reference, source, published, {**description["constructor"], **change})


def test_convolutions_of_another_width_are_refused():
    """Of those that the arguments do not name, the further weights were left out."""
    _, description, published = golden("A_library", "A4_conv_bias_pmem1")
    for name in ("attn.k_featurizer", "pmem.k_featurizer", "attn.v_featurizer"):
        name = f"blocks.1.{name}.conv.weight"
        wider = {**published, name: torch.cat([published[name], published[name]], 2)}
        refused("must have shape", from_reference, "memory-mosaics", wider, description["constructor"])
    arguments = {**description["constructor"], "v_kernel_size": 1}
    refused("must have shape", from_reference, "memory-mosaics", published, arguments)


def test_wrappers_and_constant_buffers_of_saved_modules_are_no_obstacle():
    tensors, description, published = golden("B_nano", "B1_nobias_pmem1")
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in published.items()}  # in either order
    wrapped["_orig_mod.mosaic.h.0.attn.bias"] = torch.ones(1, 1, 48, 48)
    wrapped["_orig_mod.mosaic.h.0.attn.k_featurizer.leaky_avg.coef"] = torch.zeros(48, 48)
    model = from_reference("nano-mosaics", wrapped, description["constructor"]).double()
    logits = model(tensors["in/T17/idx"]).logits
    close(logits, tensors["f64/T17/logits"])


def saved_by_script(case):
    """A case as the training scripts save it: compiled names, and all of the script's arguments."""
    tensors, description, published = golden("H_eft" if case.startswith("H") else "I_eft_sparse", case)
    arguments = {name: value for name, value in description["constructor"].items() if name != "config"}
    script = {"learning_rate": 5e-3, "dtype": "float16", "att_shift": 1, "milestone": [10000], "compile": True}
    return tensors, {f"_orig_mod.{name}": tensor for name, tensor in published.items()}, {**arguments, **script}


def test_what_the_training_scripts_save_is_understood():
    """Of the other script tests/cli/test_convert.py has a checkpoint."""
    tensors, weights, arguments = saved_by_script("H2_lowr_bias_pmem2")
    assert recognised_source(weights, arguments) == "memory-mosaics-eft"
    logits = from_reference("memory-mosaics-eft", weights, arguments).double()(tensors["in/T9/idx"]).logits
    close(logits, tensors["f64/T9/logits"])


def test_trained_further_they_drop_no_contextual_weights():
    _, weights, arguments = saved_by_script("H1_lowr_nobias_pmem1")
    model = from_reference("memory-mosaics-eft", weights, {**arguments, "ic_dropout": 0.2, "hd_dropout": 0.1})
    layer = model.model.layers[0]
    assert (layer.contextual.weight_dropout, layer.persistent.weight_dropout) == (0.0, 0.2)
    assert layer.residual_dropout == 0.1


EFT_NAMES = "those of 'memory-mosaics-eft' and of 'sparse-kernel-regression-eft'"


def test_another_codes_parameter_names_are_recognised():
    _, eft, arguments = saved_by_script("H1_lowr_nobias_pmem1")
    _, _, sparse_arguments = saved_by_script("I17_softmax_task_sort")
    for source in ("memory-mosaics", "sparse-kernel-regression", "nano-mosaics", "armt"):
        refused(f"^{source}: the parameter names are {EFT_NAMES}", from_reference, source, eft, arguments)
    plain = golden("A_library", "A1_lowr_nobias_pmem1")[2]
    both = "those of 'memory-mosaics' and of 'sparse-kernel-regression' "
    refused(both, from_reference, "memory-mosaics-eft", plain, arguments)
    nano = golden("B_nano", "B1_nobias_pmem1")[2]
    refused("those of 'nano-mosaics'", from_reference, "memory-mosaics", nano, arguments)
    assert recognised_source(nano, None) == "nano-mosaics"
    assert recognised_source(plain, sparse_arguments) == "sparse-kernel-regression"
    refused(f"{EFT_NAMES} .*Name the source", recognised_source, eft, None)
    refused("no published code known here", recognised_source, {"weight": 0}, None)


@pytest.mark.parametrize(("family", "head"), [("A_library", "head.weight"), ("B_nano", "lm_head.weight")])
def test_a_tied_head_that_is_another_matrix_is_refused(family, head):
    _, description, weights = golden(*next(one for one in CASES if one[0] == family))
    message, other = rf"{head} and .* must be one parameter; they differ", {**weights, head: weights[head] + 1}
    refused(message, from_reference, SOURCES[family], other, description["constructor"])


def test_arguments_of_the_wrong_script_are_refused():
    _, eft, arguments = saved_by_script("H1_lowr_nobias_pmem1")
    source = "sparse-kernel-regression-eft"
    for wrong, changes, message in (
        ("memory-mosaics-eft", {"method": "softmax"}, "one of the source 'sparse-kernel-regression-eft'"),
        ("memory-mosaics-eft", {"n_heads": 3}, "unknown argument 'n_heads'. Did you mean 'n_head'"),
        (source, {"methods": "softmax"}, "unknown argument 'methods'. Did you mean 'method'"),
        (source, {}, "argument 'method' is missing"),
        (source, {"method": "top0_softmax"}, "method must be softmax or"),
    ):
        refused(message, from_reference, wrong, eft, {**arguments, **changes})
    rate = "_orig_mod.blocks.0.attn.leaky_average.leaky_beta_u_under"
    message = "leaky_beta_w_under and .*leaky_beta_u_under must be one parameter; they differ"
    refused(message, from_reference, "memory-mosaics-eft", {**eft, rate: eft[rate] + 1}, arguments)


@pytest.mark.filterwarnings("ignore:.*quantize")
@some("family", ["A_library", "B_nano", "I_eft_sparse"], by_default=["B_nano"])
def test_tensors_that_are_no_weights_are_one_line(family):
    _, description, weights = golden(*next(one for one in CASES if one[0] == family))
    expect_refusals(SOURCES[family], weights, description["constructor"])


NO_LAYERS = [("n_layer", 10**9), ("n_layer", "2"), ("n_layer", -1)]


@pytest.mark.parametrize(
    ("name", "value"), [*NO_LAYERS, ("n_embd", 0), ("vocab_size", None), ("n_head", 1.5), ("bias", 3)]
)
def test_arguments_that_are_none_are_one_line(name, value):
    _, description, published = golden("B_nano", "B1_nobias_pmem1")
    refused_in_a_line("", from_reference, "nano-mosaics", published, {**description["constructor"], name: value})
