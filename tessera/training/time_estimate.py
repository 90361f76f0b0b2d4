"""What a run will cost: sizes before the first step, time after a few steps."""

from torch import nn

from tessera.models.sizes import num_parameters
from tessera.recipes.sections import Recipe, Stage

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


class TimeEstimate:
    """Lines for people: what will be trained on how much, and how long it takes on this machine.

    Args:
        sequences: of a validation. segment: tokens that one unit of `Stage.length` stands for.
    """

    def __init__(self, recipe: Recipe, sequences: int, segment: int) -> None:
        self.recipe, self.sequences, self.segment = recipe, sequences, segment
        self._seconds: list[float] = []
        self._tokens: list[int] = []
        self._is_said = False

    def sizes(self, model: nn.Module, done: int) -> str:
        """The line before the first step; `done`: steps that a checkpoint holds."""
        section, parameters = self.recipe.training, num_parameters(model)
        line = f"{self.recipe.name}: {parameters:,} parameters, "
        if section.curriculum:
            lengths = ", ".join(str(stage.length) for stage in section.stages)
            line += f"{len(section.stages)} stages of {lengths} segments, at most {section.curriculum_steps:,} steps"
        else:
            tokens = section.steps * section.batch_size * self.segment
            line += f"{tokens:,} training tokens ({tokens / parameters:.3g} per parameter), {section.steps:,} steps"
        return line + (f", {done:,} of them done" if done else "")

    def after_step(self, number: int, step: int, seconds: float, tokens: int) -> str:
        """The line about the time that is left, after the first few steps; "" after all others.

        The first step, which is slower than the others, is not counted unless it alone took `SECONDS` and nothing is
        compiled.
        """
        if self._is_said:
            return ""
        self._seconds.append(seconds)
        self._tokens.append(tokens)
        first = 1 if len(self._seconds) > 1 or self.recipe.training.compile else 0
        steady = self._seconds[first:]
        if not steady or (len(self._seconds) <= STEPS and sum(self._seconds) < SECONDS):
            return ""
        self._is_said = True
        return self.time_left(number, step, sum(self._tokens[first:]) / sum(steady))

    def time_left(self, number: int, step: int, speed: float) -> str:
        """The line about the time that is left after `step` of stage `number`, at `speed` tokens/s."""
        section = self.recipe.training
        later = sum(self._tokens_of(stage, 0) for stage in section.stages[number + 1 :])
        seconds = (later + self._tokens_of(section.stages[number], step)) / speed
        at_most = " at most" if section.curriculum else ""
        return f"expected: {duration(seconds)}{at_most} at {speed:,.0f} tokens/s (Ctrl-C stops; --resume goes on)"

    def _tokens_of(self, stage: Stage, done: int) -> float:
        """Training tokens that take as long as what is left of a stage, validations included."""
        section = self.recipe.training
        steps = float(stage.steps - done) * stage.mean_length
        evaluations = stage.steps // section.evaluate_every - done // section.evaluate_every
        steps += evaluations * evaluation_in_steps(self.sequences, section.batch_size) * stage.length
        return steps * section.batch_size * self.segment
