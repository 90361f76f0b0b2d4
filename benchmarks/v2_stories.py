"""Memory Mosaics v1, v2 and Llama at equal parameters on the bundled stories, with the same batches.

    OMP_NUM_THREADS=1 python -m benchmarks.v2_stories

trains each model by the recipe below into runs/v2-stories/<model>-<seed> (v2 with `--seeds`, the others with one),
measures validation loss by position up to eight times the trained context and the choices of
`benchmarks.story_questions`, v2 also with its long-term memories switched off, without retraining, and writes
results/v2/stories.json and results/v2/stories.png. A model that is trained already is only measured.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.story_questions import TASKS, questions, right_answers
from tessera.base.files import write_text_atomically
from tessera.data.tokenizers import TokenizerSpec
from tessera.data.windows import Split, ValidationWindows
from tessera.evaluation.display import position_curves
from tessera.evaluation.loss import loss_by_position
from tessera.evaluation.provenance import provenance
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import DataSection, Recipe, TrainingSection
from tessera.training.corpus import open_corpus
from tessera.training.folder import RESULT
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


def recipe(name: str, seed: int, steps: int) -> Recipe:
    """The same data, batches and schedule for every model."""
    return Recipe(
        name=name,
        seed=seed,
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
            checkpoint_every=min(200, steps),
        ),
    )


def measure(model: Any, tokenizer: Any, store: Any, sequences: int, each: int) -> dict[str, Any]:
    """Validation loss at the trained context and by position up to eight times that, and which choices are right."""
    near = loss_by_position(model, ValidationWindows(Split.of(store), CONTEXT, 4 * sequences, False), 8)
    far = loss_by_position(model, ValidationWindows(Split.of(store), LONGEST, sequences, False), 2)
    tasks = {task: right_answers(model, tokenizer, questions(task, each)).tolist() for task in TASKS}
    losses = {"loss": near.mean, "loss_at_longest": far.mean, "loss_by_position": far.by_position().tolist()}
    return {**losses, "right": tasks}


def main() -> None:
    """Train what is not trained yet, measure, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=2, help="of v2 (default: 2)")
    parser.add_argument("--sequences", type=int, default=24, help="validation sequences of the longest context")
    parser.add_argument("--each", type=int, default=24, help="questions of a kind for each book (default: 24)")
    parser.add_argument("--train-only", metavar="MODEL-SEED", help="train one model, as v2-1, and measure nothing")
    arguments = parser.parse_args()
    of_book = {task: [choice.book for choice in questions(task, arguments.each)] for task in TASKS}
    results: dict[str, Any] = {"books": of_book}
    trainings = [(name, seed) for name in MODELS for seed in range(arguments.seeds if name == "v2" else 1)]
    for name, seed in trainings:
        if arguments.train_only not in (None, f"{name}-{seed}"):
            continue
        began, which, folder = time.time(), recipe(name, seed, arguments.steps), RUNS / f"{name}-{seed}"
        if not (folder / RESULT).is_file():
            train(which, folder, resume=True)
        if arguments.train_only:
            return
        model, store = load_model(folder), open_corpus(which, folder).validation.store
        measured = [model, load_tokenizer(folder), store, arguments.sequences, arguments.each]
        row = {"seed": seed, "on": measure(*measured)}
        if name == "v2":
            model.disable_long_term_memory()
            row["off"] = measure(*measured)
        row["provenance"] = provenance(seed=seed, wall_seconds=time.time() - began)
        shape = {"parameters": model.num_parameters(), "recipe": recipe_to_dict(which), "seeds": []}
        results.setdefault(name, shape)["seeds"].append(row)
        write(results)


def write(results: dict[str, Any]) -> None:
    """The JSON and the figure of what is there so far."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    write_text_atomically(OUTPUT / "stories.json", json.dumps(results, indent=1) + "\n")
    curves = {}
    for name in (name for name in MODELS if name in results):
        for state, label in (("on", name), ("off", f"{name} without long-term memory")):
            rows = [row[state] for row in results[name]["seeds"] if state in row]
            if rows:
                curves[label] = torch.tensor([row["loss_by_position"] for row in rows]).mean(0).tolist()
                right = {task: sum(sum(row["right"][task]) for row in rows) for task in TASKS}
                shares = [
                    f"{task} {100 * right[task] / len(results['books'][task]) / len(rows):.1f} %" for task in TASKS
                ]
                print(
                    f"{label:<28} {rows[-1]['loss']:.4f}  at 8x: {rows[-1]['loss_at_longest']:.4f}  {', '.join(shares)}"
                )
    position_curves(OUTPUT / "stories.png", curves, f"Stories: loss by position, trained at {CONTEXT}")


if __name__ == "__main__":
    main()
