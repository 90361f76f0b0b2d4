"""Hidden states and recall weights that `forward` returns beside the logits."""

import pytest
import torch

from tessera.inspection import recall_weights
from tessera.memories.pair_memory import PairMemory
from tessera.models.armt import ARMTForCausalLM
from tests.models.contract import linear
from tests.models.three_models import MAKE, STACKS, make, tokens
from tests.refusals import refused
from tests.tolerances import close


@pytest.fixture(params=MAKE)
def model(request):
    return make(request.param)


def test_hidden_states_of_every_layer(model):
    ids = tokens(2, 11)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    output = model(ids, mask, output_hidden_states=True)
    assert len(output.hidden_states) == 3
    assert all(hidden.shape == (2, 11, 16) for hidden in output.hidden_states)
    embeddings = model.get_input_embeddings()(ids)
    if not isinstance(model, ARMTForCausalLM):  # which adds positions
        close(output.hidden_states[0], embeddings)
    close(model.get_output_embeddings()(output.hidden_states[-1])[:, :9], output.logits[:, :9])
    padded = model(ids, mask.flip(1), output_hidden_states=True)
    close(model.get_output_embeddings()(padded.hidden_states[-1])[:, 2:], padded.logits[:, 2:])
    assert (output.hidden_states[1] - output.hidden_states[0]).abs().max() > 1e-3
    assert model(ids).hidden_states is None
    model.config.output_hidden_states = True
    assert model(ids).hidden_states is not None


@pytest.mark.parametrize("name", STACKS)
def test_attentions_are_the_recall_weights_of_every_memory(name):
    model, ids = make(name), tokens(2, 9)
    output = model(ids, output_attentions=True)
    assert torch.equal(output.logits, model(ids).logits)
    assert model(ids).attentions is None
    assert len(output.attentions) == 4
    for row in range(2):
        recalls = recall_weights(model, ids[row : row + 1], range(9))
        for weights, recall in zip(output.attentions, recalls, strict=True):
            close(weights[row], recall.weights)
    assert {weights.shape for weights in output.attentions} == {(2, 2, 9, 8)}  # 8 complete pairs; v1 has 8 slots
    sums = output.attentions[0].sum(-1)
    close(sums[:, :, 1:], torch.ones_like(sums[:, :, 1:]))
    assert not sums[:, :, 0].any()  # the first token finds an empty memory
    first = model(ids[:, :6], use_cache=True)
    rest = model(ids[:, 6:], past_key_values=first.past_key_values, output_attentions=True)
    close(rest.attentions[0], output.attentions[0][:, :, 6:])
    made = model.generate(ids, max_new_tokens=2, do_sample=False, output_attentions=True, return_dict_in_generate=True)
    assert [len(step) for step in made.attentions] == [4, 4]


@pytest.mark.parametrize("name", STACKS)
def test_attentions_have_gradients_and_no_dropout(name):
    model = make(name).train()
    for module in model.modules():
        module.weight_dropout = 0.5
    output = model(tokens(), output_attentions=True, labels=tokens())
    sums = output.attentions[0][:, :, 1:].sum(-1)
    close(sums, torch.ones_like(sums))
    output.attentions[0].square().sum().backward()
    keys = next(module for module in model.modules() if isinstance(module, PairMemory)).key_extractor.projection
    assert keys.weight.grad.abs().max() > 0
    model.model.layers[0].gradient_checkpointing = True
    refused("output_attentions must be False with gradient checkpointing", model, tokens(), output_attentions=True)


@pytest.mark.parametrize("name", STACKS)
def test_attentions_of_padded_rows_and_the_state_behind_them(name):
    model, ids, mask = make(name), tokens(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 5:] = 0
    output = model(ids, mask, output_attentions=True, use_cache=True)
    close(output.attentions[0][1:, :, :5, :4], model(ids[1:, :5], output_attentions=True).attentions[0])
    longer = torch.cat([mask, torch.ones(2, 2, dtype=torch.long)], 1)
    more = model(ids[:, :2], longer, past_key_values=output.past_key_values).logits
    close(more[1], model(torch.cat([ids[1:, :5], ids[1:, :2]], 1)).logits[0, 5:])
    mask[1, 8] = 1
    message = "output_attentions must be False where padding lies between tokens"
    refused(message, model, ids, mask, output_attentions=True)


def test_attentions_are_refused_where_there_are_none():
    message = "output_attentions must be False; got True. Its memories are matrices"
    refused(message, linear("gla", vocab_size=270), tokens(), output_attentions=True)
    message = "output_attentions must be False where GPT2LMHeadModel gives none"
    refused(message, make("armt"), tokens(), output_attentions=True)


@pytest.mark.parametrize("name", STACKS)
def test_gradients_reach_attentions_and_hidden_states(name):
    """By the chain rule: moving a recall weight by little moves the loss by its gradient."""
    model, ids = make(name), tokens()
    output = model(ids, labels=ids, output_attentions=True, output_hidden_states=True)
    assert torch.equal(output.logits, model(ids).logits)
    for tensor in (*output.attentions, *output.hidden_states):
        tensor.retain_grad()
    output.loss.backward()
    assert all(tensor.grad is not None and tensor.grad.abs().max() > 0 for tensor in output.hidden_states)
    assert all(tensor.grad is not None and tensor.grad.abs().max() > 0 for tensor in output.attentions)
    recorded = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    for key, parameter in model.named_parameters():
        close(recorded[key], parameter.grad)
