"""RegBench: which models learn regular languages from the context, and from how many examples they learn to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from tessera.base.precision import autocast, resolve_precision
from tessera.evaluation.loss import loss_by_position
from tessera.evaluation.task_scores import scores_of_batch
from tessera.models.sizes import num_parameters
from tessera.papers.experiment import PAPER_KERNELS, WITH_KERNELS, Run, RunContext, RunSelection
from tessera.papers.regbench.task import RegBench, ngram_log_probabilities
from tessera.papers.task_stage import small_model
from tessera.tasks.task import Estimate, TokenExamples, estimate
from tessera.training.fit import FitOptions, fit

NGRAM = "ngram"  # counts in each problem and is not trained
LOSS_BLOCK = 20  # positions whose losses are averaged
MODELS = (*WITH_KERNELS, *"transformer transformer_rope lstm mamba linear_transformer retnet gla".split(), NGRAM)
# Those of each budget that are trained unless others are asked for.
DEFAULTS: dict[str, tuple[str, ...]] = {
    "smoke": MODELS,
    "cpu": (NGRAM, "mosaic", "transformer"),
    "long": ("transformer_rope", "transformer", "mosaic"),
}
NGRAM_ORDERS = (0, 1, 2, 3)
SEEDS = {"smoke": 1, "cpu": 2, "long": 1}
# Width, layers, heads, peak rate; a model is shown at each of them.
LONG_SIZES = ((256, 8, 8, 5e-4), (256, 8, 8, 2e-4), (128, 2, 8, 5e-4), (128, 4, 8, 1e-3))
# Lengths are moved by up to this share before they are sorted, so that the batches of each epoch are others.
JITTER = 0.1
ROWS_AT_ONCE = 32


class Training(NamedTuple):
    """How long a model is trained on so many problems; `evaluations` on validation problems are evenly spread."""

    problems: int
    epochs: int
    learning_rate: float
    evaluations: int


@dataclass(frozen=True)
class RegBenchSettings:
    """One training and its test.

    Attributes:
        kernel: of mosaics, else "". num_problems: of training, an automaton each.
        hidden_size, num_layers, num_heads: of the transformer whose number of parameters every model has.
        batch_size: problems per step. validation, test: problems of held-out automata. fit: None for `ngram`, and
            symbols: of context that it looks at.
        dropout: while training. precision: of training, see `resolve_precision`; the test is in float32.
        label: what sets a training apart from the budget's usual one, part of the run's key.
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
    precision: str = "fp32"

    @property
    def name(self) -> str:
        """Model and kernel, as the papers' tables are keyed."""
        return f"{self.model} {self.kernel}".strip()

    def run(self, model: str, kernel: str, training: Training, seed: int, label: str = "") -> Run:
        """The same for another model and training: cosine decay to a tenth after warm-up over a tenth of the steps."""
        assert self.fit is not None, "a budget has the fit of its trainings"
        problems, epochs, rate, evaluations = training
        steps = epochs * (problems // min(self.batch_size, problems))
        fit = replace(self.fit, steps=steps, learning_rate=rate, min_learning_rate=0.1 * rate,
                      evaluate_every=max(1, steps // evaluations))  # fmt: skip
        settings = replace(self, model=model, kernel=kernel, num_problems=problems, seed=seed, fit=fit, label=label)
        return settings.as_run()

    def ngram_run(self, symbols: int) -> Run:
        """Counting what followed the last `symbols` symbols: what a model can reach that looks no further back."""
        label = f"{symbols} symbol{'s' * (symbols != 1)} of context"
        return replace(self, model=NGRAM, kernel="", num_problems=0, fit=None, symbols=symbols, label=label).as_run()

    def as_run(self) -> Run:
        """The run of these settings."""
        steps = self.fit.steps if self.fit else 1
        cost = (2.0 if "knn" in self.kernel else 1.0) * steps * self.batch_size * self.hidden_size * self.num_layers
        name = ", ".join(filter(None, (self.name, self.label)))
        return Run(f"{name}/{self.num_problems}/seed {self.seed}", self, cost)


# At half the published width and heads. Batches of two at ten times the rate make up for most of it in accuracy: at
# equal cost they came out above batches of four and eight, and above twice the width and heads.
_CPU = RegBenchSettings(
    "mosaic", "gaussian", 0, 0, hidden_size=64, num_layers=2, num_heads=4, batch_size=2, validation=100, test=500,
    fit=FitOptions(1, 1.0, weight_decay=0.01, betas=(0.9, 0.98), clip=1.0, scalar_learning_rate_scale=10.0),
)  # fmt: skip
# As published but for the width and depth, which are searched, as are the rates; for a GPU.
_LONG = replace(_CPU, batch_size=32, validation=200, test=1000, dropout=0.1, precision="auto")
_SMOKE = replace(_CPU, hidden_size=16, num_heads=2, batch_size=4, validation=4, test=4)
BUDGETS = {"smoke": _SMOKE, "cpu": _CPU, "long": _LONG}
# Of the 200 published epochs one.
TRAININGS = {"smoke": Training(12, 1, 5e-3, 1), "cpu": Training(1000, 1, 5e-3, 2)}
# Trainings of equal length on more and on less data, what the short ones leave to be learned: 4,000 and 3,750 steps.
LONGER = (Training(1000, 8, 3e-3, 8), Training(2500, 3, 3e-3, 8))
# The transformer alone: the paper's has learned to read automata from 2,500 problems, after many more steps.
LONGEST = Training(2500, 16, 3e-3, 16)
LONGEST_ON_GPU = Training(2500, 100, 5e-4, 20)  # at the rates of `LONG_SIZES`
# 100 problems, so few automata that their languages may be learned by heart; the models see new strings of them
# afterwards: 2,000 steps. Mamba on request: without its own GPU code it takes an hour.
FEWEST = Training(100, 40, 3e-3, 10)
FEWEST_MODELS = (
    ("mosaic", "gaussian"), ("transformer", ""), ("lstm", ""), ("linear_transformer", ""), ("retnet", ""), ("gla", ""),
)  # fmt: skip


def plan(selection: RunSelection) -> list[Run]:
    """The most telling first: all kernels and the transformer at 1,000 problems, other seeds, more problems.

    "long": each model at each size and rate, on as many problems as the paper's transformer needs.
    """
    name = selection.budget
    models = selection.models or DEFAULTS[name]
    pairs = [(model, k) for model in models if model != NGRAM for k in _kernels(model, selection.kernels, name)]
    budget, seeds = BUDGETS[name], range(selection.seeds or SEEDS[name])
    runs = [budget.ngram_run(symbols) for symbols in NGRAM_ORDERS if NGRAM in models]
    if name == "long":
        for seed, (width, layers, heads, rate), pair in product(seeds, LONG_SIZES, pairs):
            sized = replace(budget, hidden_size=width, num_layers=layers, num_heads=heads)
            training = LONGEST_ON_GPU._replace(learning_rate=rate)
            runs.append(sized.run(*pair, training, seed, f"{layers} x {width}, rate {rate:g}"))
        return runs
    runs += [budget.run(*pair, TRAININGS[name], seed) for seed, pair in product(seeds, pairs)]
    if name != "cpu":
        return runs
    in_distribution = [pair for pair in pairs if pair[1] in ("", "gaussian")] if selection.models else FEWEST_MODELS
    longer = [*product(seeds, LONGER, pairs)]
    longer += [(0, LONGEST, pair) for pair in pairs if pair[0] == "transformer"]
    longer += product(seeds, [FEWEST], in_distribution)
    return runs + [budget.run(*pair, training, seed, f"{training.epochs} epochs") for seed, training, pair in longer]


def _kernels(model: str, names: Sequence[str] | None, budget: str) -> Sequence[str]:
    if model not in WITH_KERNELS:
        return [""]
    return names or (tuple(PAPER_KERNELS) if model == "mosaic" and budget == "cpu" else ["gaussian"])


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on `num_problems` automata; score the best weights on held-out ones and on their fresh strings."""
    settings, task = run.configuration, RegBench()
    held_out = task.sample(settings.test, 0, "test")
    if settings.model == NGRAM:
        log_probabilities = ngram_log_probabilities(task, held_out, settings.symbols)
        return {"parameters": 0, "held_out": _estimates(task.scores(log_probabilities, held_out))}
    train = task.sample(settings.num_problems, settings.seed)
    validation = task.sample(settings.validation, 0, "validation")
    sizes = {"vocab_size": task.vocab_size, "max_positions": task.max_tokens, "kernel": settings.kernel or "gaussian"}
    model = small_model(settings, settings.model, **sizes).to(context.device)
    batches = Batches(task, train, settings.batch_size, settings.seed)
    device = torch.device(context.device).type
    precision = resolve_precision(settings.precision, device)

    def loss_at(step: int) -> Tensor:
        with autocast(precision, device):
            return _output(model, batches.at(step)).loss

    options: dict[str, Any] = {"report": context.report, "validate": lambda: mean_loss(model, task, validation)}
    training = fit(model, loss_at, settings.fit, context.folder, **options)
    fresh = task.fresh_strings(task.select(train, torch.arange(min(settings.test // 2, len(train)))), seed=1)
    return {
        "parameters": num_parameters(model),
        "precision": precision,
        "epochs": round(training.steps / batches.per_epoch, 2),
        "training": training.outcome(),
        "held_out": _estimates(scores_of(model, task, held_out)),
        "held_out_loss_by_block": loss_by_block(model, held_out, LOSS_BLOCK),
        "in_distribution": _estimates(scores_of(model, task, fresh)),
    }


def _estimates(scores: dict[str, Tensor]) -> dict[str, Estimate]:
    """Mean, standard error and count of each score in per cent."""
    return {name: estimate(100 * values) for name, values in scores.items()}


class Batches:
    """Each epoch takes every problem once, in batches of `size` of similar length, in random order.

    A batch is a function of `seed` and the step. Padding goes to the right, as far as the longest of the batch.
    """

    def __init__(self, task: RegBench, examples: TokenExamples, size: int, seed: int):
        self.task, self.examples, self.size, self.seed = task, examples, min(size, len(examples)), seed
        self.per_epoch = len(examples) // self.size
        self._epoch, self._order = -1, torch.empty(0)

    def at(self, step: int) -> TokenExamples:
        """The problems of a step."""
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return self.task.select(self.examples, self._order[index])

    def _shuffled(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        lengths = self.examples.details.lengths
        noise = 1 + JITTER * (2 * torch.rand(len(lengths), generator=generator) - 1)
        # What does not fill a batch is left out of an epoch: another part of the problems each time.
        kept = torch.randperm(len(lengths), generator=generator)[: self.per_epoch * self.size]
        order = kept[(lengths * noise)[kept].argsort()].view(self.per_epoch, self.size)
        return order[torch.randperm(self.per_epoch, generator=generator)]


def _output(model: PreTrainedModel, examples: TokenExamples) -> ModelOutput:
    return model(input_ids=examples.tokens.to(model.device), labels=examples.labels.to(model.device))


def _batches(task: RegBench, examples: TokenExamples) -> Iterator[tuple[Tensor, TokenExamples]]:
    """All rows and the examples there, some at a time, shortest first."""
    for rows in examples.details.lengths.argsort(stable=True).split(ROWS_AT_ONCE):
        yield rows, task.select(examples, rows)


@torch.no_grad()
def mean_loss(model: PreTrainedModel, task: RegBench, examples: TokenExamples) -> float:
    """Cross entropy in nats per symbol over all examples."""
    batches = [batch for _, batch in _batches(task, examples)]
    counts = [int((batch.labels >= 0).sum()) for batch in batches]
    return sum(float(_output(model, batch).loss) * count for batch, count in zip(batches, counts)) / sum(counts)


@torch.no_grad()
def scores_of(model: PreTrainedModel, task: RegBench, examples: TokenExamples) -> dict[str, Tensor]:
    """The task's scores of each example, in the order of the examples."""
    scores: dict[str, Tensor] = {}
    for rows, batch in _batches(task, examples):
        for name, values in scores_of_batch(task, _output(model, batch).logits.cpu(), batch).items():
            scores.setdefault(name, torch.empty(len(examples), dtype=values.dtype))[rows] = values
    return scores


def loss_by_block(model: PreTrainedModel, examples: TokenExamples, block: int, tokens: int = 400) -> list[float]:
    """Cross entropy in nats per symbol over each `block` positions of the first `tokens`; later ones are in few
    problems. As many blocks as hold a label."""
    rows = zip(examples.tokens[:, :tokens], examples.labels[:, :tokens])
    losses = loss_by_position(model, [{"input_ids": row, "labels": labels} for row, labels in rows], batch_size=32)
    pairs = zip(losses.total.split(block), losses.count.split(block))
    return [round(float(total.sum() / count.sum()), 5) for total, count in pairs if count.sum() > 0]
