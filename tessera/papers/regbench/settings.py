"""RegBench's runs of every budget."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from tessera.kernels import kernel_names
from tessera.papers.experiment import PAPER_KERNELS, Run, RunSelection
from tessera.papers.regbench.published import MOSAIC_GRID, SPARSE_GRID, SPARSE_SIZES
from tessera.training.fit import FitOptions
from tessera.training.optimizer import PUBLISHED_SCALAR_SCALES

NGRAM = "ngram"
KERNEL_NAMES = tuple(kernel_names())
MOSAICS = ("mosaic", "mosaic_v2")
TRAINED = (*MOSAICS, "transformer", "lstm", "mamba", "linear_transformer", "retnet", "gla")
MODELS = (*TRAINED, NGRAM)
HEADLESS = ("lstm", "mamba")
NGRAM_ORDERS = (0, 1, 2, 3)
LOSS_BLOCK = 20  # positions whose losses are averaged
KERNELS = PAPER_KERNELS


@dataclass(frozen=True)
class RegBenchSettings:
    """One training and its test.

    Attributes:
        model: one of `MODELS`; `ngram` counts in each problem and is not trained. kernel: of mosaics, else "".
        num_problems: of training, an automaton each. symbols: of context that `ngram` looks at.
        label: what sets a training apart from the budget's usual one, part of the run's key.
        hidden_size, num_layers, num_heads: of the transformer whose number of parameters every model has.
        batch_size: problems per step. validation, test: problems of held-out automata.
        fit: of the training. dropout, initialization: of mosaics, see `ModelSize`.
    """

    model: str
    kernel: str
    num_problems: int
    seed: int
    hidden_size: int
    num_layers: int
    num_heads: int
    batch_size: int
    validation: int
    test: int
    fit: FitOptions | None = None
    symbols: int = 0
    label: str = ""
    dropout: float = 0.0
    initialization: str = "normal"

    @property
    def name(self) -> str:
        """Model and kernel, as the papers' tables are keyed."""
        return f"{self.model} {self.kernel}".strip()


