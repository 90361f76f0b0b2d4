"""Every recipe that is shipped loads, builds at its size, and trains two steps made small."""

from pathlib import Path

import pytest

from tessera.data.tokenizers import vocabulary_size
from tessera.evaluation.accounting import account
from tessera.models import MODELS
from tessera.recipes.model_section import model_config
from tessera.recipes.recipe import read_recipe
from tessera.recipes.recipe_files import SHIPPED
from tessera.training.run import train
from tests.covering import some
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)

NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
# Of recipes that differ in sizes, rates and lengths alone, one.
OF_EACH_KIND = """armt-babilong-qa1-long armt-wikitext-103 babistories-kernels-1 babistories-transformer-alibi-1
    book-reader gpt2-wikitext-103 llama-small-4k mosaic-v2-10m own-questions rmt-babilong tiny""".split()
SMALL_RMT = "base.hidden_size=16 base.num_heads=2 base.num_layers=1 segment_size=8 num_memory_tokens=2"
SMALLER = {
    "memory_mosaic": "hidden_size=16 num_heads=2 num_layers=1 num_persistent_slots=8",
    "memory_mosaic_v2": "hidden_size=16 num_heads=2 num_layers=1 intermediate_size=24",
    "transformer": "hidden_size=16 num_heads=2 num_layers=1",
    "armt": f"{SMALL_RMT} memory_dim=4",
    "rmt": SMALL_RMT,
    "llama": "hidden_size=16 num_attention_heads=2 num_key_value_heads=2 num_hidden_layers=1 intermediate_size=24",
}
SHORT = "steps=2 warmup_steps=1 batch_size=4 micro_batch_size=2 evaluate_sequences=2 checkpoint_every=2".split()


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_can_be_read(name):
    recipe = read_recipe(name)
    assert recipe.model["type"] in SMALLER


@pytest.mark.usefixtures("short_books")
@some("name", NAMES, by_default=OF_EACH_KIND)
def test_two_steps_made_small(name, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a king. " * 100)
    recipe = read_recipe(name)
    small = [f"model.{change}" for change in SMALLER[recipe.model["type"]].split()]
    if recipe.data.task:
        small += ["model.segment_size=64"] * ("segment_size" in recipe.model)
        small += ["training.batch_size=2", "training.evaluate_sequences=2"]
        small += ["training.curriculum=[{length: 1, steps: 1}, {length: 2, steps: 1}]"]
        if recipe.training.initialize_from:
            first = Path(recipe.training.initialize_from).name
            train(read_recipe(first, small), tmp_path / first, progress=False)
            small.append(f"training.initialize_from={tmp_path / first}")
        summary = train(read_recipe(name, small), tmp_path / "run", progress=False)
        assert 0 <= summary.validation_exact_match <= 1
        assert summary.steps == 2
        return
    small += ["model.vocab_size=258"] * ("vocab_size" in recipe.model)
    small += ["tokenizer={type: byte}", *(f"training.{change}" for change in SHORT), "training.initialize_from=null"]
    small += ["data.context=32", f"data.source={text}", "data.validation=null", "data.format=text"]
    summary = train(read_recipe(name, small), tmp_path / "run", progress=False)
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


def test_the_demo_models_are_equally_large_and_see_the_same_batches():
    recipes = [read_recipe(name) for name in ("demo-mosaic", "demo-transformer")]
    sizes = [
        account(model_config(r.model, vocab_size=4096, max_positions=r.data.context), 256).parameters for r in recipes
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.03)
    batches = [(r.data, r.tokenizer, r.seed, r.training.steps, r.training.batch_size) for r in recipes]
    assert batches[0] == batches[1]


@pytest.mark.parametrize("blocks", [1, 4, 8, 12, 18])
def test_the_babistories_runs_of_both_models_differ_in_the_model_alone(blocks):
    mosaic, transformer = read_recipe(f"babistories-{blocks}"), read_recipe(f"babistories-transformer-{blocks}")
    assert (mosaic.model["num_layers"], transformer.model["num_layers"]) == (blocks, blocks)
    assert (mosaic.data, mosaic.training) == (transformer.data, transformer.training)
    config, baseline = model_config(mosaic.model), model_config(transformer.model)
    assert config.logit_scale == pytest.approx(config.hidden_size**-0.5, rel=1e-15)
    # Dropout in two places of the mosaic and no others, the baseline's in all of its own.
    assert (config.contextual_weight_dropout, config.head_dropout) == (0.0, 0.0)
    dropouts = {baseline.attn_pdrop, baseline.resid_pdrop, baseline.embd_pdrop}
    assert dropouts == {config.weight_dropout, config.residual_dropout}


@pytest.mark.parametrize(("size", "tokens"), [("small", 200e9), ("large", 1000e9)])
def test_v2_and_its_transformer_as_trained(size, tokens):
    mosaic, llama = read_recipe(f"mosaic-v2-{size}-4k"), read_recipe(f"llama-{size}-4k")
    assert model_config(mosaic.model).to_dict() == MODELS[f"mosaic-v2-{size}"].config().to_dict()
    assert (
        model_config(llama.model, bos_token_id=None, eos_token_id=None).to_dict()
        == MODELS[f"llama-{size}"].config().to_dict()
    )
    assert mosaic.training == llama.training
    training = mosaic.training
    assert training.steps * training.batch_size * mosaic.data.context == pytest.approx(tokens, rel=1e-5)
    assert mosaic.data.document_ids
    assert not llama.data.document_ids


@pytest.mark.parametrize("name", ["mosaic-v2-small", "mosaic-v2-large", "llama-small", "llama-large"])
def test_continuations_start_from_the_shorter_run_with_as_many_tokens_per_step(name):
    short, long = read_recipe(f"{name}-4k"), read_recipe(f"{name}-32k")
    assert long.model == short.model
    assert long.tokenizer == short.tokenizer
    assert long.training.initialize_from == f"runs/{name}-4k"
    assert long.data.context == 32_768
    assert long.training.batch_size * long.data.context == short.training.batch_size * short.data.context
