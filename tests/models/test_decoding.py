"""Decoding by compiled layers says what plain decoding says. These tests run the programs' Python."""

import copy
from functools import partial

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from transformers.pytorch_utils import Conv1D

import tessera
from tessera.models.adjusting import adjust_model
from tessera.models.decoding import blocks, programs, stack_steps, weights
from tessera.models.decoding.weights import StoredWeights, _packed, _packed_product, _unpacked
from tests.covering import some
from tests.models import contract
from tests.models.armt.bases import BASES, WRAPS, tiny
from tests.refusals import refused

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 2}

v1 = partial(contract.v1, **SIZES, num_persistent_slots=80, initializer_range=0.3)
v2 = partial(contract.v2, **SIZES, intermediate_size=140, short_term_span=8, initializer_range=0.2)
gpt2 = partial(BASES["gpt2"], vocab_size=50, n_positions=256, initializer_range=0.2)


def armt():
    model = WRAPS["armt"](gpt2(), segment_size=11, num_memory_tokens=3)
    torch.nn.init.normal_(model.memory_tokens.tokens)
    return model


MODELS = {
    "v1": v1,
    "v1 entmax": partial(v1, kernel="entmax", persistent_kernel="biweight", num_persistent_banks=2, bias=True),
    "v2": v2,
    "v2 without long-term memory": partial(v2, long_term_memory=False),
    "linear transformer": partial(contract.linear, "linear_transformer", **SIZES),
    "gpt2": gpt2,
    "neox": partial(BASES["gpt_neox"], vocab_size=50),
    "llama": partial(BASES["llama"], vocab_size=50, intermediate_size=140, initializer_range=0.2),
    "armt": armt,
}


@pytest.fixture
def uncompiled(monkeypatch):
    """The programs' functions themselves in place of machine code, and how often one ran."""
    runs = []

    def load(what, settings, function, arguments, sizes):
        spec = tree_flatten(arguments)[1]

        def run(tensors):
            runs.append(what)
            return tree_leaves(programs.Program(function)(*tree_unflatten(tensors, spec)))

        return run

    monkeypatch.setattr(weights, "LEAST", 500)  # the matrices of these small models count
    monkeypatch.setattr(programs, "STEP", 4)
    monkeypatch.setattr(stack_steps, "STEP", 4)
    monkeypatch.setattr(stack_steps, "load", load)
    monkeypatch.setattr(blocks, "load", load)
    return runs


def plain(model):
    """Undo `compile_decoding`."""
    for module in model.modules():
        module.__dict__.pop("forward", None)
    return model


def decoded(model, ids, tokens, **options):
    options |= {"do_sample": False, "pad_token_id": 0, "output_logits": True, "return_dict_in_generate": True}
    result = model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, **options)
    return result.sequences, torch.stack(result.logits)


@some(
    ("name", "form"),
    [*((name, "int8") for name in MODELS), ("v1", "bf16"), ("v2", "float32")],
    by_default=[
        *((name, "int8") for name in ("v1", "v1 entmax", "linear transformer", "llama", "armt")),
        ("v1", "bf16"), ("v2", "float32"),
    ],
)  # fmt: skip
def test_tokens_are_those_of_plain_decoding(uncompiled, name, form):
    model = MODELS[name]().eval()
    before = [weight.clone() for weight in model.parameters()]
    ids = torch.randint(1, 50, (1, 7))
    tokens, logits = decoded(tessera.compile_decoding(model, form), ids, 14)
    assert len(uncompiled) >= 2 * 11
    is_rounded = any(not torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert is_rounded == (form != "float32")
    expected_tokens, expected = decoded(plain(model), ids, 14)
    assert torch.equal(tokens, expected_tokens)
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)


@some("name", ["v1", "v2", "gpt2", "armt"], by_default=["v2"])
def test_several_rows_beams_and_padding(uncompiled, name):
    model, ids = MODELS[name]().eval(), torch.randint(1, 50, (3, 7))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    calls = [{}, {"num_beams": 3}, {"attention_mask": mask}]
    tessera.compile_decoding(model, "int8")
    rounded = [decoded(model, ids, 9, **options)[0] for options in calls]
    assert uncompiled
    assert all(torch.equal(decoded(plain(model), ids, 9, **o)[0], r) for o, r in zip(calls, rounded, strict=True))


