"""Checkpoints in parts: written by several processes, read by any number, merged into one model."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import latest_complete, verify
from tessera.base.errors import TesseraError
from tessera.recipes.recipe import read_recipe
from tessera.recipes.sections import TrainingSection
from tessera.training import checkpoint_tensors
from tessera.training.distributed import shard
from tessera.training.optimizer import parameter_groups
from tessera.training.run import train
from tests.refusals import refused
from tests.training.processes import interrupted, metrics, same_weights, start, train_by, write_recipe

ROUNDED = 1e-4  # AdamW divides by the gradient's size, so that a rounding error of a tiny gradient moves a weight.


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path)


def same_run(run, other):
    same_weights(run, other, ROUNDED)
    for name in ("loss", "validation_loss", "gradient_norm"):  # the sums over a batch are in another order
        assert metrics(run, name)[-3:] == pytest.approx(metrics(other, name)[-3:], rel=1e-5), (run.name, name)


AGAIN = ("training.gradient_checkpointing=true", "training.checkpoint_layers_every=2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "changes"), [(4, ()), (2, AGAIN), (2, (*AGAIN, "model.tie_word_embeddings=false"))]
)
def test_several_processes_do_what_one_does_and_any_number_resumes_their_parts(recipe, tmp_path, processes, changes):
    one, several = tmp_path / "one", tmp_path / "several"
    train(read_recipe(recipe, changes), one, progress=False)
    train_by(processes, recipe, several, *changes)
    parts = several / "checkpoints" / "checkpoint-3"
    assert verify(parts) is None
    assert len(list((parts / "shards").glob("*.safetensors"))) == processes
    assert {path.suffix for path in parts.rglob("*") if path.is_file()} <= {".safetensors", ".json", ".jinja"}
    same_run(several, one)
    for begun, count in [(several, 1), (one, 2)] if processes == 2 else [(several, count) for count in (1, 2, 4)]:
        resumed = interrupted(begun, tmp_path / f"{begun.name}-resumed-by-{count}")
        if count == 1:
            train(read_recipe(recipe, changes), resumed, resume=True, progress=False)
        else:
            train_by(count, recipe, resumed, *changes, "--resume")
        same_run(resumed, one)


# The second process dies at its second write, when the first has begun its own.
KILLED_WHILE_WRITING = """
import os, signal, time
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

write_data, calls = HuggingFaceStorageWriter.write_data, []

def dying(self, plan, planner):
    calls.append(plan)
    if len(calls) == 2 and os.environ["RANK"] == "1":
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    return write_data(self, plan, planner)

HuggingFaceStorageWriter.write_data = dying
"""


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_write_leaves_the_earlier_checkpoint(recipe, tmp_path):
    one, run = tmp_path / "one", tmp_path / "killed"
    train(read_recipe(recipe), one, progress=False)
    (tmp_path / "dying.py").write_text(KILLED_WHILE_WRITING)
    process = start(2, recipe, run, "--import", str(tmp_path / "dying.py"))
    process.communicate(timeout=900)
    assert process.returncode != 0
    assert latest_complete(run) == (run / "checkpoints" / "checkpoint-3", [])
    assert list((run / "checkpoints" / "draft.tmp" / "checkpoint-6").iterdir()), "it was not writing"
    assert not (run / "model.safetensors").exists()
    train_by(2, recipe, run, "--resume")
    assert verify(run / "checkpoints" / "checkpoint-6") is None
    assert not (run / "checkpoints" / "draft.tmp").exists()
    same_weights(run, one, ROUNDED)


@pytest.fixture
def alone(tmp_path):
    """The only process of a group."""
    store = tmp_path / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(4, 5)).square().sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own, about the group of one
def test_what_is_written_in_the_background_is_what_was_there_at_the_start(alone, tmp_path):
    model, optimizer = trained()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    averages = [optimizer.state[parameter]["exp_avg"].clone() for parameter in model.parameters()]
    writer, called = checkpoint_tensors.ShardWriter(), []
    folder = tmp_path / "checkpoint-3"
    tensors = {
        **checkpoint_tensors.prefixed(checkpoint_tensors.WEIGHT, checkpoint_tensors.model_tensors(model)),
        **checkpoint_tensors.optimizer_tensors(model, optimizer),
    }
    assert len(tensors) == 9
    folder.mkdir()
    writer.start(folder / "shards", tensors, lambda: called.append(len(list(folder.glob("shards/*.safetensors")))))
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(7.0)
    writer.finish()
    assert called == [1]
    other = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3, bias=False))
    resumed = torch.optim.AdamW(other.parameters(), lr=3.0)
    checkpoint_tensors.restore_weights(folder, other)
    steps = checkpoint_tensors.optimizer_steps(model, optimizer)
    checkpoint_tensors.restore_optimizer(folder, other, resumed, steps)
    assert all(torch.equal(value, weights[name]) for name, value in other.state_dict().items())
    for parameter, average in zip(other.parameters(), averages):
        assert torch.equal(resumed.state[parameter]["exp_avg"], average)
        assert float(resumed.state[parameter]["step"]) == 3.0
    with pytest.raises(TesseraError, match="its tensors must be those of this model"):
        checkpoint_tensors.restore_weights(folder, torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 4)))


@pytest.mark.filterwarnings("ignore")
def test_what_is_marked_does_not_decay_where_it_is_sharded(alone):
    model = torch.nn.Sequential(torch.nn.Linear(5, 7, bias=False), torch.nn.Linear(7, 3, bias=False))
    model[0].weight._no_weight_decay = True
    shard(model)
    groups = parameter_groups(model, TrainingSection(weight_decay=0.3))
    assert {tuple(p.shape): group["weight_decay"] for group in groups for p in group["params"]} == {
        (7, 5): 0.0,
        (3, 7): 0.3,
    }


@pytest.mark.filterwarnings("ignore")
def test_parts_become_files_of_a_bounded_size(alone, tmp_path, monkeypatch):
    model, _ = trained()
    writer = checkpoint_tensors.ShardWriter()
    weights = checkpoint_tensors.prefixed(checkpoint_tensors.WEIGHT, checkpoint_tensors.model_tensors(model))
    writer.start(tmp_path / "shards", weights, lambda: None)
    writer.finish()
    assert checkpoint_tensors.merge(tmp_path, tmp_path) == 1
    merged = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(value, merged[name]) for name, value in model.state_dict().items())
    monkeypatch.setattr(checkpoint_tensors, "LARGEST_FILE", 100)
    several = tmp_path / "several"
    several.mkdir()
    assert checkpoint_tensors.merge(tmp_path, several, torch.bfloat16) == 2
    index = json.loads((several / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 2 * (5 * 7 + 7 + 7 * 3)
    for name, value in model.state_dict().items():
        assert torch.equal(load_file(several / index["weight_map"][name])[name], value.bfloat16())
    with torch.no_grad():
        next(value for name, value in weights.items() if name.endswith("0.bias"))[1] = float("nan")
    writer.start(tmp_path / "shards", weights, lambda: None)
    writer.finish()
    refused(r"0\.bias must be finite; got NaN or infinity", checkpoint_tensors.merge, tmp_path, several)
