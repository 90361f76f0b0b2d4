"""What each budget trains: models and depths, the task, the training."""

from dataclasses import dataclass

from tessera.papers.experiment import Run
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
    validation: int
    test: int

    @property
    def num_layers(self) -> int:
        """Blocks of the model."""
        return MODELS[self.model][1]


@dataclass(frozen=True)
class Budget:
    """One of `--budget`: see `InductionSettings`."""

    hidden_size: int
    num_heads: int
    task: Induction
    batch_size: int
    fit: FitOptions
    seeds: int
    validation: int = 128
    test: int = 1000

    def run(self, model: str, seed: int) -> Run:
        """One run."""
        settings = InductionSettings(
            model,
            seed,
            self.hidden_size,
            self.num_heads,
            self.task,
            self.batch_size,
            self.fit,
            self.validation,
            self.test,
        )
        return Run(f"{model}/seed {seed}", settings, float(1 + settings.num_layers))


def _fit(steps: int, learning_rate: float, evaluate_every: int) -> FitOptions:
    return FitOptions(
        steps,
        learning_rate,
        warmup_ratio=0.05,
        weight_decay=0.1,
        betas=(0.9, 0.95),
        clip=1.0,
        scalar_learning_rate_scale=10.0,
        evaluate_every=evaluate_every,
    )


BUDGETS = {
    "smoke": Budget(16, 2, Induction(16), 8, _fit(8, 3e-3, 4), seeds=1, validation=8, test=16),
    "cpu": Budget(64, 4, Induction(64), 32, _fit(1500, 3e-3, 50), seeds=3),
    # The task, the batch and the width of Bietti et al. 2023; their transformer is simpler, and trained by SGD.
    "full": Budget(128, 4, Induction(256), 512, _fit(5000, 1e-3, 50), seeds=3),
}
