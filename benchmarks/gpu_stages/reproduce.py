"""Stage `reproduce`: trainings that need a GPU, in slices that a later call continues.

Each case is one call of `tessera train --resume`; it stops after its slice and goes on from its last checkpoint the
next time. A case counts as done when its run is finished.
"""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.gpu_stages.settings import Settings

# Twelve blocks of GPT-2-small width on the bundled stories; steps that fit a few slices.
STEPS = {"steps": 4000, "batch_size": 64, "micro_batch_size": 64, "warmup_steps": 200, "checkpoint_every": 100}
SIZE = {"hidden_size": 768, "num_layers": 12, "num_heads": 12}
RECIPES = {
    "12-block mosaic on the stories": ("demo-mosaic", {**SIZE, "num_persistent_slots": 2688}),
    "12-block transformer on the stories": ("demo-transformer", SIZE),
}
SLICE_SECONDS = 150


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """One case per run."""
    return {name: partial(train_slice, settings, name, *recipe) for name, recipe in RECIPES.items()}


def run_slice(command: list[str], progress: Callable[[], str]) -> str:
    """The output of `command`, or an error when its slice is over or it fails."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=SLICE_SECONDS)
    except subprocess.TimeoutExpired:
        # Whole checkpoints survive any end; at most the steps since the last one are lost.
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        except subprocess.TimeoutExpired:  # started in the background, where shells have interrupts ignored
            process.kill()
            process.communicate()
        raise TimeoutError(f"not finished; {progress()}. Call again to continue.") from None
    if process.returncode:
        raise RuntimeError(output.strip().splitlines()[-1])
    return output


def train_slice(settings: Settings, name: str, recipe: str, model: dict[str, int]) -> dict:
    """Train for one slice; the validation loss of a finished run, or an error that says how far it has come."""
    parent = Path("runs/gpu") if not settings.dry else Path(tempfile.mkdtemp(prefix="gpu-dry-run-"))
    folder = parent / name.replace(" ", "-")
    command = [sys.executable, "-m", "tessera.cli.main", "train", recipe, *overrides(settings, model)]
    command += ["--output", str(folder), "--resume" if folder.exists() else "--overwrite"]
    output = run_slice(command, partial(progress, folder))
    return {"summary": output.strip().splitlines()[-2:], "progress": progress(folder)}


def overrides(settings: Settings, model: dict[str, int]) -> list[str]:
    """Changes to the recipe: steps, and the model's size (tiny ones in a dry run)."""
    tiny = {"steps": 2, "batch_size": 2, "micro_batch_size": 2, "warmup_steps": 1, "checkpoint_every": 1}
    steps = settings.pick(STEPS, {**tiny, "evaluate_every": 2, "evaluate_sequences": 1})
    model = settings.pick(model, {**dict.fromkeys(model, 8), "hidden_size": 16, "num_layers": 1, "num_heads": 2})
    sections = {"training": steps, "model": model}
    changes = [f"{section}.{key}={value}" for section, values in sections.items() for key, value in values.items()]
    return changes + settings.pick([], ["data.context=16"])


def progress(folder: Path) -> str:
    """The last line of the run's metrics."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return "no step logged yet"
    last = json.loads(path.read_text().splitlines()[-1])
    return ", ".join(f"{key} {value}" for key, value in last.items() if isinstance(value, int | float))
