"""The figure of many-shot classification: accuracy on new classes against the number of shots."""

from collections.abc import Mapping
from pathlib import Path

from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record
from tessera.papers.many_shot.published import NAMES, WITHOUT_LONG_TERM
from tessera.papers.many_shot.report import SCORES, curves, every_seed

STYLES = {
    NAMES["mosaic_v2"]: ("o-", "tab:blue"),
    NAMES["mosaic"]: ("s-", "tab:green"),
    NAMES["llama"]: ("^-", "tab:red"),
    WITHOUT_LONG_TERM: ("o:", "tab:cyan"),
}


def draw(records: Mapping[str, Record], path: Path) -> None:
    """Draw one panel per score, at the best strategy: means over seeds thick, every seed thin."""
    figure = new_figure(11, 4.6)
    rows = [curve for curve in curves(records) if curve.strategy is None]
    for axis, (score, title) in zip(figure.subplots(1, 2), SCORES.items(), strict=True):
        for curve in (one for one in rows if one.score == score):
            marker, color = STYLES[curve.name]
            means = [100 * point.mean for point in curve.points.values()]
            axis.plot(list(curve.points), means, marker, color=color, label=curve.name, linewidth=2.5)
        for record, best in every_seed(records, score):
            _, color = STYLES[NAMES[record.configuration.model]]
            axis.plot(list(best), [100 * mean for mean in best.values()], color=color, linewidth=0.8, alpha=0.7)
        shots = sorted({count for curve in rows for count in curve.points})
        chance = 100 / next(iter(records.values())).configuration.test_classes
        axis.axhline(chance, color="black", linewidth=0.8, linestyle="--", label="guess")
        axis.set_xscale("log", base=2)
        axis.set_xticks(shots, [str(count) for count in shots])
        axis.set(ylim=(0, 101), xlabel="shots (examples of each class)", ylabel="%", title=f"New classes: {title}")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, title="mean over seeds (thin: every seed)", title_fontsize=8)
    figure.savefig(path, dpi=130)
