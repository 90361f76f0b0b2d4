"""What a run of RegBench is at each budget."""

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from tessera.experiments.experiment import Choice, Run, chosen
from tessera.experiments.fit import FitOptions
from tessera.experiments.language_models import LANGUAGE_MODELS, kernel_names
from tessera.tasks.regbench.plot import COUNTING
from tessera.tasks.regbench.published import SEARCH_GRID, SPARSE_SIZES

MOSAICS = ("mosaic", "mosaic_v2")
KERNELS = (
    "gaussian",
    "sparsemax",
    "biweight",
    "triweight",
    "relumax",
    "normalized_relu",
    "gaussian_knn",
    "uniform_knn",
)


@dataclass(frozen=True)
class Setting:
    """One training, apart from the model and its data.

    Attributes:
        hidden_size, num_layers, num_heads: of the transformer whose size every model has.
        batch, steps, epochs: problems per step, and how many steps; none means that the epochs decide.
        learning_rate, weight_decay, scalar_scale, beta_2: see `FitOptions`; cosine decay to a tenth after warm-up over
            a tenth of the steps.
        checks: validations, evenly spread. validation, test: problems of held-out automata.
    """

    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 8
    batch: int = 32
    steps: int = 0
    epochs: int = 200
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    scalar_scale: float = 10.0
    beta_2: float = 0.999
    checks: int = 200
    validation: int = 500
    test: int = 1000

    def options(self, problems: int) -> FitOptions:
        """Of a training on so many problems."""
        steps = self.steps or self.epochs * (problems // min(self.batch, problems))
        return FitOptions(
            steps=steps,
            learning_rate=self.learning_rate,
            min_learning_rate=0.1 * self.learning_rate,
            weight_decay=self.weight_decay,
            betas=(0.9, self.beta_2),
            clip_norm=1.0,
            scalar_scale=self.scalar_scale,
            check_every=max(1, steps // self.checks),
        )


# Published; its code keeps a tenth of the scalars that we keep, hence the scale of 10.
FULL = Setting()
# One of the 200 epochs, at half the width and heads. Batches of two at ten times the rate make up for most of it in
# accuracy: at equal cost they came out above batches of four and eight, and above twice the width and heads.
CPU = Setting(
    hidden_size=64,
    num_heads=4,
    batch=2,
    epochs=1,
    learning_rate=5e-3,
    beta_2=0.98,
    checks=2,
    validation=100,
    test=500,
)
# The same for longer: what the reduction costs.
LONGER = replace(CPU, epochs=8, learning_rate=3e-3, checks=8)
SMOKE = Setting(hidden_size=16, num_heads=2, batch=4, steps=2, learning_rate=5e-3, checks=1, validation=4, test=4)

SETTINGS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
SIZES = {"smoke": ((12,), 1), "cpu": ((1000, 2500), 2)}  # training problems, seeds


def runs_of(choice: Choice) -> list[Run]:
    """The runs of a choice, the most telling first."""
    where = "reproduce regbench"
    models = chosen(where, "models", (*LANGUAGE_MODELS, COUNTING), choice.models, _default_models(choice.budget))
    kernels = chosen(where, "kernels", tuple(kernel_names()), choice.kernels, ())
    pairs = [
        (model, kernel) for model in models if model != COUNTING for kernel in _kernels(model, kernels, choice.budget)
    ]
    yardstick = [_run(SETTINGS[choice.budget], COUNTING, "", 0, 0)] if COUNTING in models else []
    if choice.budget != "full":
        setting, sizes, seeds = SETTINGS[choice.budget], *SIZES[choice.budget]
        order = product(sizes, range(choice.seeds or seeds), pairs)
        done = yardstick + [_run(setting, *pair, problems, seed) for problems, seed, pair in order]
        return done + longer_runs(pairs) if choice.budget == "cpu" else done
    order = product((100, *SPARSE_SIZES), range(choice.seeds or 1), pairs)
    return yardstick + [
        _run(setting, *pair, problems, seed, searched=True)
        for problems, seed, pair in order
        for setting in _searched(*pair)
    ]


def longer_runs(pairs: list[tuple[str, str]]) -> list[Run]:
    """One training of the first mosaic chosen that is as long as time allows."""
    mosaics = [pair for pair in pairs if pair[0] == "mosaic"][:1]
    return [_run(LONGER, *pair, 1000, 0, label=f"{LONGER.epochs} epochs") for pair in mosaics]


def _default_models(budget: str) -> tuple[str, ...]:
    return (COUNTING, "mosaic", "transformer") if budget == "cpu" else (COUNTING, *LANGUAGE_MODELS)


def _kernels(model: str, asked: list[str], budget: str) -> list[str]:
    if model not in MOSAICS:
        return [""]
    if asked:
        return asked
    return list(KERNELS) if model == "mosaic" and budget != "smoke" else ["gaussian"]


def _searched(model: str, kernel: str) -> list[Setting]:
    """The published grid; other kernels take what the search found for the Gaussian one."""
    if model == "mosaic" and kernel != "gaussian":
        return [FULL]
    grid = [dict(zip(SEARCH_GRID, values, strict=True)) for values in product(*SEARCH_GRID.values())]
    return [Setting(**point) for point in grid if point["hidden_size"] % point["num_heads"] == 0]


def _run(
    setting: Setting, model: str, kernel: str, problems: int, seed: int, searched: bool = False, label: str = ""
) -> Run:
    name = f"{model} {kernel}".strip() + (f", {label}" if label else "")
    grid = (
        f"{setting.num_layers} layers, {setting.num_heads} heads, width {setting.hidden_size}, "
        f"decay {setting.weight_decay}/"
    )
    options = setting.options(max(1, problems))
    configuration: dict[str, Any] = {
        "model": model,
        "kernel": kernel,
        "problems": problems,
        "seed": seed,
        **asdict(setting),
        "fit": asdict(options),
    }
    if label:
        configuration["label"] = label
    slow = 2.0 if "knn" in kernel else 1.0
    cost = slow * options.steps * setting.batch * setting.hidden_size * setting.num_layers
    return Run(f"{name}/{problems}/{grid * searched}seed {seed}", configuration, float(cost))
