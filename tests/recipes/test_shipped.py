"""Every recipe that is shipped loads, builds at its size, and trains two steps made small."""

import pytest

from tessera.data.tokenizers import vocabulary_size
from tessera.evaluation.accounting import account
from tessera.training.model_section import model_config
from tessera.training.recipe import SHIPPED, read_recipe
from tessera.training.run import train

NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
SMALLER = {
    "memory_mosaic": ("hidden_size=16", "num_heads=2", "num_layers=2", "num_persistent_slots=8"),
    "memory_mosaic_v2": ("hidden_size=16", "num_heads=2", "num_layers=2", "intermediate_size=24"),
    "transformer": ("hidden_size=16", "num_heads=2", "num_layers=2"),
    "armt": ("base.hidden_size=16", "segment_size=8"),
}


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_made_small(name, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a king. " * 100)
    recipe = read_recipe(name)
    overrides = [
        *(f"model.{change}" for change in SMALLER[recipe.model["type"]]),
        "tokenizer={type: byte}",
        "data.context=32",
        "training.steps=2",
        "training.warmup_steps=1",
        "training.batch_size=4",
        "training.micro_batch_size=2",
        "training.evaluate_sequences=2",
        "training.checkpoint_every=2",
        "training.initialize_from=null",
        f"data.source={text}",
        "data.validation=null",
        "data.format=text",
    ]
    summary = train(read_recipe(name, overrides), tmp_path / "run", progress=False)
    assert 4 < summary.validation_loss < 7
    assert summary.steps == 2


@pytest.mark.parametrize(("blocks", "millions"), [(1, 45.7), (4, 66.9), (8, 95.2), (12, 123.6), (18, 166.0)])
def test_published_sizes(blocks, millions):
    recipe = read_recipe(f"babistories-{blocks}")
    config = model_config(recipe.model, vocab_size=vocabulary_size(recipe.tokenizer))
    per_block = 3 * 768**2 + 2 * 768**2 + 2 * 2688 * 768  # contextual, persistent, slots
    counted = account(config, 512).parameters
    assert counted == pytest.approx(50257 * 768 + blocks * per_block, rel=1e-3)  # norms and scalars are the rest
    assert counted == pytest.approx(millions * 1e6, rel=2e-3)
    training = recipe.training
    assert (training.batch_size, recipe.data.context, training.steps) == (512, 512, 80_000)


def test_the_demo_models_are_equally_large_and_see_the_same_batches():
    recipes = [read_recipe(name) for name in ("demo-mosaic", "demo-transformer")]
    sizes = [
        account(model_config(r.model, vocab_size=4096, max_positions=r.data.context), 256).parameters for r in recipes
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.03)
    assert recipes[0].data == recipes[1].data
    assert recipes[0].tokenizer == recipes[1].tokenizer
    assert recipes[0].seed == recipes[1].seed
    assert recipes[0].training.steps == recipes[1].training.steps
    assert recipes[0].training.batch_size == recipes[1].training.batch_size
