"""Models whose parameters FSDP spreads over the processes (here one): it looks at all that `forward` returns."""

import pytest
import torch
import torch.distributed as dist

from tessera.training.distributed import shard
from tests.models.contract import CASES, tokens, without_dropout
from tests.refusals import refused


@pytest.fixture(autouse=True)
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def gradients(model, **inputs):
    model(**inputs).loss.backward()
    full = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in full.items()}


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")  # logits are a view
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["armt around memory_mosaic", "rmt around gpt2"])
def test_rows_of_different_lengths_and_few_labels(name, training):
    ids = tokens()
    mask, labels = torch.ones_like(ids), ids.clone()
    mask[1, -4:] = 0
    labels[:, :-6] = labels[1, -4:] = -100  # the loss keeps nothing of the first segments
    results = []
    for is_sharded in (False, True):
        model = without_dropout(CASES[name].build()).train(training)
        if is_sharded:
            shard(model)
        results.append(gradients(model, input_ids=ids, attention_mask=mask, labels=labels))
    torch.testing.assert_close(*results)


def test_fewer_segments_than_another_process_are_refused(monkeypatch):
    """Each call of a sharded base waits for all processes: with fewer calls on one, it would never end."""
    model = CASES["armt around memory_mosaic"].build()
    ids = tokens()
    calls = -(-ids.shape[1] // model.config.segment_size)
    reduced = dist.all_reduce

    def beside(counts, operation, group):
        reduced(counts, operation, group)
        torch.maximum(counts, torch.tensor([other, -other]), out=counts)

    monkeypatch.setattr(dist, "all_reduce", beside)
    other = calls + 1
    model(ids)  # nothing is sharded
    shard(model)
    refused(f"as many segments on every process; got {calls} to {other}", model, ids)
    other = calls
    assert model(ids).logits.shape[:2] == ids.shape
