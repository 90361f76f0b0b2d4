"""A state that a model in another dtype has made goes on, near what the model itself would say."""

import copy
from contextlib import nullcontext

import torch
from torch.utils._pytree import tree_leaves
from transformers import StaticCache

from tessera.armt import wrap_rmt
from tessera.models.carried_state import read_on
from tessera.models.forking import apart, fork
from tessera.models.mamba import use_selective_scan
from tests.covering import each_value
from tests.models.armt.bases import BASES, make, tiny
from tests.models.contract import CASES, tokens
from tests.refusals import refused_in_a_line

BUILD = {
    "v1": CASES["v1 published"].build,
    "v2": CASES["v2 gaussian"].build,
    "linear attention": CASES["linear attention gla"].build,
    "lstm": CASES["lstm"].build,
    "transformer": BASES["gpt2"],
    "mamba": lambda: use_selective_scan(tiny("mamba")),
    "armt around gpt2": make,
    "rmt around v2": lambda: wrap_rmt(CASES["v2 gaussian"].build(), segment_size=8, num_memory_tokens=2),
    "prmt around gpt2": lambda: make("prmt"),
}


@each_value(name=list(BUILD), dtype=[torch.float64, torch.bfloat16], steps=[1, 5], grad=[False, True])
def test_a_state_in_another_dtype_goes_on(name, dtype, steps, grad):
    model = BUILD[name]().float().eval()
    text, more = tokens(2, 13) % 60, tokens(2, steps, seed=1) % 60
    with torch.set_grad_enabled(grad):
        _, state = read_on(copy.deepcopy(model).to(dtype), text, None)
        expected, _ = read_on(model, more, read_on(model, text, None)[1])
        for _ in range(2):  # what was converted stays what it was
            logits, after = read_on(model, more, state)
            assert logits.dtype == torch.float32
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 if dtype == torch.float64 else 0.05)
        read_on(model, more[:, :1], after)


@each_value(name=list(BUILD), held=[1, 2], rows=[3], steps=[1, 5])
@torch.no_grad()
def test_a_state_of_another_number_of_rows_is_refused(name, held, rows, steps):
    model = BUILD[name]().float().eval()
    (_, state), more = read_on(model, tokens(held, 9) % 60, None), tokens(rows, steps) % 60
    message = f"must have {rows} rows, as the text; got {held}"
    refused_in_a_line(message, read_on, model, more, state)
    if name != "transformer":  # transformers has a raw error
        argument = "cache_params" if name == "mamba" else "past_key_values"
        refused_in_a_line(f"{argument} {message}", model, more, **{argument: state}, use_cache=True)


@torch.no_grad()
def test_rows_of_a_static_cache_are_known_although_it_counts_its_tokens_in_a_tensor():
    model, text = BASES["llama"]().float().eval(), tokens(2, 13) % 60
    _, state = read_on(model, text[:, :9], StaticCache(model.config, 32))
    refused_in_a_line("must have 3 rows, as the text; got 2", read_on, model, tokens(3, 1) % 60, state)
    expected = read_on(model, text, None)[0][:, 9:]
    torch.testing.assert_close(read_on(model, text[:, 9:], state)[0], expected)


@torch.no_grad()
def test_counts_and_documents_keep_their_type_beside_a_tensor():
    """As `Tensor.to` takes another tensor, for its type and device."""
    model, text = BUILD["v2"](), tokens(2, 13)
    documents = torch.arange(13).expand(2, -1) // 6
    state = model(text, document_ids=documents, use_cache=True).past_key_values
    for like in ((torch.ones(()),), (torch.float32,), ("cpu", torch.float32)):
        kinds = {leaf.dtype for leaf in tree_leaves(state.to(*like)) if isinstance(leaf, torch.Tensor)}
        assert kinds == {torch.float32, torch.int64}


@each_value(name=list(BUILD), is_read_in_bfloat16=[True, False])
@torch.no_grad()
def test_a_state_goes_on_inside_and_outside_of_autocast(name, is_read_in_bfloat16):
    model = BUILD[name]().float().eval()
    surroundings = [nullcontext(), torch.autocast("cpu", torch.bfloat16)]
    text, more = tokens(2, 13) % 60, tokens(2, 3, seed=1) % 60
    expected, _ = read_on(model, torch.cat([text, more[:, :2]], 1), None)
    with surroundings[is_read_in_bfloat16]:
        _, state = read_on(model, text, None)
    with surroundings[not is_read_in_bfloat16]:
        _, state = read_on(model, more[:, :1], state)
    with surroundings[is_read_in_bfloat16]:
        logits, _ = read_on(model, more[:, 1:2], state)
    torch.testing.assert_close(logits.float()[:, -1], expected[:, -1], rtol=0, atol=0.05)


@each_value(name=list(BUILD))
def test_a_copy_of_a_state_in_training_stays_in_its_graph(name):
    """PyTorch alone refuses to copy such tensors; a cache of transformers is copied by `apart`."""
    model = BUILD[name]().eval()
    text, more = tokens(2, 13) % 60, tokens(2, 3, seed=1) % 60
    gradients = []
    for copied in (lambda state: state, copy.deepcopy if name not in ("transformer", "mamba") else apart):
        model.zero_grad()
        _, state = read_on(model, text, None)
        logits, _ = read_on(model, more, copied(state))
        logits.sum().backward()
        gradients.append(model.get_input_embeddings().weight.grad.clone())
    assert torch.equal(*gradients)


@each_value(name=["transformer", "armt around gpt2"])
def test_a_copy_of_a_cache_in_training_is_apart_from_it(name):
    model = BUILD[name]().eval()
    text, more = tokens(2, 13) % 60, tokens(2, 3, seed=1) % 60
    _, state = read_on(model, text, None)
    copies = [apart(state), apart(state), fork(state, torch.tensor([0, 1]))]
    answers = [read_on(model, more, each)[0] for each in (*copies, state)]
    assert all(torch.equal(answer, answers[-1]) for answer in answers)
