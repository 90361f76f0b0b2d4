"""A small Memory Mosaic trained with each kernel on the bundled stories: one figure of validation losses.

    python docs/figures/kernel_language_models.py

writes `results/kernels/language_models.json` and `results/kernels/language_models.png` (some minutes on two cores).
Same data, seed, sizes and learning rate for all kernels: what differs is the kernel of the contextual memories.
`--plot` draws again from the numbers.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from matplotlib.figure import Figure

from tessera.evaluation.provenance import provenance
from tessera.training.metrics import MetricsFile
from tessera.training.recipe import read_recipe
from tessera.training.run import train

# Name in the figure, kernel in the recipe, colour, line style.
RUNS = (
    ("Gaussian", "gaussian", "#334155", "-"),
    ("triweight", "triweight", "#1d4ed8", "-"),
    ("biweight", "biweight", "#0891b2", "-"),
    ("Epanechnikov (sparsemax)", "epanechnikov", "#15803d", "-"),
    ("ReLUmax", "relumax", "#ca8a04", "-"),
    ("normalised ReLU", "normalized_relu", "#c2410c", "-"),
    ("16 neighbours, Gaussian", "{name: knn, base: gaussian, k: 16}", "#7e22ce", "--"),
    ("16 neighbours, uniform", "{name: knn, base: uniform, k: 16}", "#be185d", "--"),
)
RECIPE = "demo-mosaic"
SIZES = ("model.hidden_size=128", "model.num_layers=2", "model.num_heads=2", "model.num_persistent_slots=448")


def overrides(kernel: str, steps: int) -> list[str]:
    """What differs from the demo's recipe: sizes, bytes as tokens, and the length of the run."""
    schedule = {"steps": steps, "warmup_steps": steps // 10, "evaluate_every": max(1, steps // 10)}
    training = [
        f"training.{key}={value}"
        for key, value in {**schedule, "evaluate_sequences": 32, "checkpoint_every": steps}.items()
    ]
    return [*SIZES, "tokenizer={type: byte}", *training, f"model.kernel={kernel}"]


def trained(kernel: str, steps: int) -> dict:
    """Validation losses (tokens, nats per byte) of one run."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        recipe = read_recipe(RECIPE, overrides(kernel, steps))
        summary = train(recipe, Path(folder) / "run", progress=False)
        records = MetricsFile(Path(folder) / "run" / "metrics.jsonl").read()
    per_step = recipe.training.batch_size * recipe.data.context
    losses = [(r["step"] * per_step, r["validation_loss"]) for r in records if "validation_loss" in r]
    seconds = round(time.perf_counter() - began, 1)
    return {"kernel": kernel, "parameters": summary.parameters, "seconds": seconds, "validation": losses}


def draw(runs: dict[str, dict], path: Path) -> None:
    """Validation loss over training bytes, the end of each run named in order of loss."""
    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    looks = {name: (colour, style) for name, _, colour, style in RUNS}
    for name, run in sorted(runs.items(), key=lambda item: item[1]["validation"][-1][1]):
        tokens, losses = zip(*run["validation"])
        colour, style = looks[name]
        label = f"{losses[-1]:.3f}  {name}"
        axes.plot([t / 1e6 for t in tokens], losses, color=colour, linestyle=style, linewidth=2, label=label)
    axes.set(xlabel="training bytes, millions", ylabel="validation loss, nats per byte")
    axes.set_title("One Memory Mosaic, eight kernels", loc="left", fontsize=12, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, title="at the end", alignment="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small Memory Mosaic with each kernel and draw the losses.")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run, 2,048 bytes each")
    parser.add_argument("--out", type=Path, default=Path("results/kernels"), help="folder of the results")
    parser.add_argument("--plot", action="store_true", help="only draw what the results hold")
    options = parser.parse_args()
    numbers = options.out / "language_models.json"
    if not options.plot:
        runs, began = {}, time.perf_counter()
        for name, kernel, *_ in RUNS:
            runs[name] = trained(kernel, options.steps)
            print(f"{name:26} {runs[name]['validation'][-1][1]:.4f} nats per byte", flush=True)
        configuration = {"recipe": RECIPE, "overrides": overrides("<kernel>", options.steps)}
        record = provenance(configuration=configuration, wall_seconds=time.perf_counter() - began)
        options.out.mkdir(parents=True, exist_ok=True)
        numbers.write_text(json.dumps({**record, "runs": runs}, indent=1) + "\n")
    draw(json.loads(numbers.read_text())["runs"], options.out / "language_models.png")


if __name__ == "__main__":
    main()
