"""Two processes on gloo with everything sharded do what one process does, and their checkpoints are interchangeable."""

import pytest
import torch
from safetensors.torch import load_file

from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tests.training.processes import interrupted, metrics, train_by

# One delay: the processes draw theirs from generators of their own.
RECIPE = """
model: {type: memory_mosaic_v2, hidden_size: 32, num_layers: 2, num_heads: 2, intermediate_size: 48,
        short_term_span: 8, training_long_term_delay: [4, 4], long_term_delay: 4, tie_word_embeddings: %s}
tokenizer: {type: byte}
data: {source: %s, context: 32}
training: {steps: 6, batch_size: 8, micro_batch_size: 2, learning_rate: 1.0e-3, warmup_steps: 1, log_every: 1,
           evaluate_every: 3, evaluate_sequences: 4, checkpoint_every: 3, keep_checkpoints: 2, precision: fp32,
           shard: true, gradient_checkpointing: true, checkpoint_layers_every: 2}
"""


@pytest.mark.slow
@pytest.mark.parametrize("tied", ["true", "false"])
def test_two_processes_equal_one_and_resume_each_others_checkpoints(tmp_path, tied):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a king, and the king had a daughter. " * 60)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE % (tied, text))
    one, two = tmp_path / "one", tmp_path / "two"
    train(read_recipe(recipe), one, progress=False)
    train_by(2, recipe, two)
    resumed_by_one = interrupted(two, tmp_path / "two-then-one")
    train(read_recipe(recipe), resumed_by_one, resume=True, progress=False)
    resumed_by_two = interrupted(one, tmp_path / "one-then-two")
    train_by(2, recipe, resumed_by_two, "--resume")
    expected = load_file(one / "model.safetensors")
    for run in (two, resumed_by_one, resumed_by_two):
        for name in ("loss", "validation_loss", "gradient_norm"):
            # The sums over a batch are in another order.
            assert metrics(run, name)[-3:] == pytest.approx(metrics(one, name)[-3:], rel=1e-5), (run.name, name)
        actual = load_file(run / "model.safetensors")
        assert actual.keys() == expected.keys()
        for name, weight in expected.items():
            # AdamW divides by the gradient's size, so that a rounding error of a tiny gradient moves a weight.
            torch.testing.assert_close(actual[name], weight, rtol=0, atol=1e-4)
