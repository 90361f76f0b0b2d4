"""Three moons (Memory Mosaics, section 5): one memory of all moons against one memory for each."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tessera.base.errors import expect
from tessera.base.random_numbers import random_numbers_kept
from tessera.kernels.rows import Workspace
from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.models.sizes import num_parameters
from tessera.papers.experiment import Run, RunContext, RunSelection, seed_by_seed
from tessera.papers.three_moons.task import HELD_OUT, TRAINING, Periods, ThreeMoons, deviation
from tessera.training.fit import FitOptions, fit

INVERSE_BANDWIDTH = 50.0  # the paper's
MATRICES = ("W_phi", "W_psi", "W_z")
# Names of triples: that of the published figures, one of training whose common period is, like the held-out one's,
# twice its longest period, and the held-out one.
TRIPLES: dict[str, Periods] = {"published": (0.5, 1.0, 2.5), "training": (1.5, 2.0, 3.0), "held out": HELD_OUT[0]}
# Sequences and contexts done together: their scores stay in the second-level cache.
SEQUENCES = 8
CONTEXTS = 64


@dataclass(frozen=True)
class Evaluation:
    """`horizon` predictions after every context length up to `contexts`, over `sequences` of each triple of periods."""

    sequences: int
    contexts: int
    horizon: int
    triples: dict[str, tuple[float, float, float]]


@dataclass(frozen=True)
class Round:
    """A training and its evaluation; `fit` None trains nothing.

    Attributes:
        batch_size: sequences per step. loss_from: observations that the loss leaves out. first_step: where its
            sequences begin to be drawn.
    """

    batch_size: int
    loss_from: int
    first_step: int
    fit: FitOptions | None
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class MoonSettings:
    """One memory, trained in two rounds.

    The published loss counts the steps at which the memories are nearly empty, and they make most of what remains of
    it. The second round, which is ours (few sequences, a fresh optimizer, the loss from `loss_from` observations on),
    shows how much of the error after the first one is owed to them.

    Attributes:
        num_heads: that share three complex dimensions; 0 repeats the last observation.
        length: observations of a training sequence.
        bias_correction: whether AdamW corrects the bias of its averages (the published framework's does not).
        identity: of `MATRICES`, those that are fixed to the identity; all three: nothing is trained.
        is_complex: 3 x 3 complex matrices; else 6 x 6 real ones.
        clip: of the error in the loss; None is none.
    """

    num_heads: int = 3
    seed: int = 0
    length: int = 800
    inverse_bandwidth: float = INVERSE_BANDWIDTH
    bias_correction: bool = False
    identity: tuple[str, ...] = ()
    is_complex: bool = True
    clip: float | None = 0.5
    first_round: Round
    second_round: Round | None

    def run(self, name: str, seed: int) -> Run:
        """The run of one of `VARIANTS` in a budget that trains three heads with these settings."""
        variant = VARIANTS[name]
        settings, first = replace(self, seed=seed, **variant.changes), self.first_round
        is_trained = len(settings.identity) < len(MATRICES)
        assert first.fit is not None, "a budget trains"
        rate = first.fit.learning_rate * variant.rate
        fit = replace(first.fit, learning_rate=rate) if is_trained else None
        second = self.second_round if is_trained else None
        settings = replace(settings, first_round=replace(first, fit=fit), second_round=second)
        return Run(f"{name}/seed {seed}", settings, cost=(1.0 + 5.0 * is_trained) * (0.4 + settings.num_heads))


class Variant(NamedTuple):
    """A row of the table: how its settings differ from the budget's, and its share of the published learning rate."""

    title: str
    changes: Mapping[str, Any] = {}
    rate: float = 1.0


VARIANTS = {
    "three_heads": Variant("3 heads"),
    "one_head": Variant("1 head", {"num_heads": 1}),
    "three_heads_identity": Variant("3 heads, identity matrices", {"identity": MATRICES}),
    "one_head_identity": Variant("1 head, identity matrices", {"num_heads": 1, "identity": MATRICES}),
    "repeat_last": Variant("last observation repeated", {"num_heads": 0, "identity": MATRICES}),
    "three_heads_corrected": Variant("3 heads, AdamW with bias correction", {"bias_correction": True}),
    "one_head_corrected": Variant("1 head, AdamW with bias correction", {"num_heads": 1, "bias_correction": True}),
    "three_heads_slow": Variant("3 heads, 0.3 of the learning rate", rate=0.3),
    # The ablations of the paper's appendix A.
    "three_heads_identity_phi": Variant("3 heads, W_phi = 1", {"identity": ("W_phi",)}),
    "three_heads_identity_psi": Variant("3 heads, W_psi = 1", {"identity": ("W_psi",)}),
    "three_heads_identity_z": Variant("3 heads, W_z = 1", {"identity": ("W_z",)}),
    "three_heads_real": Variant("3 heads, real matrices", {"is_complex": False}),
    "three_heads_unclipped": Variant("3 heads, loss not clipped", {"clip": None}),
}
# The others are there for who asks for them: what they answer is about training, not about memories.
DEFAULT = ("three_heads", "one_head", "three_heads_identity", "one_head_identity", "repeat_last")
_EVALUATION = Evaluation(512, 775, 25, TRIPLES)
_FIT = FitOptions(500, 1e-2, 5e-6, warmup_ratio=0.0, decay="linear")
CPU = MoonSettings(
    first_round=Round(64, 0, 0, _FIT, _EVALUATION),
    second_round=Round(8, 200, 500, replace(_FIT, steps=300, learning_rate=5e-2), replace(_EVALUATION, sequences=64)),
)
_FEW = Evaluation(4, 60, 5, TRIPLES)
SMOKE = replace(
    CPU,
    length=60,
    first_round=Round(4, 0, 0, replace(_FIT, steps=6), _FEW),
    second_round=Round(8, 20, 6, replace(_FIT, steps=3, learning_rate=5e-2), _FEW),
)
BUDGETS = {"smoke": SMOKE, "cpu": CPU}
SEEDS = {"smoke": 1, "cpu": 5}


def plan(selection: RunSelection) -> list[Run]:
    """Seed by seed; what is not trained has one."""
    runs = seed_by_seed(selection, BUDGETS, SEEDS, DEFAULT)
    return [run for run in runs if run.configuration.seed == 0 or run.configuration.first_round.fit]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Both rounds of training, each evaluated."""
    settings = run.configuration
    memory = build(settings) if settings.num_heads else None
    outcome = {"first_round": _round(memory, settings, settings.first_round, "training", context)}
    if settings.second_round:
        outcome["second_round"] = _round(memory, settings, settings.second_round, "second round", context)
    trained = [layer for layer in layers(memory).values() if layer.weight.requires_grad] if memory else []
    return {**outcome, "real_parameters": sum(map(num_parameters, trained))}


def _round(
    memory: LinearContextualMemory | None, settings: MoonSettings, training: Round, name: str, context: RunContext
) -> dict[str, Any]:
    """Train further, and evaluate."""
    outcome: dict[str, Any] = {}
    if training.fit:
        assert memory is not None, "repeating the last observation is not trained"
        loss = partial(batch_loss, memory, ThreeMoons(context=settings.length, horizon=1), settings, training)
        options: dict[str, Any] = {"report": context.report, "name": name}
        if not settings.bias_correction:
            options["rate_factor"] = partial(uncorrected, training.fit.betas)
        outcome = fit(memory, loss, training.fit, context.folder, **options).outcome()
    if memory is not None:
        outcome["weights"] = weights(memory)
    return {**outcome, "errors": evaluate(memory, training.evaluation, context)}


def build(settings: MoonSettings) -> LinearContextualMemory:
    """A memory whose heads share three complex dimensions; `seed` decides its first weights."""
    with random_numbers_kept():
        torch.manual_seed(settings.seed)
        memory = LinearContextualMemory(
            6,
            settings.num_heads,
            6 // settings.num_heads,
            complex_numbers=settings.is_complex,
            inverse_bandwidth=settings.inverse_bandwidth,
            backend="chunked",  # narrow heads: PyTorch's fused attention is several times slower on CPUs
        )
    for name in settings.identity:
        weight = layers(memory)[name].weight.requires_grad_(False)
        weight.copy_(torch.eye(len(weight)))
    return memory


def layers(memory: LinearContextualMemory) -> dict[str, nn.Linear]:
    """The layers of the three matrices by their names in the paper."""
    assert memory.output is not None, "the experiment's memories have an output layer"
    return {"W_phi": memory.key_extractor, "W_psi": memory.value_extractor, "W_z": memory.output}


def weights(memory: LinearContextualMemory) -> dict[str, list]:
    """The three matrices, JSON-ready: [real, imaginary] for each complex entry, a number for each real one."""
    matrices = {name: layer.weight.detach() for name, layer in layers(memory).items()}
    return {name: (torch.view_as_real(x) if x.is_complex() else x).tolist() for name, x in matrices.items()}


def batch_loss(
    memory: LinearContextualMemory, task: ThreeMoons, settings: MoonSettings, part: Round, step: int
) -> Tensor:
    """`mean(clip(z_T - x_{T+1}, -clip, clip)^2)` over the positions T > `loss_from` of the sequences of one step.

    Clipped, because an almost empty memory cannot predict and training must not try.
    """
    examples = task.sample(part.batch_size, settings.seed * 1_000_000 + part.first_step + step)
    x = torch.cat([examples.observations, examples.future], 1)
    predictions, _ = memory(x[:, :-1])
    error = (predictions - x[:, 1:])[:, part.loss_from :]
    return (error if settings.clip is None else error.clamp(-settings.clip, settings.clip)).square().mean()


def uncorrected(betas: tuple[float, float], step: int) -> float:
    """The factor of the learning rate that makes AdamW one without bias correction.

    The published code's framework corrects no bias unless asked to, and it was not: its first steps are up to 6.6
    times as long as those of the same learning rate in PyTorch, and twice as long after 300 steps.
    """
    first, second = (1 - beta ** (step + 1) for beta in betas)
    return first / second**0.5


def evaluate(
    memory: LinearContextualMemory | None, evaluation: Evaluation, context: RunContext
) -> dict[str, dict[str, Any]]:
    """Of each triple the mean error after every context length, and its standard error over sequences.

    None repeats the last observation.
    """
    errors_of = {}
    for name, periods in evaluation.triples.items():
        context.report(1.0, f"evaluation, {name} triple")
        task = ThreeMoons(evaluation.contexts, evaluation.horizon, periods)
        examples = task.sample(evaluation.sequences, 0, "train" if periods in TRAINING else "test")
        x = torch.cat([examples.observations, examples.future], 1)
        measure = repetition_errors if memory is None else partial(continuation_errors, memory)
        errors = measure(x, evaluation.horizon).double()
        errors_of[name] = {
            "periods": periods,
            "mean": [round(value, 5) for value in errors.mean(0).tolist()],
            "standard_error": [round(value, 5) for value in (errors.std(0) / len(errors) ** 0.5).tolist()],
        }
    return errors_of


@torch.no_grad()
def continuation_errors(memory: LinearContextualMemory, x: Tensor, horizon: int) -> Tensor:
    """Mean absolute deviation of `horizon` predictions from what follows, for each sequence and context length.

    For x (B, T, input) the result is (B, T - horizon): entry C - 1 is for the context x_1..x_C, continued by the memory
    reading its own predictions (as its `generate` does) and compared with x_{C+1}..x_{C+horizon}.
    """
    expect(bool(memory.window.delay == 1), "continuation_errors", "memory", "have delay 1", memory.window.delay)
    contexts = x.shape[1] - horizon
    errors = x.new_empty(x.shape[0], contexts)
    workspace = Workspace()
    for rows in torch.arange(x.shape[0]).split(SEQUENCES):
        group = x[rows]
        # Row C - 1: the observations after x_C.
        future = group[:, 1:].unfold(1, horizon, 1).mT
        # The longest contexts first: they set the size of the reused memory.
        for first in reversed(range(0, contexts, CONTEXTS)):
            cut = slice(first, min(first + CONTEXTS, contexts))
            errors[rows, cut] = deviation(_continue(memory, group, cut, horizon, workspace), future[:, cut])
    return errors


def repetition_errors(x: Tensor, horizon: int) -> Tensor:
    """The same of who repeats the last observation of each context."""
    future = x[:, 1:].unfold(1, horizon, 1).mT
    return deviation(x[:, : future.shape[1], None].expand_as(future), future)


def _continue(memory: LinearContextualMemory, x: Tensor, cut: slice, horizon: int, workspace: Workspace) -> Tensor:
    """Predictions (B, C, horizon, input) after each of the C contexts x_1..x_{c+1}, c in `cut`.

    Context c has read x_1..x_{c+1} and holds the pairs 1..c, which all contexts share, and those that its own
    predictions completed. Its scores against both are one row.
    """
    kernel: Any = memory.kernel
    scoring, shared = memory.scores(x), cut.stop - 1
    keys, values = memory.features(x[:, : cut.stop])
    queries = memory.features(x[:, cut])[0]
    # (B H, width, N + horizon): with empty columns where each context's own pairs go.
    shared_keys = pad(keys[:, :, :-1].flatten(0, 1).mT, (0, horizon))
    shared_values = pad(values[:, :, 1:].flatten(0, 1).mT, (0, horizon))
    own_keys, own_values = (
        x.new_empty(len(shared_keys), queries.shape[2], horizon, part.shape[-1]) for part in (keys, values)
    )
    # The pairs before the cut are seen by all its contexts, the later ones by some.
    hidden = torch.arange(cut.start, shared) >= torch.arange(cut.start, cut.stop)[:, None]
    predictions: list[Tensor] = []
    for own in range(horizon):
        if own:
            own_keys[:, :, own - 1] = queries.flatten(0, 1)
            queries, values = memory.features(predictions[-1])
            own_values[:, :, own - 1] = values.flatten(0, 1)
        if shared + own == 0:  # a single context of one observation has completed no pair
            predictions.append(memory.combine(torch.zeros_like(values[:, :, :1])))
            continue
        workspace.clear()
        query = queries.flatten(0, 1) * (scoring["slope"] * kernel.score_scale)
        scores = workspace.empty((*query.shape[:2], shared + own), query)
        torch.bmm(query, shared_keys[..., : shared + own], out=scores)
        scores[..., shared:] = (query[:, :, None] * own_keys[:, :, :own]).sum(-1)
        if scoring["intercept"] is not None:
            scores += scoring["intercept"] * kernel.score_scale
        scores[..., cut.start : shared].masked_fill_(hidden, -torch.inf)
        weights, _ = kernel.forward(scores, workspace)
        # Transposed: products with few columns are slow.
        answers = torch.bmm(shared_values[..., : shared + own], weights.mT).mT
        answers = answers + (weights[..., shared:, None] * own_values[:, :, :own]).sum(-2)
        predictions.append(memory.combine(answers.unflatten(0, keys.shape[:2])))
    return torch.stack(predictions, 2)
