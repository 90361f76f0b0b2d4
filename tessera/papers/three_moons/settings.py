"""The memories of three moons, how a budget trains them, and what is evaluated."""

from dataclasses import dataclass, field, replace
from typing import Any

from tessera.papers.experiment import Run
from tessera.papers.three_moons.task import HELD_OUT, Periods
from tessera.training.fit import FitOptions

INVERSE_BANDWIDTH = 50.0  # the paper's
MATRICES = ("W_phi", "W_psi", "W_z")
# Names of triples: that of the published figures, one of training whose common period is, like the held-out one's,
# twice its longest period, and the held-out one.
TRIPLES: dict[str, Periods] = {"published": (0.5, 1.0, 2.5), "training": (1.5, 2.0, 3.0), "held out": HELD_OUT[0]}


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


@dataclass(frozen=True)
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

    num_heads: int
    seed: int
    length: int
    inverse_bandwidth: float
    bias_correction: bool
    identity: tuple[str, ...]
    is_complex: bool
    clip: float | None
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


@dataclass(frozen=True)
class Variant:
    """A row of the table: how its settings differ from the budget's, and its share of the published learning rate."""

    title: str
    changes: dict[str, Any] = field(default_factory=dict)
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
# The first round is as published.
CPU = MoonSettings(
    num_heads=3,
    seed=0,
    length=800,
    inverse_bandwidth=INVERSE_BANDWIDTH,
    bias_correction=False,
    identity=(),
    is_complex=True,
    clip=0.5,
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
