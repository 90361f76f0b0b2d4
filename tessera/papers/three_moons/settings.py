"""The memories of three moons, how a budget trains them, and what is evaluated."""

from dataclasses import dataclass

from tessera.papers.experiment import Run
from tessera.papers.three_moons import HELD_OUT, Periods
from tessera.papers.three_moons.published import INVERSE_BANDWIDTH, TRIPLE
from tessera.training.fit import FitOptions


@dataclass(frozen=True)
class Variant:
    """One memory: a row of the table.

    Attributes:
        num_heads: that share three complex dimensions; 0 repeats the last observation.
        bias_correction: whether AdamW corrects the bias of its averages (the published framework's does not).
        rate: share of the published learning rate.
        identity: the matrices (of W_phi, W_psi, W_z) that are fixed to the identity; all three: nothing is trained.
        is_complex: 3 x 3 complex matrices; else 6 x 6 real ones.
        clip: of the error in the loss; None is none.
    """

    title: str
    num_heads: int = 3
    bias_correction: bool = False
    rate: float = 1.0
    identity: tuple[str, ...] = ()
    is_complex: bool = True
    clip: float | None = 0.5


MATRICES = ("W_phi", "W_psi", "W_z")
VARIANTS = {
    "three_heads": Variant("3 heads"),
    "one_head": Variant("1 head", num_heads=1),
    "three_heads_identity": Variant("3 heads, identity matrices", identity=MATRICES),
    "one_head_identity": Variant("1 head, identity matrices", num_heads=1, identity=MATRICES),
    "repeat_last": Variant("last observation repeated", num_heads=0, identity=MATRICES),
    "three_heads_corrected": Variant("3 heads, AdamW with bias correction", bias_correction=True),
    "one_head_corrected": Variant("1 head, AdamW with bias correction", num_heads=1, bias_correction=True),
    "three_heads_slow": Variant("3 heads, 0.3 of the learning rate", rate=0.3),
    # The ablations of the paper's appendix A.
    "three_heads_identity_phi": Variant("3 heads, W_phi = 1", identity=("W_phi",)),
    "three_heads_identity_psi": Variant("3 heads, W_psi = 1", identity=("W_psi",)),
    "three_heads_identity_z": Variant("3 heads, W_z = 1", identity=("W_z",)),
    "three_heads_real": Variant("3 heads, real matrices", is_complex=False),
    "three_heads_unclipped": Variant("3 heads, loss not clipped", clip=None),
}
# The others are there for who asks for them: what they answer is about training, not about memories.
DEFAULT = ("three_heads", "one_head", "three_heads_identity", "one_head_identity", "repeat_last")
# A training triple whose common period, like the held-out one's, is twice its longest period.
SEEN: Periods = (1.5, 2.0, 3.0)


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
    """One memory; see `Variant` for what is said there. `length` is that of a training sequence."""

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


@dataclass(frozen=True)
class Budget:
    """`batch_size` sequences of `length` observations at each of `steps`, and what is evaluated.

    The `second_*` are those of the second round, which is ours (see `ThreeMoonsExperiment`).
    """

    seeds: int
    steps: int = 500
    batch_size: int = 64
    length: int = 800
    learning_rate: float = 1e-2
    sequences: int = 512
    contexts: int = 775
    horizon: int = 25
    second_steps: int = 300
    second_from: int = 200
    second_sequences: int = 64
    second_rate: float = 5e-2
    second_batch_size: int = 8

    def run(self, name: str, seed: int) -> Run:
        """One memory from one seed."""
        variant = VARIANTS[name]
        is_trained = len(variant.identity) < len(MATRICES)
        second = Round(
            self.second_batch_size, self.second_from, self.steps, _fit(self.second_steps, self.second_rate),
            self._evaluation(min(self.sequences, self.second_sequences)),
        )  # fmt: skip
        fit = _fit(self.steps, self.learning_rate * variant.rate) if is_trained else None
        settings = MoonSettings(
            num_heads=variant.num_heads,
            seed=seed,
            length=self.length,
            inverse_bandwidth=INVERSE_BANDWIDTH,
            bias_correction=variant.bias_correction,
            identity=variant.identity,
            is_complex=variant.is_complex,
            clip=variant.clip,
            first_round=Round(self.batch_size, 0, 0, fit, self._evaluation(self.sequences)),
            second_round=second if is_trained else None,
        )
        return Run(f"{name}/seed {seed}", settings, cost=(1.0 + 5.0 * is_trained) * (0.4 + variant.num_heads))

    def _evaluation(self, sequences: int) -> Evaluation:
        triples = {"published": TRIPLE, "training": SEEN, "held out": HELD_OUT[0]}
        return Evaluation(sequences, self.contexts, self.horizon, triples)


def _fit(steps: int, learning_rate: float) -> FitOptions:
    return FitOptions(steps, learning_rate, 5e-6, warmup_ratio=0.0, decay="linear")


BUDGETS = {
    "smoke": Budget(1, 6, batch_size=4, length=60, sequences=4, contexts=60, horizon=5, second_steps=3, second_from=20),
    "cpu": Budget(seeds=5),
    "full": Budget(seeds=10),
}
