"""QA1 of BABILong by an ARMT around a pretrained model: its memory and LoRA on the base learn, its weights do not.

    tessera models get smollm2 --output smollm2
    OMP_NUM_THREADS=1 python -m benchmarks.babilong_lora smollm2 --out results/pretrained/babilong_lora.json

The stages of `STAGES` (the question in the text's last segment, then behind it, where only the memory can answer, then
two segments), each to its best weights on validation books; then questions about test books, once: exact match with
the question in the last segment and behind it. A killed training goes on from its folder.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import torch

from tessera import wrap
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.evaluation.questions import right_answers
from tessera.models.saving.loading import load_model
from tessera.recipes.sections import DataSection, Recipe, Stage, TrainingSection
from tessera.tasks.question_answering import question_task
from tessera.tasks.task import estimate
from tessera.training.fit import train_recipe_stages
from tessera.training.staged_data import StagedQuestions

SEGMENT, MEMORY_TOKENS, RANK = 128, 10, 8
FROM_MEMORY = {"from_memory": True}
STAGES = (
    Stage(1, 100, target=0.9, learning_rate=1e-3),
    Stage(1, 300, target=0.9, learning_rate=1e-3, settings=FROM_MEMORY),
    Stage(2, 150, min_length=2, target=0.9, learning_rate=5e-4),
)
TEST = {"test_noise": "test_books"}


def recipe(base: str) -> Recipe:
    """Of one and two segments, of which facts may take 40 per cent."""
    task = {"name": "babilong", "kind": "qa1", "tokenizer": base, "facts_share": 0.4}
    training = TrainingSection(
        batch_size=8,
        betas=(0.9, 0.999),
        weight_decay=0.01,
        warmup_steps=20,
        precision="fp32",
        evaluate_every=25,
        evaluate_sequences=24,
        checkpoint_every=25,
        curriculum=STAGES,
    )
    model = {"type": "armt", "segment_size": SEGMENT, "num_memory_tokens": MEMORY_TOKENS, "memory_dim": 64}
    data = DataSection(task=task, questions=3, early_questions=0, context=SEGMENT)
    return Recipe(name="babilong-lora", seed=1, model={**model, "base": base}, data=data, training=training)


def main() -> None:
    """Train what is not trained yet, then test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="folder of a causal language model with its tokenizer")
    parser.add_argument("--folder", type=Path, default=Path("runs/babilong-lora"), help="of the training")
    parser.add_argument("--segments", nargs="+", type=int, default=[1, 2, 3, 4, 8], help="of the tests' texts")
    parser.add_argument("--texts", type=int, default=48, help="for each length, with three questions (default: 48)")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    from peft import LoraConfig

    settings, began = recipe(arguments.base), time.perf_counter()
    torch.manual_seed(settings.seed)
    model = wrap(load_model(arguments.base), segment_size=SEGMENT, num_memory_tokens=MEMORY_TOKENS, memory_dim=64)
    model.add_adapter(LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    learns = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    task = question_task(settings.data.task or {})
    data = StagedQuestions(settings, SEGMENT, task)

    def report(share: float, note: str) -> None:
        print(f"{100 * share:5.1f} %, {(time.perf_counter() - began) / 60:.0f} minutes: {note}", flush=True)

    stages = train_recipe_stages(model, settings, data, arguments.folder, report)
    tested = StagedQuestions(settings, SEGMENT, replace(task, **TEST))
    right: dict[str, dict[str, float]] = {}
    for segments in arguments.segments:
        row = right[str(segments)] = {}
        for label, own in (("question in the last segment", {}), ("question behind it", FROM_MEMORY)):
            stage = Stage(segments, 1, settings={**TEST, **own})
            tokens = tested.lengths(stage, segments)[-1]
            batch = tested.batch(stage, arguments.texts, tokens, 1_000_000, "test")
            shares = torch.cat([right_answers(model, batch.rows(row, row + 8)) for row in range(0, arguments.texts, 8)])
            mean, error, _ = estimate(shares, batch.sources)  # texts of one book are not independent
            row |= {label: mean, f"{label}, standard error": error}
            print(f"{segments} segments, {label}: {100 * mean:.0f} ± {100 * error:.0f} %", flush=True)
    record = {
        "base": Path(arguments.base).name,
        "parameters that learn": learns,
        "texts": arguments.texts,
        "stages": stages,
        "exact_match": right,
        "provenance": provenance(seed=settings.seed, wall_seconds=time.perf_counter() - began),
    }
    write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
