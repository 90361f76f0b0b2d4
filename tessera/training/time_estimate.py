"""What a run will cost: sizes before the first step, time after a few steps."""

import sys
import time

from tqdm import tqdm
from transformers import TrainerCallback

from tessera.models.sizes import num_parameters
from tessera.recipes.sections import Recipe

STEPS, SECONDS = 5, 10.0  # measure so many steps, or for so long


def evaluation_in_steps(sequences: int, batch_size: int) -> float:
    """How many training steps take as long as a validation on so many sequences.

    It is forward passes only: a third of the arithmetic of training on as many.
    """
    return sequences / batch_size / 3


def duration(seconds: float) -> str:
    """A time in plain words.

    >>> [duration(seconds) for seconds in (20, 90, 1500, 9000, 111600, 1e6)]
    ['under a minute', '2 minutes', '25 minutes', '2.5 hours', '31 hours', '12 days']
    """
    minutes, hours = round(seconds / 60), seconds / 3600
    if seconds < 60:
        return "under a minute"
    if minutes < 100:
        return f"{minutes} minute{'s' if minutes > 1 else ''}"
    if hours < 100:
        return f"{hours:.0f} hours" if hours >= 10 else f"{hours:.1f} hours"
    return f"{hours / 24:,.0f} days"


class Expectation(TrainerCallback):
    """Writes two lines to standard error: what will be trained on how much, and how long it takes on this machine.

    `sequences` is the number of a validation's. The first step, which is slower than the others, is not counted unless
    it alone took `SECONDS` and nothing is compiled.
    """

    def __init__(self, recipe: Recipe, sequences: int, enabled: bool = True) -> None:
        self.recipe, self.sequences, self.enabled = recipe, sequences, enabled
        self.seconds: list[float] = []
        self._began = 0.0

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        """See `TrainerCallback`."""
        self.enabled = self.enabled and state.is_world_process_zero
        section, parameters = self.recipe.training, num_parameters(model)
        tokens = section.steps * self._tokens_per_step
        line = (
            f"{self.recipe.name}: {parameters:,} parameters, {tokens:,} training tokens "
            f"({tokens / parameters:.3g} per parameter), {section.steps:,} steps"
        )
        self._say(line + (f", {state.global_step:,} of them done" if state.global_step else ""))

    def on_step_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self._began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if not self.enabled:
            return
        self.seconds.append(time.perf_counter() - self._began)
        steady = self.seconds[1:] or ([] if self.recipe.training.compile else self.seconds)
        if steady and (len(self.seconds) > STEPS or sum(self.seconds) >= SECONDS):
            self._say(self.time_left(state.global_step, sum(steady) / len(steady)))
            self.enabled = False

    def time_left(self, step: int, seconds_per_step: float) -> str:
        """The line about the time that is left after `step`."""
        section = self.recipe.training
        left: float = section.steps - step
        evaluations = section.steps // section.evaluate_every - step // section.evaluate_every
        left += evaluations * evaluation_in_steps(self.sequences, section.batch_size)
        speed = self._tokens_per_step / seconds_per_step
        return (
            f"expected: {duration(left * seconds_per_step)} at {speed:,.0f} tokens/s (Ctrl-C stops; --resume goes on)"
        )

    @property
    def _tokens_per_step(self) -> int:
        return self.recipe.training.batch_size * self.recipe.data.context

    def _say(self, line: str) -> None:
        if self.enabled:
            tqdm.write(line, file=sys.stderr)
