"""A state of another model is refused in a line; one of this model goes on, however it was handled."""

import copy
import json

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from tessera.base.errors import TesseraError
from tessera.models import fingerprint
from tests.models.contract import CASES, linear, tokens, v1, v2
from tests.refusals import refused

BUILD = {"v1": v1, "v2": v2, "linear attention": lambda: linear("gla")}


@pytest.fixture(params=BUILD)
def build(request):
    return lambda: BUILD[request.param]().double().eval()


def read(model, **keywords):
    with torch.no_grad():
        return model(tokens(2, 9), use_cache=True, **keywords).past_key_values


def go_on(model, state):
    with torch.no_grad():
        return model(tokens(2, 3, seed=1), past_key_values=state).logits


def with_other_weights(model):
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_other_weights_are_refused(build):
    model = build()
    state = read(model)
    refused("past_key_values must be of this model; got one of other weights", go_on, with_other_weights(model), state)
    with torch.no_grad():
        model.model.layers[-1].get_parameter(next(iter(model.model.layers[-1].state_dict()))).mul_(1.5)
    with pytest.raises(TesseraError, match="other weights. Read the text again"):  # those of the same object, changed
        go_on(model, state)


def put_in_place(model, others):
    for module, other in zip(model.modules(), others.modules()):
        for name in module._parameters:
            setattr(module, name, getattr(other, name))


def exchange_leaves(model, others):
    for module, other in zip(list(model.modules()), list(others.modules())):
        for name, child in other.named_children():
            if not list(child.children()):
                setattr(module, name, child)


WRITTEN = {  # past what PyTorch counts, but for the first
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
@pytest.mark.parametrize("name", [*BUILD, "lstm", "armt around gpt2"])
def test_weights_that_are_written_in_any_way_are_others(name, way):
    model = BUILD[name]().double().eval() if name in BUILD else CASES[name].build()
    state = read(model)
    go_on(model, state)
    WRITTEN[way](model, with_other_weights(model))
    refused("past_key_values must be of this model; got one of other weights", go_on, model, state)
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


def test_a_state_of_this_model_goes_on(build, tmp_path):
    model = build()
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


@pytest.mark.parametrize("name", [*BUILD, "lstm"])
def test_a_state_of_other_rows_is_refused(name):
    model = BUILD[name]().double().eval() if name in BUILD else CASES[name].build()
    state = read(model)
    for rows, ids in ((2, tokens(3, 1)), (1, tokens(2, 1))):
        other = state if rows == 2 else state.select_batch(torch.tensor([0]))
        message = f"past_key_values must have {len(ids)} rows, as the text; got {rows}"
        with torch.no_grad(), pytest.raises(TesseraError, match=message):
            model(ids, past_key_values=other)


def test_training_may_change_weights_between_two_parts(build):
    model = build().train()
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


def test_the_state_of_an_lstm_too():
    model = CASES["lstm"].build()
    state = read(model)
    go_on(copy.deepcopy(model), state)
    refused("past_key_values must be of this model; got one of other weights", go_on, with_other_weights(model), state)
    refused("got list", go_on, model, [state])
    rounded = copy.deepcopy(model).float()
    torch.testing.assert_close(go_on(rounded, state), go_on(rounded, state.to(torch.float32)))


def test_generate_with_a_state_of_the_whole_prompt_is_refused(build):
    """transformers would read the prompt a second time behind it."""
    model, ids = build(), tokens(2, 9)
    with pytest.raises(TesseraError, match="past_key_values must leave a token of the prompt to read; got 9 of 9"):
        model.generate(ids, past_key_values=read(model), max_new_tokens=2)
