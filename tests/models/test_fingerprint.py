"""A state of another model is refused in a line; one of this model goes on, however it was handled."""

import copy
import json

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from tessera.armt import wrap
from tessera.models import fingerprint
from tests.models.armt.bases import BASES
from tests.models.contract import CASES, tokens, v1, v2
from tests.refusals import refused

STACKS = ["v1 published", "v2 gaussian", "linear attention gla"]


@pytest.fixture(params=STACKS)
def model(request):
    return CASES[request.param].build()


@torch.no_grad()
def read(model):
    return model(tokens(2, 9), use_cache=True).past_key_values


@torch.no_grad()
def go_on(model, state):
    return model(tokens(2, 3, seed=1), past_key_values=state).logits


@torch.no_grad()
def with_other_weights(model):
    model = copy.deepcopy(model)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def put_in_place(model, others):
    for module, other in zip(model.modules(), others.modules()):
        for name in module._parameters:
            setattr(module, name, getattr(other, name))


def exchange_leaves(model, others):
    for module, other in zip(list(model.modules()), list(others.modules())):
        for name, child in other.named_children():
            if not list(child.children()):
                setattr(module, name, child)


WRITTEN = {  # past what PyTorch counts, but for the first two
    "one in place": lambda model, others: list(model.parameters())[1].mul_(1.5),
    "load_state_dict": lambda model, others: model.load_state_dict(others.state_dict()),
    "assigned": lambda model, others: model.load_state_dict(others.state_dict(), assign=True),
    "put in place": put_in_place,
    "modules": exchange_leaves,
    "into data": lambda model, others: [p.data.copy_(q.data) for p, q in zip(model.parameters(), others.parameters())],
    "data": lambda model, others: [setattr(p, "data", q.data) for p, q in zip(model.parameters(), others.parameters())],
    "in NumPy": lambda model, others: [
        np.copyto(p.detach().numpy(), q.detach().numpy()) for p, q in zip(model.parameters(), others.parameters())
    ],
}


@pytest.mark.parametrize("way", WRITTEN)
@pytest.mark.parametrize("name", [*STACKS, "lstm", "armt around gpt2"])
@torch.no_grad()
def test_weights_that_are_written_in_any_way_are_others(name, way):
    model = CASES[name].build()
    others, state, message = with_other_weights(model), read(model), "past_key_values must be of this model; got one of"
    go_on(model, state)
    refused(f"{message} other weights. Read the text again", go_on, others, state)
    WRITTEN[way](model, others)
    refused(f"{message} other weights", go_on, model, state)
    again = read(model)
    go_on(copy.deepcopy(model), again)  # is a state of the weights that are there now


def test_one_weight_that_is_written_past_pytorch_is_seen_in_its_turn():
    model = v1().double().eval()
    state = read(model)
    model.model.layers[0].get_parameter(next(iter(model.model.layers[0].state_dict()))).data.add_(1)
    refused("other weights", lambda: [go_on(model, state) for _ in model.parameters()])


def test_one_weight_that_is_written_past_pytorch_is_seen_where_a_text_begins():
    model = v1(num_layers=4).double().eval()
    read(model)
    for weight in list(model.parameters())[:3]:
        weight.data.add_(1)
        go_on(copy.deepcopy(model), read(model))


@pytest.mark.parametrize("make", [v1, v2])
@pytest.mark.parametrize("changes", [{"kernel": "biweight"}, {"num_layers": 1}, {"num_layers": 3}])
def test_another_configuration_is_refused(make, changes):
    state = read(make())
    refused("got one of another configuration", go_on, make(**changes), state)


def test_a_memory_that_another_attention_made_is_refused():
    model = wrap(BASES["llama"]().eval(), segment_size=8, num_memory_tokens=2, memory_dim=4)
    memory = model(tokens(1, 20)).memory_state
    model(tokens(1, 20), memory_state=memory)
    model.set_attn_implementation("tessera_biweight")
    refused("got one of another configuration", model, tokens(1, 20), memory_state=memory)


def test_a_state_of_this_model_goes_on(model, tmp_path):
    state, expected = read(model), go_on(model, read(model))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    handled = [state, state.map(torch.clone), state.detach(), state.to(torch.float64), copy.deepcopy(state)]
    handled += [state.select_batch(torch.tensor([0, 1])), tree_map(lambda leaf: leaf, state)]
    for other in handled:
        for reader in (model, loaded, copy.deepcopy(model)):
            torch.testing.assert_close(go_on(reader, other), expected)
    # The same weights in fewer bits.
    half = copy.deepcopy(model).to(torch.bfloat16)
    assert go_on(half, state.to(torch.bfloat16)).isfinite().all()
    # The model without its head.
    with torch.no_grad():
        hidden = loaded.model(tokens(2, 3, seed=1), past_key_values=state).last_hidden_state
    torch.testing.assert_close(loaded.lm_head(hidden), expected)


def test_training_may_change_weights_between_two_parts(model):
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    state = None
    for part in tokens(2, 30).split(10, 1):
        output = model(part, labels=part, past_key_values=state, use_cache=True)
        output.loss.backward()
        optimizer.step()
        state = output.past_key_values.detach()
    assert state.length == 30


@pytest.mark.parametrize("name", ["v1 published", "v2 gaussian"])
def test_a_beam_search_from_a_state(name):
    model, ids = CASES[name].build(), tokens(1, 9)
    state = model(ids[:, :8], use_cache=True).past_key_values
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 4, "num_beams": 3, "do_sample": False}
    many = state.select_batch(torch.zeros(3, dtype=torch.long))
    assert torch.equal(model.generate(ids, past_key_values=many, **options), model.generate(ids, **options))
    refused("other weights", with_other_weights(model).generate, ids, past_key_values=many, **options)


def test_a_fingerprint_is_the_same_in_every_process():
    """Sets and classes are written in another order, or at another place, by the next process."""
    model = CASES["armt around gpt2"].build()
    text = json.dumps(fingerprint._meaning(model.config), sort_keys=True)
    assert "adjustable" not in text
    assert "segment_size" in text


def test_generate_with_a_state_of_the_whole_prompt_is_refused(model):
    """transformers would read the prompt a second time behind it."""
    ids, message = tokens(2, 9), "past_key_values must leave a token of the prompt to read; got 9 of 9"
    refused(message, model.generate, ids, past_key_values=read(model), max_new_tokens=2)
