"""The memory as a value: shared by many questions, in another format, of another model."""

import pytest
import torch

from tessera.memories import association
from tests.covering import each_value
from tests.models.armt.bases import KINDS, make, same_memory, tokens
from tests.refusals import refused
from tests.tolerances import close


def test_a_shared_memory_is_read_once_and_not_copied():
    """Three questions to each of two memories are one reading of two rows; a hook sees all six."""
    model, memory = make(), make()(tokens(2, 19)).memory_state
    shapes, seen = [], []
    read = association.read_association

    def watched(matrix, normaliser, query, **options):
        shapes.append((len(matrix), tuple(query.shape[:2])))
        return read(matrix, normaliser, query, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(association, "read_association", watched)
        hook = model.memories[0].register_forward_hook(
            lambda module, args, output: seen.append(tuple(output.shape[:2]))
        )
        model(tokens(6, 5), memory_state=memory, use_cache=True)
        hook.remove()
    assert shapes == [(2, (2, 15))] * len(model.memories)
    assert seen == [(6, 5)]


@each_value(kind=KINDS, steps=[11, 6])  # past the end of the open segment, where the memory is written; within it
def test_a_memory_that_is_shared_is_one_repeated_for_each(kind, steps):
    """Logits, memories behind, and gradients; a row of memory serves three consecutive rows of text."""
    model, questions = make(kind), tokens(6, steps)
    memory = model(tokens(2, 19)).memory_state
    shared = memory.map(lambda tensor: tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor)
    repeated = memory.map(lambda tensor: tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor)
    one = model(questions, memory_state=shared, use_cache=True)
    other = model(questions, memory_state=repeated.repeat_batch(3), use_cache=True)
    close(one.logits, other.logits)
    same_memory(one.memory_state.for_batch(6), other.memory_state)
    grads = [
        torch.autograd.grad(result.logits.square().sum(), [t for t in state.tensors().values() if t.requires_grad])
        for result, state in ((one, shared), (other, repeated))
    ]
    close(*grads)
    assert any(bool(grad.abs().max() > 0) for grad in grads[0])
    order = torch.tensor([5, 0, 0, 3])
    after = tokens(4, 9)
    message = r"chosen rows must be among \[0, 1, 2, 3, 4, 5\]; got \[6\]"
    refused(message, one.past_key_values.select_batch, torch.tensor([6]))
    ahead = [model(after, past_key_values=result.past_key_values.select_batch(order)) for result in (one, other)]
    close(ahead[0].logits, ahead[1].logits)
    same_memory(ahead[0].memory_state, ahead[1].memory_state)
    twice = one.past_key_values.repeat_batch(2), other.past_key_values.repeat_batch(2)
    after = tokens(12, 9)
    asked = [model(after, past_key_values=cache).logits for cache in twice]
    close(asked[0], asked[1])


@each_value(kind=KINDS)
def test_a_memory_that_cannot_be_written_is_named(kind, tmp_path):
    path = tmp_path / "missing" / "memory"
    refused(f"{path}: the memory cannot be written", make(kind)(tokens(1, 9)).memory_state.save, path)


def test_memories_of_other_models_are_refused():
    model, ids = make(), tokens(3, 9)
    refused("be ARMTState", model, ids, memory_state=make("rmt")(ids).memory_state)
    refused("same sizes", model, ids, memory_state=make(num_rolls=2)(ids).memory_state)
    message = "a number of rows that divides 3, the rows of input_ids; got 2"
    refused(message, model, ids, memory_state=model(ids[:2]).memory_state)


def test_memories_and_caches_of_a_model_like_this_are_refused(tmp_path):
    """Where sizes fit: other weights, segments, layers, or another kernel of the base."""
    model, ids = make(), tokens(2, 20)
    output = model(ids, use_cache=True)
    memory, cache = output.memory_state, output.past_key_values
    other = make()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.3)
    memory.save(tmp_path / "memory")
    stored = type(memory).load(tmp_path / "memory")
    close(make()(ids, memory_state=stored).logits, model(ids, memory_state=memory).logits)
    assert make().float()(ids, memory_state=stored.to(torch.float32)).logits.isfinite().all()
    for state in (memory, stored):
        refused("be of this model; got one of other weights. Read the text again", other, ids, memory_state=state)
        refused("be of this model; got one of another configuration", make(segment_size=9), ids, memory_state=state)
    refused("past_key_values must be of this model; got one of other weights", other, ids, past_key_values=cache)
    triweight = make(family="memory_mosaic").config
    triweight.base_config.kernel = "triweight"
    memory_of_gaussian = make(family="memory_mosaic")(ids).memory_state
    other_kernel = type(model)(triweight).double().eval()
    refused("got one of another configuration", other_kernel, ids, memory_state=memory_of_gaussian)
    assert other.train()(ids, labels=ids, memory_state=memory).loss.isfinite(), "weights change while one trains"
