"""Two processes that share a batch train as one process with the whole batch; slow tests start them as users do."""

import os
import shutil
import time
import traceback
from datetime import timedelta

import pytest
import torch
from safetensors.torch import load_file, save_file

from tessera.base.checkpoints import latest_complete
from tessera.cli.main import main
from tessera.training.checkpoint import Checkpoints
from tessera.training.distributed import SINGLE_PROCESS, init_processes
from tessera.training.loop import StagePlan, TrainingLog, train_stages
from tessera.training.optimizer import FitOptions
from tests.training.processes import free_port, metrics, same_weights, train_by, weights, write_recipe

ARMT = """
model: {type: armt, segment_size: 32, num_memory_tokens: 2, memory_dim: 4, strength_stretch: 0.1,
        base: {type: memory_mosaic, hidden_size: 16, num_layers: 1, num_heads: 2, num_persistent_slots: 8}}
data: %s
training: {batch_size: 6, evaluate_every: 2, evaluate_sequences: 7, checkpoint_every: 2, precision: fp32,
           curriculum: %s}
"""
STAGES = {
    "questions": (
        "{task: {name: babilong, kind: qa1, noise: BOOKS, vocab_size: 250, facts_share: 0.6},"
        " questions: 3, early_questions: 2}",
        "[{length: 2, min_length: 2, steps: 2},"
        " {length: 4, min_length: 3, steps: 2, model: {backprop_segments: 2, gate_penalty: 0.5}}]",
    ),
    "text": (
        "{source: novels}\ntokenizer: {type: byte}",
        "[{length: 2, steps: 2}, {length: 3, steps: 2, model: {gate_penalty: 0.5}}]",
    ),
}


def train(recipe, run, *options):
    assert main(["train", str(recipe), "--output", str(run), *options]) == 0
    return 0


def by_forks(call):
    """`call()`, a command's status, in two forks of this process, which has imported what takes others seconds."""
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    children = []
    for rank in "01":
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {**shared, "RANK": rank, "LOCAL_RANK": rank}
            status = 70
            try:
                status = call()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


def as_one(two, one, names, relative, absolute):
    """The runs are the same up to rounding: gradients are sums over the batch in another order."""
    for name in names:
        assert metrics(two, name) == pytest.approx(metrics(one, name), rel=relative), name
    same_weights(two, one, absolute)
    with pytest.raises(AssertionError):  # else only one process trained
        same_weights(two, one)


class Branches(torch.nn.Module):
    """Parts that a process may use alone, as a layer that is dropped at random in the other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(3, 3, bias=False) for _ in range(4))


def test_what_one_process_alone_has_gradients_of_is_the_same_in_both(tmp_path):
    """Their gradients were added in the order in which each had them, one layer's to another's."""
    options = FitOptions(steps=1, learning_rate=0.1, warmup_steps=0, clip=1.0, decay="constant")

    def step(model, used, processes, folder):
        x = torch.arange(3.0) + 1
        plan = StagePlan(
            options, lambda step: sum(factor * model.parts[part](x).sum() for part, factor in used.items())
        )
        train_stages(model, [plan], Checkpoints(folder, model, processes=processes), TrainingLog(), processes=processes)

    def half():
        with init_processes() as processes:
            model = Branches()
            step(model, ({0: 1, 2: 3}, {1: -2, 2: 5})[processes.rank], processes, tmp_path / "two")
            save_file(model.state_dict(), tmp_path / f"{processes.rank}.safetensors")
        return 0

    by_forks(half)
    whole = Branches()
    before = {name: value.clone() for name, value in whole.state_dict().items()}
    step(whole, {0: 1, 1: -2, 2: 8}, SINGLE_PROCESS, tmp_path / "one")
    for rank in "01":
        for name, value in load_file(tmp_path / f"{rank}.safetensors").items():
            torch.testing.assert_close(value, whole.state_dict()[name], rtol=0, atol=1e-6)
            assert torch.equal(value, before[name]) == (name == "parts.3.weight")


@pytest.mark.grid
def test_processes_wait_for_one_that_works_longer_than_a_step_may_take():
    """Half an hour at most (ten minutes with NCCL): tokenising a large text took longer, and began again each time."""

    def wait():
        with init_processes() as processes:
            torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
            time.sleep(3 * processes.is_first)
            processes.wait()
        return 0

    by_forks(wait)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_two_processes_train_as_one_with_the_whole_batch(tmp_path, launcher):
    recipe, one, two = write_recipe(tmp_path), tmp_path / "one", tmp_path / "two"
    train(recipe, one, "training.shard=false")
    train_by(2, recipe, two, "training.shard=false", launcher=launcher)
    as_one(two, one, ("loss", "validation_loss", "gradient_norm"), relative=1e-6, absolute=1e-6)


@pytest.mark.parametrize(
    "data", [pytest.param("questions", marks=pytest.mark.grid), pytest.param("text", marks=pytest.mark.slow)]
)
def test_two_processes_train_in_stages_as_one_with_the_whole_batch(tmp_path, data, beginnings):
    section, stages = STAGES[data]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(ARMT % (section.replace("BOOKS", str(beginnings["stories"])), stages))
    one, two = tmp_path / "one", tmp_path / "two"
    train(recipe, one)
    by_forks(lambda: train(recipe, two))
    numbers = ("loss", "validation_loss", "validation_penalty", "validation_exact_match", "tokens")
    as_one(two, one, numbers, relative=1e-5, absolute=2e-5)
    assert metrics(two, "validation_penalty")
    trained = weights(two)
    (two / "run.json").unlink()
    shutil.rmtree(latest_complete(two)[0])
    by_forks(lambda: train(recipe, two, "--resume"))
    torch.testing.assert_close(weights(two), trained, rtol=0, atol=0)
