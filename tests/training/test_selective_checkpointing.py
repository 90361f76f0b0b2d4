"""Recomputing some of the layers: fewer tensors are kept, the same weights come out."""

import pytest
import torch

from tessera.recipes.model_section import build_model, model_config
from tessera.recipes.recipe import read_recipe
from tessera.training.initial_model import enable_checkpointing
from tessera.training.run import train
from tests.training.processes import same_weights

MODEL = (
    "model={type: memory_mosaic_v2, hidden_size: 16, num_layers: 4, num_heads: 2, intermediate_size: 24, "
    "short_term_span: 4, long_term_delay: 2, training_long_term_delay: [2, 6]}"
)


def recipe(recipe_file, *overrides):
    return read_recipe(recipe_file, [MODEL, "training.steps=2", *overrides])


def kept(recipe):
    """Numbers kept for the backward pass."""
    model = build_model(model_config(recipe.model, vocab_size=258), seed=0).train()
    enable_checkpointing(model, recipe.training)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
        model(torch.zeros(2, 16, dtype=torch.long), labels=torch.zeros(2, 16, dtype=torch.long))
    return sum(sizes)


def test_every_second_layer_keeps_half_of_what_all_keep(recipe_file):
    on = "training.gradient_checkpointing=true"
    nothing, half, all_layers = (
        kept(recipe(recipe_file, *changes)) for changes in ((), (on, "training.checkpoint_layers_every=2"), (on,))
    )
    assert half - all_layers == pytest.approx((nothing - all_layers) / 2, rel=0.01)


def test_the_weights_are_the_same(recipe_file, tmp_path):
    train(recipe(recipe_file), tmp_path / "none", progress=False)
    for every in ("1", "3"):
        changes = ("training.gradient_checkpointing=true", f"training.checkpoint_layers_every={every}")
        train(recipe(recipe_file, *changes), tmp_path / every, progress=False)
        same_weights(tmp_path / every, tmp_path / "none")