@some("name", ["v1", "v2"], by_default=["v2"])
@torch.no_grad()
def test_a_state_stays_a_value(uncompiled, name):
    """One goes on from it twice, by programs and without them, and by several tokens at once."""
    model, ids = MODELS[name]().eval(), torch.randint(0, 50, (1, 40))
    forward = model.forward
    compiled = tessera.compile_decoding(model).forward
    expected = forward(ids).logits[0]
    state = forward(ids[:, :5], use_cache=True).past_key_values
    states = []
    for step in range(5, 30):
        call = compiled if step % 7 else forward
        output = call(input_ids=ids[:, step : step + 1], past_key_values=state, use_cache=True)
        torch.testing.assert_close(output.logits[0, 0], expected[step], rtol=0, atol=2e-5)
        states.append(state)
        state = output.past_key_values
    for step, before in list(enumerate(states, 5))[::3]:
        other = compiled(input_ids=ids[:, :1], past_key_values=before, use_cache=True)
        assert not torch.equal(other.logits[0, 0], expected[step])
        again = compiled(input_ids=ids[:, step : step + 1], past_key_values=before, use_cache=True)
        torch.testing.assert_close(again.logits[0, 0], expected[step], rtol=0, atol=2e-5)
    rest = compiled(input_ids=ids[:, 30:], past_key_values=state, use_cache=True).logits[0]
    torch.testing.assert_close(rest, expected[30:], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", ["v1", "v2", "linear transformer"])
@torch.no_grad()
def test_a_program_is_given_no_state_that_it_was_not_made_for(uncompiled, monkeypatch, name):
    """Machine code reads whatever lies there: numbers of another format, and rows that do not exist."""
    model, ids, made = MODELS[name]().eval(), torch.randint(1, 50, (3, 6)), []
    load = stack_steps.load
    monkeypatch.setattr(stack_steps, "load", lambda *arguments: made.append(arguments) or load(*arguments))
    tessera.compile_decoding(model)
    state = model(ids, use_cache=True).past_key_values
    expected = model(input_ids=ids[:, :1], past_key_values=state).logits
    assert len(made) == 2
    one_row = state.select_batch(torch.tensor([0]))
    message = "past_key_values must have 3 rows, as the text; got 1"
    refused(message, model, input_ids=ids[:, :1], past_key_values=one_row)
    taken = model(input_ids=ids[:, :1], past_key_values=state.to(torch.float64)).logits
    torch.testing.assert_close(taken, expected)
    assert len(made) in (2, 4), "cast to the numbers of its own programs, or given others"


@pytest.mark.parametrize(
    ("setting", "value", "fields"),
    [
        ("output_hidden_states", True, {"logits", "past_key_values", "hidden_states"}),
        ("output_attentions", True, {"logits", "past_key_values", "attentions"}),
        ("use_cache", False, {"logits"}),
        ("return_dict", False, None),
    ],
)
@torch.no_grad()
def test_what_the_configuration_asks_for_is_returned(uncompiled, setting, value, fields):
    model, ids = tessera.compile_decoding(v1().eval()), torch.randint(1, 50, (1, 7))
    state = model(ids[:, :6], use_cache=True).past_key_values
    setattr(model.config, setting, value)
    output = model(input_ids=ids[:, 6:], past_key_values=state)
    assert not uncompiled
    assert isinstance(output, tuple) if fields is None else set(output.keys()) == fields


@pytest.mark.parametrize("name", ["v1", "v2"])
@torch.no_grad()
def test_a_setting_that_was_adjusted_has_a_program_of_its_own(uncompiled, monkeypatch, name):
    """Machine code has it as a constant, in this process and in the file that others find."""
    model, ids, made = MODELS[name]().eval(), torch.randint(1, 50, (1, 6)), []
    load = stack_steps.load
    monkeypatch.setattr(stack_steps, "load", lambda *arguments: made.append(arguments[1]) or load(*arguments))
    tessera.compile_decoding(model)
    for scale in (1.0, 3.0, 1.0):
        adjust_model(model, {"inverse_bandwidth_scale": scale})
        model(input_ids=ids[:, :1], past_key_values=model(ids, use_cache=True).past_key_values)
    (of_one, of_three) = set(made)
    assert of_one != of_three
    assert len(made) == 4, "layers and head for either scale, made once"


@torch.no_grad()
def test_long_term_memories_that_are_switched_off(uncompiled):
    """A program recalls from them no longer, also behind a state that holds them; and as in plain decoding none is
    entered that has missed a token."""
    model, ids = MODELS["v2"]().eval(), torch.randint(1, 50, (1, 9))
    state = model(ids[:, :7], use_cache=True).past_key_values
    plain_model = copy.deepcopy(model)
    plain_model.disable_long_term_memory()
    expected = plain_model(ids[:, 7:8], past_key_values=state)
    tessera.compile_decoding(model)
    model(ids[:, 7:8], past_key_values=state)
    model.disable_long_term_memory()
    before = len(uncompiled)
    output = model(input_ids=ids[:, 7:8], past_key_values=state)
    assert len(uncompiled) > before
    torch.testing.assert_close(output.logits, expected.logits)
    model.enable_long_term_memory()
    with pytest.raises(tessera.TesseraError, match="must hold the long-term memories that are enabled now"):
        model(input_ids=ids[:, 8:], past_key_values=output.past_key_values)


@torch.no_grad()
def test_blocks_of_a_base_are_given_no_cache_of_other_rows(uncompiled):
    model, ids = tessera.compile_decoding(gpt2().eval()), torch.randint(1, 50, (3, 6))
    one, many = (model(rows, use_cache=True).past_key_values for rows in (ids[:1], ids))
    model(ids[:, :1], past_key_values=many)
    before = len(uncompiled)
    with pytest.raises(RuntimeError):
        model(ids[:, :1], past_key_values=one)
    assert len(uncompiled) == before


@some("name", ["v1", "v2", "gpt2", "llama", "armt"], by_default=["v1", "armt"])
def test_other_weights_and_other_modules_are_noticed(uncompiled, name):
    """What a program was made of is compared; a hook is asked; a copy is a model of its own."""
    model, ids = tessera.compile_decoding(MODELS[name]().eval()), torch.randint(1, 50, (1, 7))
    tokens, logits = decoded(model, ids, 9)
    other = copy.deepcopy(model)
    before = len(uncompiled)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    expected = decoded(other, ids, 9)[1]
    assert len(uncompiled) == before
    assert not torch.allclose(expected, logits, atol=1e-2)
    inner = next(child for child in model.modules() if type(child) in (torch.nn.Linear, Conv1D))
    calls = []
    hook = inner.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(decoded(model, ids, 9)[0], tokens)
    assert len(calls) >= 9
    hook.remove()
    assert torch.equal(decoded(model, ids, 9)[0], tokens)
    model.load_state_dict(other.state_dict())
    refused("Call compile_decoding again", decoded, model, ids, 9)
    torch.testing.assert_close(decoded(tessera.compile_decoding(model), ids, 9)[1], expected, rtol=0, atol=2e-5)


@pytest.mark.filterwarnings("ignore")  # of peft
def test_adapters_put_on_later_are_noticed(uncompiled):
    peft = pytest.importorskip("peft")
    model, ids = tessera.compile_decoding(v1().eval()), torch.randint(1, 50, (1, 7))
    decoded(model, ids, 9)
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False)).eval()
    refused("Call compile_decoding again", decoded, adapted, ids, 9)
    tessera.compile_decoding(model)
    logits = decoded(adapted, ids, 9)[1]
    assert uncompiled
    torch.testing.assert_close(decoded(plain(adapted), ids, 9)[1], logits, rtol=0, atol=2e-5)


