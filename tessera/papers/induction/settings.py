"""What each budget of induction trains: models and depths, the task, the training."""

from dataclasses import dataclass, replace

from tessera.papers.induction import Induction
from tessera.training.fit import FitOptions

# Name: model of `MODELS`, blocks, name in tables and figures.
MODELS = {
    "mosaic-1": ("mosaic", 1, "Memory Mosaic, 1 block"),
    "transformer-1": ("transformer", 1, "transformer, absolute positions, 1 block"),
    "transformer_rope-1": ("transformer_rope", 1, "transformer, rotary positions, 1 block"),
    "transformer-2": ("transformer", 2, "transformer, absolute positions, 2 blocks"),
    "transformer_rope-2": ("transformer_rope", 2, "transformer, rotary positions, 2 blocks"),
}


@dataclass(frozen=True)
class InductionSettings:
    """One training and its test.

    Attributes:
        model: one of `MODELS`. hidden_size, num_heads: of the model. task: of training, validation and test.
        batch_size, fit: of the training. validation, test: sequences.
    """

    model: str
    seed: int
    hidden_size: int
    num_heads: int
    task: Induction
    batch_size: int
    fit: FitOptions
    validation: int = 128
    test: int = 1000


_FIT = FitOptions(
    1500, 3e-3, warmup_ratio=0.05, weight_decay=0.1, betas=(0.9, 0.95), clip=1.0, scalar_learning_rate_scale=10.0,
    evaluate_every=50,
)  # fmt: skip
BUDGETS = {
    "smoke": InductionSettings(
        "mosaic-1", 0, 16, 2, Induction(16), 8, replace(_FIT, steps=8, evaluate_every=4), validation=8, test=16
    ),
    "cpu": InductionSettings("mosaic-1", 0, 64, 4, Induction(64), 32, _FIT),
}
SEEDS = {"smoke": 1, "cpu": 3}
