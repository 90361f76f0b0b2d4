"""Published Memory Mosaics, nanoMosaics and sparse-kernel checkpoints give the published numbers."""

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from tessera.errors import TesseraError
from tessera.interop import from_reference, memory_mosaics, nano_mosaics
from tests.golden_files import cases, load, part
from tests.tolerances import GOLDEN_FLOAT32_RATIO, GOLDEN_GRADIENT, GOLDEN_VALUE

SOURCES = {"A_library": "memory-mosaics", "B_nano": "nano-mosaics", "C_sparse": "sparse-kernel-regression"}
LEAKING = "C11_norm_relu_low_beta"
SHARED = "C0_shared_params_inputs"
CASES = [(family, case) for family in SOURCES for case in cases(family) if case not in (LEAKING, SHARED)]


def golden(family, case):
    tensors, description = load(family, case)
    if family == "C_sparse":
        tensors = {**load(family, SHARED)[0], **tensors}
    return tensors, description, part(tensors, "param/")


def converted(family, published, arguments):
    """Our parameters as a function of the published ones, for gradients under the published names."""
    if family == "B_nano":
        return nano_mosaics.convert(published, {**nano_mosaics.ARGUMENTS, **arguments})
    arguments = {**memory_mosaics.ARGUMENTS, "method": "softmax", **arguments}
    return memory_mosaics.convert(SOURCES[family], published, arguments, arguments["method"])


@pytest.mark.parametrize(("family", "case"), CASES)
def test_float64_logits_losses_and_gradients(family, case):
    tensors, description, published = golden(family, case)
    model = from_reference(SOURCES[family], published, description["constructor"]).double()
    for run in ("T48", "T17"):
        leaves = {name: tensor.double().requires_grad_() for name, tensor in published.items()}
        ours = converted(family, leaves, description["constructor"])
        if model.config.tie_word_embeddings:
            ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
        logits = functional_call(model, ours, (tensors[f"in/{run}/idx"],)).logits
        loss = cross_entropy(logits.flatten(0, 1), tensors[f"in/{run}/targets"].flatten(), ignore_index=-1)
        torch.testing.assert_close(logits, tensors[f"f64/{run}/logits"], rtol=0, atol=GOLDEN_VALUE)
        torch.testing.assert_close(loss, tensors[f"f64/{run}/loss"], rtol=0, atol=GOLDEN_VALUE)
        gradients = part(tensors, f"f64/{run}/grad/")
        if not gradients:  # the files hold gradients of the long run alone
            assert run == "T17"
            continue
        found = torch.autograd.grad(loss, [leaves[name] for name in gradients], allow_unused=True)
        for (name, expected), gradient in zip(gradients.items(), found):
            gradient = torch.zeros_like(expected) if gradient is None else gradient
            bound = GOLDEN_GRADIENT * expected.abs().max().item()
            torch.testing.assert_close(
                gradient, expected, rtol=0, atol=bound, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize(("family", "case"), CASES)
def test_float32_is_as_accurate_as_the_published_code(family, case):
    tensors, description, published = golden(family, case)
    model = from_reference(SOURCES[family], published, description["constructor"])
    for run, recorded in description["runs"].items():
        if run not in ("T48", "T17"):
            continue
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in published.items()}
        ours = converted(family, leaves, description["constructor"])
        if model.config.tie_word_embeddings:
            ours["lm_head.weight"] = ours["model.embed_tokens.weight"]
        logits = functional_call(model, ours, (tensors[f"in/{run}/idx"],)).logits
        error = (logits - tensors[f"f64/{run}/logits"]).abs().max().item()
        assert error <= GOLDEN_FLOAT32_RATIO * recorded["f32_vs_f64_logits_max_abs"]
        loss = cross_entropy(logits.flatten(0, 1), tensors[f"in/{run}/targets"].flatten(), ignore_index=-1)
        gradients = part(tensors, f"f64/{run}/grad/")
        for name, expected in gradients.items():
            (found,) = torch.autograd.grad(loss, leaves[name], retain_graph=True, allow_unused=True)
            found = torch.zeros_like(leaves[name]) if found is None else found
            bound = GOLDEN_FLOAT32_RATIO * recorded["f32_vs_f64_grad_max_rel_to_max"] * expected.abs().max()
            assert (found - expected).abs().max() <= bound, name


@pytest.mark.parametrize(("family", "case"), [("A_library", "A1_lowr_nobias_pmem1"), ("B_nano", "B1_nobias_pmem1")])
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
    with pytest.raises(TesseraError, match="lets the future leak"):
        from_reference("sparse-kernel-regression", published, description["constructor"])


def test_what_cannot_be_rebuilt_is_refused_with_the_reason():
    _, description, published = golden("A_library", "A1_lowr_nobias_pmem1")
    arguments = description["constructor"]
    for change, message in (
        ({"v_shift": 2}, "v_shift must be 1"),
        ({"k_kernel_size": 3}, "k_kernel_size must be 1"),
        ({"v_kernel_size": 3}, "v_fe_type, v_kernel_size"),
        ({"n_heads": 4}, "unknown argument 'n_heads'. Did you mean 'n_head'"),
        ({"n_layer": 3}, "'blocks.2.ln1.weight' is missing"),
        ({"n_layer": 1}, "unexpected tensors: blocks.1"),
        ({"n_embd": 64}, "must have shape"),
    ):
        with pytest.raises(TesseraError, match=message):
            from_reference("memory-mosaics", published, {**arguments, **change})
    with pytest.raises(TesseraError, match="unknown reference source 'memory-mosaic'. Did you mean 'memory-mosaics'"):
        from_reference("memory-mosaic", published, arguments)
    with pytest.raises(TesseraError, match="method must be softmax or"):
        from_reference("sparse-kernel-regression", published, {**arguments, "method": "quartic"})


def test_wrappers_and_constant_buffers_of_saved_modules_are_no_obstacle():
    tensors, description, published = golden("B_nano", "B1_nobias_pmem1")
    wrapped = {f"_orig_mod.{name}": tensor for name, tensor in published.items()}
    wrapped["_orig_mod.mosaic.h.0.attn.bias"] = torch.ones(1, 1, 48, 48)
    wrapped["_orig_mod.mosaic.h.0.attn.k_featurizer.leaky_avg.coef"] = torch.zeros(48, 48)
    model = from_reference("nano-mosaics", wrapped, description["constructor"]).double()
    logits = model(tensors["in/T17/idx"]).logits
    torch.testing.assert_close(logits, tensors["f64/T17/logits"], rtol=0, atol=GOLDEN_VALUE)