@pytest.mark.filterwarnings("ignore")  # of peft
@pytest.mark.parametrize("name", ["v2", "llama"])
def test_adapters_that_rest_or_are_merged_are_not_those_of_the_program(uncompiled, name):
    """Machine code has those that acted when it was made; without it, the adapter's own switches are asked."""
    peft = pytest.importorskip("peft")
    model, ids = MODELS[name]().eval(), torch.randint(1, 50, (1, 7))
    names = ["key_extractor.projection"] if name == "v2" else ["q_proj", "v_proj"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=names, init_lora_weights=False)).eval()
    adapted.add_adapter("other", peft.LoraConfig(target_modules=names, init_lora_weights=False))
    tessera.compile_decoding(model)
    runs = []
    for switch in (lambda: None, lambda: adapted.set_adapter("other"), adapted.base_model.disable_adapter_layers,
                   adapted.base_model.enable_adapter_layers, lambda: adapted.set_adapter("default"),
                   adapted.merge_adapter, adapted.unmerge_adapter):  # fmt: skip
        switch()
        adapted.eval()
        uncompiled.clear()
        decoded(adapted, ids, 4)
        runs.append(bool(uncompiled))
    assert runs == [True, False, False, False, True, False, True]


@pytest.mark.parametrize("name", ["v2", "llama"])
@torch.no_grad()
def test_what_changes_between_two_steps_is_noticed(uncompiled, name):
    """Numbers behind the same parameters, of another type or not, a hook and a module, without a prompt between."""

    def compiled():
        model = tessera.compile_decoding(MODELS[name]().eval())
        cache = model(input_ids=ids[:, :5], use_cache=True).past_key_values
        cache = model(input_ids=ids[:, 5:6], past_key_values=cache).past_key_values
        uncompiled.clear()
        return model, lambda: model(input_ids=ids[:, 6:], past_key_values=copy.deepcopy(cache)).logits

    ids = torch.randint(1, 50, (1, 7))
    model, step = compiled()
    inner, calls = next(child for child in model.modules() if type(child) is torch.nn.Linear), []
    hook = inner.register_forward_hook(lambda *_: calls.append(1))
    step()
    assert calls
    assert len(uncompiled) == (0 if name == "v2" else 1)  # the other block's
    hook.remove()
    uncompiled.clear()
    model.double()
    step()
    assert not uncompiled
    model.bfloat16().float()
    refused("Call compile_decoding again", step)
    model, step = compiled()
    for weight in model.parameters():
        weight.data = 1.1 * weight.data
    refused("Call compile_decoding again", step)
    model, step = compiled()
    model(input_ids=ids, use_cache=True)
    step()
    for weight in model.parameters():
        weight.data.mul_(1.1)
    model(input_ids=ids, use_cache=True)  # where it is noticed
    refused("Call compile_decoding again", step)
    if name == "v2":
        model, step = compiled()
        model.lm_head = torch.nn.Linear(32, 60, bias=False)
        refused("Call compile_decoding again", step)


