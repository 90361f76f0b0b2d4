"""Memory Mosaics v1, v2 and Llama at equal parameters on the bundled stories, with the same batches.

    OMP_NUM_THREADS=2 python -m benchmarks.v2_stories

trains each model by the recipe below into runs/v2-stories/<model>, measures validation loss by position up to eight
times the trained context (v2 also with its long-term memories switched off, without retraining), and writes
results/v2/stories.json and results/v2/stories.png. A model that is trained already is only measured.
"""

import argparse
import json
import time
from pathlib import Path

from tessera.base.files import write_text_atomically
from tessera.data.tokenizers import TokenizerSpec
from tessera.data.windows import Split, ValidationWindows
from tessera.evaluation.display import position_curves
from tessera.evaluation.loss import loss_by_position
from tessera.evaluation.provenance import provenance
from tessera.models.saving.loading import load_model
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import DataSection, Recipe, TrainingSection
from tessera.training.run import train

CONTEXT, LONGEST = 128, 1024
SHARED = {"hidden_size": 128, "num_layers": 4}
# 1.21 million parameters each. Windows are scaled to the context: the paper has h = 256 and m in [64, 256] at 4,096.
MODELS = {
    "v1": {"type": "memory_mosaic", **SHARED, "num_heads": 4, "num_persistent_slots": 600},
    "v2": {
        "type": "memory_mosaic_v2",
        **SHARED,
        "num_heads": 4,
        "intermediate_size": 352,
        "short_term_span": 32,
        "long_term_delay": 8,
        "training_long_term_delay": [8, 32],
        "tie_word_embeddings": True,
    },
    "llama": {
        "type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "intermediate_size": 443,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    },
}
# One rate for all: the paper took the transformer's hyperparameters for its mosaics.
LEARNING_RATE = 2e-3
OUTPUT, RUNS = Path("results/v2"), Path("runs/v2-stories")


def recipe(name: str, steps: int) -> Recipe:
    """The same data, batches and schedule for every model."""
    return Recipe(
        name=name,
        model=MODELS[name],
        data=DataSection(source="stories", context=CONTEXT),
        tokenizer=TokenizerSpec("bpe", 2048),
        training=TrainingSection(
            steps=steps,
            batch_size=16,
            precision="fp32",
            learning_rate=LEARNING_RATE,
            min_learning_rate=LEARNING_RATE / 100,
            warmup_steps=steps // 10,
            evaluate_every=100,
            checkpoint_every=steps,
        ),
    )


def measure(model, store, sequences: int) -> dict:
    """Validation loss at the trained context, and by position up to eight times that."""
    near = loss_by_position(model, ValidationWindows(Split.of(store), CONTEXT, 4 * sequences, False), 8)
    far = loss_by_position(model, ValidationWindows(Split.of(store), LONGEST, sequences, False), 2)
    return {"loss": near.mean, "loss_at_longest": far.mean, "loss_by_position": far.by_position().tolist()}


def main() -> None:
    """Train what is not trained yet, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sequences", type=int, default=24, help="validation sequences of the longest context")
    arguments = parser.parse_args()
    results: dict[str, dict] = {}
    for name in MODELS:
        began = time.time()
        folder = RUNS / name
        if not (folder / "model.safetensors").is_file():
            train(recipe(name, arguments.steps), folder, overwrite=folder.exists())
        model, store = load_model(folder), validation_store(recipe(name, arguments.steps), folder)
        shape = {"parameters": model.num_parameters(), "recipe": recipe_to_dict(recipe(name, arguments.steps))}
        results[name] = {**measure(model, store, arguments.sequences), **shape}
        if name == "v2":
            model.disable_long_term_memory()
            results["v2 without long-term memory"] = {**measure(model, store, arguments.sequences), **shape}
        results[name]["provenance"] = provenance(seed=0, wall_seconds=time.time() - began)
        write(results)


def validation_store(which: Recipe, folder: Path):
    """The validation text, by the run's own tokenizer."""
    from tessera.training.corpus import open_corpus

    return open_corpus(which, folder).validation.store


def write(results: dict[str, dict]) -> None:
    """The JSON and the figure of what is there so far."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    write_text_atomically(OUTPUT / "stories.json", json.dumps(results, indent=1) + "\n")
    curves = {name: result["loss_by_position"] for name, result in results.items()}
    position_curves(OUTPUT / "stories.png", curves, f"Stories: loss by position, trained at {CONTEXT}")
    for name, result in results.items():
        print(f"{name:<28} {result['parameters']:>10,}  {result['loss']:.4f}  at 8x: {result['loss_at_longest']:.4f}")


if __name__ == "__main__":
    main()
