"""The demo: a small Memory Mosaic and the transformer of equal size, trained on the same stories and compared."""

from dataclasses import dataclass
from pathlib import Path

from tessera.base.errors import expect
from tessera.base.files import writing
from tessera.base.locks import held
from tessera.models.saving.loading import load_tokenizer
from tessera.recipes.recipe import read_recipe
from tessera.tools.demo_report import write_report
from tessera.training.folder import delete_run
from tessera.training.metrics import MetricsFile
from tessera.training.run import train
from tessera.training.time_estimate import evaluation_in_steps

RECIPES = {"Memory Mosaic": "demo-mosaic", "transformer, RoPE": "demo-transformer"}
TRIAL_STEPS, EVALUATIONS = 4, 10
TRIAL = ("training.log_every=1", "training.evaluate_sequences=1", "training.checkpoint_every=4")


@dataclass(frozen=True)
class Demo:
    """Where the demo writes, changes to both recipes, minutes for training at most, and how the samples begin."""

    output: Path
    overrides: list[str]
    minutes: float
    prompt: str

    def run(self) -> None:
        """Train both, then write and print what came out.

        Raises:
            TesseraError: impossible overrides, a prompt that fills the context, or an output that cannot be written.
        """
        for recipe in RECIPES.values():
            read_recipe(recipe, self.overrides)  # mistakes are said before anything is made
        with writing(self.output, "output folder", "Use --output."):
            self.output.mkdir(parents=True, exist_ok=True)
        with held(self.output / "demo.lock", "Wait for it, or use another --output."):
            print("Memory Mosaic and transformer on the bundled stories: measuring this machine ...", flush=True)
            overrides = [*self.overrides, *_schedule(affordable_steps(self))]
            summaries = {}
            for name, recipe in RECIPES.items():
                folder = self.output / recipe.removeprefix("demo-")
                summaries[name] = train(read_recipe(recipe, overrides), folder, overwrite=True)
            write_report(summaries, self.output, self.prompt)


def affordable_steps(demo: Demo) -> int | None:
    """None when the recipes' steps fit into the time; else how many do, measured on a few steps of each model."""
    section = read_recipe(next(iter(RECIPES.values())), demo.overrides).training
    seconds = sum(seconds_per_step(recipe, demo) for recipe in RECIPES.values())
    evaluating = EVALUATIONS * evaluation_in_steps(section.evaluate_sequences, section.batch_size)
    steps, affordable = section.steps, int(60 * demo.minutes / seconds - evaluating)
    if affordable >= steps:
        return None
    affordable = max(affordable, TRIAL_STEPS)
    print(
        f"{steps} steps of both would take {seconds * (steps + evaluating) / 60:.1f} minutes here: "
        f"training {affordable} of them"
    )
    return affordable


def seconds_per_step(recipe: str, demo: Demo) -> float:
    """Time of a training step, the fastest of a trial run's after the first; the trial is deleted."""
    folder = demo.output / "trial"
    plan = read_recipe(recipe, [*demo.overrides, *_schedule(TRIAL_STEPS), *TRIAL])
    try:
        train(plan, folder, overwrite=True, progress=False)
        length = len(load_tokenizer(folder)(demo.prompt, add_special_tokens=False)["input_ids"])
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