@dataclass(frozen=True)
class Training:
    """How a budget trains on any number of problems: cosine decay to a tenth after warm-up over a tenth of the steps.

    `steps` 0 means that the epochs decide; `evaluations` on validation problems are evenly spread.
    """

    hidden_size: int = 128
    num_layers: int = 2
    num_heads: int = 8
    batch_size: int = 32
    steps: int = 0
    epochs: int = 200
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    scalar_learning_rate_scale: float = 10.0
    scalar_learning_rate_scales: dict[str, float] = field(default_factory=lambda: dict(PUBLISHED_SCALAR_SCALES))
    beta_2: float = 0.999
    evaluations: int = 200
    validation: int = 500
    test: int = 1000
    dropout: float = 0.05
    initialization: str = "fan_in"

    def run(self, model: str, kernel: str, problems: int, seed: int, label: str = "", is_searched: bool = False) -> Run:
        """One run; the keys of a search say its point."""
        point = f"{self.num_layers} layers, {self.num_heads} heads, width {self.hidden_size}, decay {self.weight_decay}"
        sizes = {name: getattr(self, name) for name in ("hidden_size", "num_layers", "num_heads", "batch_size")}
        settings = RegBenchSettings(
            model, kernel, problems, seed, **sizes, validation=self.validation, test=self.test,
            fit=self._fit(problems) if problems else None, label=label,
            dropout=self.dropout if model == "mosaic" else 0.0,
            initialization=self.initialization if model == "mosaic" else "normal",
        )  # fmt: skip
        steps = settings.fit.steps if settings.fit else 1
        cost = (2.0 if "knn" in kernel else 1.0) * steps * self.batch_size * self.hidden_size * self.num_layers
        name = ", ".join([settings.name, *([label] if label else [])])
        return Run("/".join([name, str(problems), *([point] if is_searched else []), f"seed {seed}"]), settings, cost)

    def _fit(self, problems: int) -> FitOptions:
        steps = self.steps or self.epochs * (problems // min(self.batch_size, problems))
        return FitOptions(
            steps=steps,
            learning_rate=self.learning_rate,
            min_learning_rate=0.1 * self.learning_rate,
            weight_decay=self.weight_decay,
            betas=(0.9, self.beta_2),
            clip=1.0,
            scalar_learning_rate_scale=self.scalar_learning_rate_scale,
            scalar_learning_rate_scales=self.scalar_learning_rate_scales,
            evaluate_every=max(1, steps // self.evaluations),
        )


# Published. What differs: the paper's baselines have grids of their own, which are not printed; here they take the
# mosaic's. Warm-up begins at the peak over its steps (8e-7 for 1,000 problems), in the published code at 1e-6. AdamW's
# second beta is PyTorch's, as no other is named. Scalars that the published code does not have (of Memory Mosaics v2,
# intercepts) learn ten times as fast as the rest.
FULL = Training()
# One of the 200 epochs, at half the width and heads. Batches of two at ten times the rate make up for most of it in
# accuracy: at equal cost they came out above batches of four and eight, and above twice the width and heads.
CPU = Training(
    hidden_size=64, num_heads=4, batch_size=2, epochs=1, learning_rate=5e-3, beta_2=0.98, evaluations=2,
    validation=100, test=500, dropout=0.0, initialization="normal", scalar_learning_rate_scales={},
)  # fmt: skip
# The same for longer, by the number of training problems: 4,000 and 3,750 steps.
LONGER = {
    1000: replace(CPU, epochs=8, learning_rate=3e-3, evaluations=8),
    2500: replace(CPU, epochs=3, learning_rate=3e-3, evaluations=8),
}
# The transformer alone: the paper's has learned to read automata from 2,500 problems, after many more steps.
LONGEST = {2500: replace(CPU, epochs=16, learning_rate=3e-3, evaluations=16)}
# 100 problems, of whose automata the models see new strings afterwards: 2,000 steps. Mamba on request: without its own
# GPU code it takes an hour.
FEWEST = {100: replace(CPU, epochs=40, learning_rate=3e-3, evaluations=10)}
FEWEST_MODELS = (
    ("mosaic", "gaussian"), ("transformer", ""), ("lstm", ""), ("linear_transformer", ""), ("retnet", ""), ("gla", ""),
)  # fmt: skip
SMOKE = Training(
    hidden_size=16, num_heads=2, batch_size=4, steps=2, learning_rate=5e-3, evaluations=1, validation=4, test=4,
    dropout=0.0, initialization="normal", scalar_learning_rate_scales={},
)  # fmt: skip
TRAININGS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
PROBLEMS = {"smoke": 12, "cpu": 1000}
SEEDS = {"smoke": 1, "cpu": 2}


def runs_of(selection: RunSelection) -> list[Run]:
    """The runs of a selection, the most telling first."""
    budget = selection.budget
    default = (NGRAM, "mosaic", "transformer") if budget == "cpu" else (NGRAM, *TRAINED)
    models, kernels = selection.models or default, list(selection.kernels or ())
    pairs = [(model, kernel) for model in models if model != NGRAM for kernel in _kernels(model, kernels, budget)]
    baseline = [_ngram_run(TRAININGS[budget], symbols) for symbols in NGRAM_ORDERS if NGRAM in models]
    if budget == "full":
        return baseline + _search(pairs, selection.seeds or 1)
    seeds = selection.seeds or SEEDS[budget]
    short = [TRAININGS[budget].run(*pair, PROBLEMS[budget], seed) for seed, pair in product(range(seeds), pairs)]
    if budget != "cpu":
        return baseline + short
    in_distribution = [pair for pair in pairs if pair[1] in ("", "gaussian")] if selection.models else FEWEST_MODELS
    return baseline + short + _longer_runs(pairs, seeds) + _fewest_runs(in_distribution, seeds)


def _search(pairs: list[tuple[str, str]], seeds: int) -> list[Run]:
    """The published grid at each published number of problems."""
    order = product((100, *SPARSE_SIZES), range(seeds), pairs)
    return [
        training.run(*pair, problems, seed, is_searched=True)
        for problems, seed, pair in order
        for training in _grid(*pair, problems)
    ]


def _longer_runs(pairs: list[tuple[str, str]], seeds: int) -> list[Run]:
    """Trainings of equal length on more and on less data: what the short ones leave to be learned."""
    order = [*product(range(seeds), LONGER.items(), pairs)]
    order += [(0, item, ("transformer", "")) for item in LONGEST.items() if ("transformer", "") in pairs]
    return [
        training.run(*pair, problems, seed, label=f"{training.epochs} epochs")
        for seed, (problems, training), pair in order
    ]


def _fewest_runs(pairs: Sequence[tuple[str, str]], seeds: int) -> list[Run]:
    """Trainings on so few automata that their languages may be learned by heart."""
    order = product(range(seeds), FEWEST.items(), pairs)
    return [
        training.run(*pair, problems, seed, label=f"{training.epochs} epochs")
        for seed, (problems, training), pair in order
    ]


def _ngram_run(training: Training, symbols: int) -> Run:
    """Counting what followed the last `symbols` symbols: what a model can reach that looks no further back."""
    run = training.run(NGRAM, "", 0, 0, label=f"{symbols} symbol{'s' * (symbols != 1)} of context")
    return replace(run, configuration=replace(run.configuration, symbols=symbols))


def _kernels(model: str, names: list[str], budget: str) -> list[str]:
    if model not in MOSAICS:
        return [""]
    return names or (list(KERNELS) if model == "mosaic" and budget != "smoke" else ["gaussian"])


def _grid(model: str, kernel: str, problems: int) -> list[Training]:
    """The grid of the paper with so many problems; other kernels take what the search found for the Gaussian one."""
    if model == "mosaic" and kernel != "gaussian":
        return [FULL]
    grid = SPARSE_GRID if problems in SPARSE_SIZES else MOSAIC_GRID
    points = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    trainings = [Training(**point) for point in points if point["hidden_size"] % point["num_heads"] == 0]
    return [one for one in trainings if model not in HEADLESS or one.num_heads == FULL.num_heads]
