"""A mosaic whose heads learn how compact their kernel is, beside fixed kernels, on the bundled stories.

    OMP_NUM_THREADS=1 python -m benchmarks.learned_alpha --runs runs/learned-alpha --out results/learned_alpha/cpu.json

The recipe stories-mosaic, shortened to --steps and --blocks, with each kernel as that of the contextual memories: the
Gaussian, the three fixed alphas, and alphas that are learned from 1.25, 1.5 and 1.75. All have the same batches and
rate. Loss on the validation text, and of learned ones the alpha of each head by block. What is killed goes on.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

from tessera.base.files import write_text_atomically
from tessera.evaluation.loss import evaluate_text
from tessera.evaluation.provenance import provenance
from tessera.memories.pair_memory import PairMemory
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recipes.recipe import read_recipe
from tessera.training.folder import RESULT
from tessera.training.run import train
from tessera.training.run_data import evaluation_text

KERNELS = {
    "gaussian": "gaussian",
    "triweight, alpha 4/3": "triweight",
    "biweight, alpha 3/2": "biweight",
    "sparsemax, alpha 2": "epanechnikov",
    **{f"learned from {alpha}": f"{{name: entmax, alpha: {alpha}}}" for alpha in (1.5, 1.25, 1.75)},
}


def measured(label: str, overrides: list[str], runs: Path) -> dict[str, Any]:
    """Train, or go on, and evaluate."""
    folder = runs / label.replace(" ", "-").replace(",", "").replace("/", "-")
    if not (folder / RESULT).is_file():
        train(read_recipe("stories-mosaic", overrides), folder, resume=True, progress=False)
    model = load_model(folder)
    loss = evaluate_text(model, load_tokenizer(folder), evaluation_text(folder), sequences=128)["loss"]
    memories = [module for module in model.modules() if isinstance(module, PairMemory)]
    alphas = [memory.learned_alpha.alpha.tolist() for memory in memories if memory.learned_alpha is not None]
    return {"loss": loss, **({"alphas_by_block": alphas} if alphas else {})}


def main() -> None:
    """Measure what is not in --out yet; print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, required=True, help="a folder for the trainings")
    parser.add_argument("--out", type=Path, required=True, help="a JSON file for what came out")
    arguments = parser.parse_args()
    began = time.perf_counter()
    record = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cases": {}}
    for folder in (arguments.runs, arguments.out.parent):
        folder.mkdir(parents=True, exist_ok=True)
    steps, blocks = arguments.steps, arguments.blocks
    shared = [f"training.steps={steps}", f"training.warmup_steps={steps // 10}", f"model.num_layers={blocks}"]
    for seed in range(arguments.seeds):
        for name, kernel in KERNELS.items():
            label = f"{name}, {blocks} blocks, {steps} steps, seed {seed}"
            if label not in record["cases"]:
                overrides = [*shared, "training.precision=fp32", f"model.kernel={kernel}", f"seed={seed}"]
                record["cases"][label] = measured(label, overrides, arguments.runs)
                record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
                write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")
            case = record["cases"][label]
            rows = [" ".join(f"{alpha:.2f}" for alpha in block) for block in case.get("alphas_by_block", [])]
            print(f"{label:<52} loss {case['loss']:.4f}  {' | '.join(rows)}", flush=True)


if __name__ == "__main__":
    main()