def test_what_is_trained_is_not_compiled(uncompiled):
    model = tessera.compile_decoding(v1())
    ids = torch.randint(0, 50, (1, 9))
    model(ids, labels=ids).loss.backward()
    state = model.eval()(ids, use_cache=True).past_key_values
    model(ids[:, :1], past_key_values=state).logits.sum().backward()
    assert not uncompiled


def test_eight_bits_in_four_places():
    rows = torch.randint(-127, 128, (2, 43, 19), dtype=torch.int32)
    scale, x = torch.rand(2, 43), torch.randn(2, 19)
    packed = _packed(rows)
    assert packed.numel() == 2 * 64 * 19 // 4
    assert torch.equal(_unpacked(packed, torch.ones(2, 43), torch.float32), rows.float())
    expected = (rows.double() @ x.double()[..., None])[..., 0] * scale
    torch.testing.assert_close(_packed_product(x, packed, scale).double(), expected, rtol=1e-5, atol=1e-2)
    linear = torch.nn.Linear(70, 64)
    exact = linear.weight.detach().clone()
    StoredWeights(linear, "int8").of(linear)
    half = exact.abs().amax(1, keepdim=True) / 254
    assert ((linear.weight - exact).abs() <= half * 1.001).all()
    assert len(linear.weight[0].unique()) < 70


def test_refusals():
    refused("weights must be one of float32, bf16, int8; got int4", tessera.compile_decoding, v1(), "int4")
    message = "the model must be on a CPU, in float32; got cpu, torch.bfloat16"
    refused(message, tessera.compile_decoding, v1().bfloat16())
    refused("the model must be .*gpt2.*; got bloom", tessera.compile_decoding, tiny("bloom"))


@pytest.mark.parametrize("name", ["llama", "armt"])
def test_programs_attend_by_softmax_alone(uncompiled, name):
    """They are made of a block whose attention is transformers' own, whatever the model's is."""
    model, ids = MODELS[name]().eval(), torch.randint(1, 50, (1, 7))
    decoded(tessera.compile_decoding(model), ids, 3)
    count = len(uncompiled)
    assert count > 0
    base = getattr(model, "base", model)
    base.set_attn_implementation("tessera_biweight")
    decoded(model, ids, 3)
    assert len(uncompiled) == count, "a program ran"
    refused(
        "attn_implementation must be one of eager, .*; got tessera_biweight", tessera.compile_decoding, plain(model)
    )
