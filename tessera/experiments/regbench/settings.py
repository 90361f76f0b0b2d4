"""How models are trained on RegBench at each budget."""

from dataclasses import dataclass, replace

from tessera.training.fit import FitOptions


@dataclass(frozen=True)
class Setting:
    """One training, apart from the model and its data.

    Attributes:
        hidden_size, num_layers, num_heads: of the transformer whose size every model has.
        batch_size, steps, epochs: problems per step, and how many steps; none means that the epochs decide.
        learning_rate, weight_decay, scalar_learning_rate_scale, beta_2: see `FitOptions`; cosine decay to a tenth
            after warm-up over a tenth of the steps.
        checks: validations, evenly spread. validation, test: problems of held-out automata.
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
    beta_2: float = 0.999
    checks: int = 200
    validation: int = 500
    test: int = 1000

    def options(self, problems: int) -> FitOptions:
        """Of a training on so many problems."""
        steps = self.steps or self.epochs * (problems // min(self.batch_size, problems))
        return FitOptions(
            steps=steps,
            learning_rate=self.learning_rate,
            min_learning_rate=0.1 * self.learning_rate,
            weight_decay=self.weight_decay,
            betas=(0.9, self.beta_2),
            clip=1.0,
            scalar_learning_rate_scale=self.scalar_learning_rate_scale,
            evaluate_every=max(1, steps // self.checks),
        )


# Published; its code keeps a tenth of the scalars that we keep, hence the scale of 10.
FULL = Setting()
# One of the 200 epochs, at half the width and heads. Batches of two at ten times the rate make up for most of it in
# accuracy: at equal cost they came out above batches of four and eight, and above twice the width and heads.
CPU = Setting(
    hidden_size=64,
    num_heads=4,
    batch_size=2,
    epochs=1,
    learning_rate=5e-3,
    beta_2=0.98,
    checks=2,
    validation=100,
    test=500,
)
# The same for longer, by the number of training problems: 4,000 and 3,750 steps.
LONGER = {
    1000: replace(CPU, epochs=8, learning_rate=3e-3, checks=8),
    2500: replace(CPU, epochs=3, learning_rate=3e-3, checks=8),
}
# The transformer alone: the paper's has learned to read automata from 2,500 problems, after many more steps.
LONGEST = {2500: replace(CPU, epochs=16, learning_rate=3e-3, checks=16)}
SMOKE = Setting(hidden_size=16, num_heads=2, batch_size=4, steps=2, learning_rate=5e-3, checks=1, validation=4, test=4)

SETTINGS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
SIZES = {"smoke": 12, "cpu": 1000}  # training problems
SEEDS = {"smoke": 1, "cpu": 2}
