"""The demo of language models: a small Memory Mosaic and the transformer of equal size, on the same stories."""

import json
from dataclasses import asdict
from pathlib import Path

from tessera.base.errors import expect
from tessera.base.files import write_text_atomically, writing
from tessera.base.locks import held
from tessera.evaluation.display import print_table, training_curves
from tessera.evaluation.provenance import provenance
from tessera.generation.sampling import Sampling, continuation
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.transformer import context_limit
from tessera.recipes.recipe import read_recipe
from tessera.training.folder import delete_run
from tessera.training.model_card import RunSummary
from tessera.training.run import train
from tessera.training.run_log import MetricsFile

RECIPES = {"Memory Mosaic": "demo-mosaic", "transformer, RoPE": "demo-transformer"}
TRIAL_STEPS, EVALUATIONS = 4, 10
TRIAL = ("training.log_every=1", "training.evaluate_sequences=1", "training.checkpoint_every=4")


def language_demo(output: Path, overrides: list[str], minutes: float, prompt: str) -> None:
    """Train both for so many minutes at most, then write and print what came out; the samples begin with `prompt`.

    Raises `TesseraError`: impossible overrides, a prompt that fills the context, or an output that cannot be written.
    """
    for recipe in RECIPES.values():
        read_recipe(recipe, overrides)  # mistakes are said before anything is made
    with writing(output, "output folder", "Use --output."):
        output.mkdir(parents=True, exist_ok=True)
    with held(output / "demo.lock", "Wait for it, or use another --output."):
        print("Memory Mosaic and transformer on the bundled stories: measuring this machine ...", flush=True)
        seconds = sum(seconds_per_step(recipe, overrides, output / "trial", prompt) for recipe in RECIPES.values())
        overrides = [*overrides, *_schedule(affordable_steps(overrides, 60 * minutes, seconds))]
        summaries = {}
        for name, recipe in RECIPES.items():
            folder = output / recipe.removeprefix("demo-")
            summaries[name] = train(read_recipe(recipe, overrides), folder, overwrite=True)
        write_report(summaries, output, prompt)


def affordable_steps(overrides: list[str], time: float, seconds: float) -> int | None:
    """None when the recipes' steps, of so many seconds for both, fit into the time; else how many do."""
    section = read_recipe(next(iter(RECIPES.values())), overrides).training
    evaluating = EVALUATIONS * section.validation_in_steps
    steps, affordable = section.steps, int(time / seconds - evaluating)
    if affordable >= steps:
        return None
    affordable = max(affordable, TRIAL_STEPS)
    print(
        f"{steps} steps of both would take {seconds * (steps + evaluating) / 60:.1f} minutes here: "
        f"training {affordable} of them"
    )
    return affordable


def seconds_per_step(recipe: str, overrides: list[str], folder: Path, prompt: str) -> float:
    """Time of a training step, the fastest of a trial run's after the first; the trial in `folder` is deleted."""
    plan = read_recipe(recipe, [*overrides, *_schedule(TRIAL_STEPS), *TRIAL])
    try:
        train(plan, folder, overwrite=True, progress=False)
        length = len(load_tokenizer(folder)(prompt, add_special_tokens=False)["input_ids"])
        lines = MetricsFile(folder / "metrics.jsonl").read()
    finally:
        delete_run(folder)
    longest = plan.data.context - 1  # one token to write
    limits = f"hold 1 to {longest} tokens (data.context - 1)"
    expect(
        1 <= length <= longest, "demo", "--prompt", limits, length, "Use another --prompt, or a longer data.context."
    )
    speeds = [line["tokens_per_second"] for line in lines if line["step"] > 1 and "tokens_per_second" in line]
    return plan.training.batch_size * plan.data.context / max(speeds)


def _schedule(steps: int | None) -> list[str]:
    """Overrides for a shorter run: warm-up and evaluations shrink with it."""
    if steps is None:
        return []
    return [
        f"training.steps={steps}",
        f"training.warmup_steps={max(1, steps // 10)}",
        f"training.evaluate_every={max(1, steps // EVALUATIONS)}",
        f"training.log_every={max(1, steps // 60)}",
        f"training.checkpoint_every={max(1, steps // 2)}",
    ]


SAMPLES, SAMPLE_TOKENS = 3, 160


def write_report(summaries: dict[str, RunSummary], output: Path, prompt: str) -> None:
    """Write loss.png, samples.txt and demo.json into `output`; print the table; stream the first model's story."""
    curves = {name: MetricsFile(Path(summary.folder) / "metrics.jsonl").read() for name, summary in summaries.items()}
    training_curves(output / "loss.png", curves, "Bundled stories, same batches")
    models = {name: load_model(summary.folder) for name, summary in summaries.items()}
    tokenizer = load_tokenizer(next(iter(summaries.values())).folder)
    length = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    limits = [context_limit(model.config) for model in models.values()]
    tokens = min([SAMPLE_TOKENS, *(limit - length for limit in limits if limit is not None)])
    lines = []
    for name, model in models.items():
        samples = (continuation(model, tokenizer, prompt, Sampling(tokens, seed=seed)) for seed in range(SAMPLES))
        lines += [f"=== {name} ===", *(f"{prompt}{text}\n---" for text in samples), ""]
    write_text_atomically(output / "samples.txt", "\n".join(lines))
    results = {"provenance": provenance(), "models": {name: asdict(summary) for name, summary in summaries.items()}}
    write_text_atomically(output / "demo.json", json.dumps(results, indent=1) + "\n")
    forms = {
        "parameters": ",",
        "validation_loss": ".4f",
        "validation_bits_per_byte": ".4f",
        "tokens_per_second": ",.0f",
    }
    rows = [[format(getattr(run, name) or 0, form) for name, form in forms.items()] for run in summaries.values()]
    print_table(("parameters", "nats/token", "bits/byte", "tokens/s"), list(summaries), rows)
    print(f"\nfigure, samples, checkpoints and metrics are in {output}\n")
    name, model = next(iter(models.items()))
    print(f"{name}:", flush=True)
    continuation(model, tokenizer, prompt, Sampling(tokens, seed=1), stream=True)
