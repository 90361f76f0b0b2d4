"""The figure of associative retrieval: exact match and capacity against the number of pairs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tessera.experiments.associative_retrieval.curves import Curve, curves
from tessera.experiments.associative_retrieval.published import GENERALIZATION

STYLES = {
    "armt": ("o-", "tab:blue"),
    "armt_no_correction": ("s--", "tab:cyan"),
    "rmt": ("^-", "tab:orange"),
    "prmt": ("v-", "tab:red"),
    "mamba": ("D-", "tab:green"),
    "mosaic": ("*-", "tab:purple"),
}


def draw(runs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]], path: Path, chance: float = 1 / 16) -> None:
    """Draw (configuration, outcome) of runs in three panels: rewrite, remember, and the capacity remember implies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = [curve for curve in curves(runs) if curve.variant is None]
    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.6), constrained_layout=True)
    _panel(axes[0], [one for one in found if one.rule == "rewrite"], "exact_match")
    _panel(axes[1], [one for one in found if one.rule == "remember"], "exact_match")
    _panel(axes[2], [one for one in found if one.rule == "remember"], "capacity")
    axes[0].set_title("Rewrite: latest value of a key\nup to 10 x the trained length")
    axes[1].set_title("Remember: one value per key")
    axes[2].set_title("Remember: pairs in memory\nk = n (16 a - 1) / 15")
    for axis, rule in zip(axes, ("rewrite", "remember")):
        _claim(axis, [one for one in found if one.rule == rule], chance, rule)
    top = max((pairs for one in found if one.rule == "remember" for pairs in one.capacity), default=1)
    axes[2].plot([1, top], [1, top], ":", color="gray", label="all pairs")
    for axis, label in zip(axes, ("exact match", "exact match", "pairs in memory")):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("pairs read")
        axis.set_ylabel(label)
    _legends(figure, axes, {one.label for one in found})
    axes[2].set_yscale("symlog", linthresh=1)
    axes[2].yaxis.set_major_formatter("{x:g}")
    axes[2].set_ylim(bottom=0)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _legends(figure, axes, models: set[str]) -> None:
    """One legend of the models under all panels, and in each panel what is its own."""
    shared = {}
    for axis in axes:
        named = dict(zip(*reversed(axis.get_legend_handles_labels())))
        shared |= {label: handle for label, handle in named.items() if label in models}
        own = {label: handle for label, handle in named.items() if label not in models}
        axis.legend(own.values(), own.keys(), fontsize=8)
    title = "bars: 2 standard errors"
    figure.legend(shared.values(), shared.keys(), loc="outside lower center", ncols=len(models) or 1, title=title)


def _panel(axis, found: list[Curve], field: str) -> None:
    for one in found:
        mark, color = STYLES.get(one.model, ("x-", "black"))
        points = getattr(one, field)
        errors = [2 * error for _, error in points.values()]
        means = [mean for mean, _ in points.values()]
        axis.errorbar(list(points), means, yerr=errors, fmt=mark, color=color, label=one.label, capsize=2, markersize=4)
    if found:
        trained = max(one.trained_pairs for one in found)
        axis.axvline(trained, color="black", linewidth=0.8, linestyle="--", label=f"longest in training: {trained}")


def _claim(axis, found: list[Curve], chance: float, rule: str) -> None:
    """The guess, and what the paper says of ARMT beyond its training."""
    axis.axhline(chance, color="gray", linestyle=":", label="guess")
    axis.set_ylim(0, 1.04)
    if rule == "rewrite" and found:
        trained = max(one.trained_pairs for one in found)
        reach = [trained, GENERALIZATION["factor"] * trained]
        axis.plot(
            reach, [1.015, 1.015], color="tab:blue", linestyle="--", linewidth=2, label="paper: ARMT holds to 10 x"
        )
