"""Train a small Memory Mosaic and the transformer of equal size on the same stories, and compare them.

Writes runs/demo: the two runs (configurations, safetensors checkpoints, metrics as JSON lines), loss.png, samples.txt
and demo.json; prints a table and a story as it is generated. Takes a few minutes on two cores; on a slower machine
both models train for fewer steps, so that it ends within --minutes.
"""

import argparse
from pathlib import Path

from tessera.cli.arguments import positive_float

RECIPES = {"Memory Mosaic": "demo-mosaic", "transformer": "demo-transformer"}
TRIAL_STEPS, EVALUATIONS = 4, 10
TRIAL = ("training.log_every=1", "training.evaluate_sequences=1", "training.checkpoint_every=4")
PROMPT = "Once upon a time there was a king who had three daughters, and the youngest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera demo`."""
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="changes to both recipes, with dotted keys"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="default: runs/demo")
    parser.add_argument("--minutes", type=positive_float, default=5.5, help="time for training, at most (default: 5.5)")
    parser.add_argument("--prompt", default=PROMPT, help="beginning of the samples")


def run(arguments: argparse.Namespace) -> int:
    """Train both, then write and print what came out."""
    from tessera.files import writing
    from tessera.locks import held
    from tessera.training.recipe import read_recipe

    for recipe in RECIPES.values():
        read_recipe(recipe, arguments.overrides)  # mistakes are said before anything is made
    with writing(arguments.output, "output folder", "Use --output."):
        arguments.output.mkdir(parents=True, exist_ok=True)
    with held(arguments.output / "demo.lock", "Wait for it, or use another --output."):
        _train_and_compare(arguments)
    return 0


def _train_and_compare(arguments: argparse.Namespace) -> None:
    from tessera.cli.demo_report import write_report
    from tessera.training.recipe import read_recipe
    from tessera.training.run import train

    print("Memory Mosaic and transformer on the bundled stories: measuring this machine ...", flush=True)
    steps = affordable_steps(arguments)
    overrides = [*arguments.overrides, *_schedule(steps)]
    summaries = {}
    for name, recipe in RECIPES.items():
        folder = arguments.output / recipe.removeprefix("demo-")
        summaries[name] = train(read_recipe(recipe, overrides), folder, overwrite=True)
    write_report(summaries, arguments.output, arguments.prompt)


def affordable_steps(arguments: argparse.Namespace) -> int | None:
    """None when the recipes' steps fit into the time; else how many do, measured on a few steps of each model."""
    from tessera.training.recipe import read_recipe

    plans = [read_recipe(recipe, arguments.overrides) for recipe in RECIPES.values()]
    seconds = sum(seconds_per_step(recipe, arguments) for recipe in RECIPES.values())
    section = plans[0].training
    # an evaluation is forward passes only, a third of the arithmetic of training on as many sequences
    evaluating = EVALUATIONS * section.evaluate_sequences / section.batch_size / 3
    steps, affordable = section.steps, int(60 * arguments.minutes / seconds - evaluating)
    if affordable >= steps:
        return None
    affordable = max(affordable, TRIAL_STEPS)
    print(
        f"{steps} steps of both would take {seconds * (steps + evaluating) / 60:.1f} minutes here: "
        f"training {affordable} of them"
    )
    return affordable


def seconds_per_step(recipe: str, arguments: argparse.Namespace) -> float:
    """Time of a training step, the fastest of a trial run's after the first; the trial is deleted."""
    from tessera.training.folder import delete_run
    from tessera.training.metrics import MetricsFile
    from tessera.training.recipe import read_recipe
    from tessera.training.run import train

    folder = arguments.output / "trial"
    plan = read_recipe(recipe, [*arguments.overrides, *_schedule(TRIAL_STEPS), *TRIAL])
    try:
        train(plan, folder, overwrite=True, progress=False)
        lines = MetricsFile(folder / "metrics.jsonl").read()
    finally:
        delete_run(folder)
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
