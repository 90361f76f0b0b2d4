"""The figure of induction: accuracy on the triggers' successors while the models learn."""

from collections.abc import Mapping
from pathlib import Path

from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record
from tessera.papers.induction import Induction
from tessera.papers.induction.report import by_model, mean_accuracy
from tessera.papers.induction.settings import MODELS

STYLES = {
    "mosaic-1": ("-", "tab:purple"),
    "transformer-1": ("--", "tab:blue"),
    "transformer_rope-1": ("--", "tab:orange"),
    "transformer-2": ("-", "tab:blue"),
    "transformer_rope-2": ("-", "tab:orange"),
}


def draw(records: Mapping[str, Record], path: Path) -> None:
    """Draw the mean over seeds of each model, each seed as a thin line."""
    figure = new_figure(8, 4.6)
    axis = figure.subplots()
    for name, seeds in by_model(records).items():
        line, color = STYLES[name]
        for one in seeds if len(seeds) > 1 else ():
            steps, errors = zip(*one.outcome["training"]["checks"])
            axis.plot(steps, [1 - error for error in errors], line, color=color, lw=0.6, alpha=0.4)
        steps, means, _ = zip(*mean_accuracy(seeds))
        axis.plot(steps, means, line, color=color, lw=2, label=MODELS[name][2])
    task = Induction()
    axis.axhline(1 / task.vocab_size, color="gray", lw=0.8, ls=":", label=f"guess: 1 of {task.vocab_size}")
    axis.set(xlabel="step of training", ylabel="right successors", ylim=(0, 1.02))
    axis.set_title("Successor of a trigger, from its second occurrence on\nthick: mean over seeds, thin: each seed")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    figure.savefig(path, dpi=130)
