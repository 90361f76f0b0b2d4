"""The figure of associative retrieval: exact match and capacity against the number of pairs."""

from pathlib import Path
from typing import Any

from tessera.papers.associative_retrieval.published import RECALLS_BEYOND_TRAINING
from tessera.papers.associative_retrieval.report import Curve
from tessera.papers.curves import new_figure

STYLES = {
    "armt": ("o-", "tab:blue"),
    "armt_no_correction": ("s--", "tab:cyan"),
    "rmt": ("^-", "tab:orange"),
    "prmt": ("v-", "tab:red"),
    "mamba": ("D-", "tab:green"),
    "mosaic": ("*-", "tab:purple"),
}
# Rule, quantity, label of the axis, title.
PANELS = (
    ("rewrite", "exact_match", "exact match", "Rewrite: latest value of a key\nup to 10 x the trained length"),
    ("remember", "exact_match", "exact match", "Remember: one value per key"),
    ("remember", "capacity", "pairs in memory", "Remember: pairs in memory\nk = n (16 a - 1) / 15"),
)
CHANCE = 1 / 16


def draw(curves: list[Curve], path: Path) -> None:
    """Draw three panels: rewrite, remember, and the capacity remember implies; variants are left to the tables."""
    figure = new_figure(15, 4.6)
    axes = figure.subplots(1, 3)
    for axis, (rule, quantity, label, title) in zip(axes, PANELS, strict=True):
        chosen = [curve for curve in curves if curve.rule == rule and curve.variant is None]
        for curve in chosen:
            _draw_curve(axis, curve, quantity)
        if chosen:
            trained = max(curve.trained_pairs for curve in chosen)
            axis.axvline(trained, color="black", lw=0.8, ls="--", label=f"longest in training: {trained}")
            (_draw_shares if quantity == "exact_match" else _draw_bound)(axis, rule, chosen, trained)
        axis.set(xscale="log", xlabel="pairs read", ylabel=label, title=title)
        axis.xaxis.set_major_formatter("{x:g}")
    _legends(figure, axes, {curve.label for curve in curves})
    figure.savefig(path, dpi=130)


def _draw_curve(axis, curve: Curve, quantity: str) -> None:
    marker, color = STYLES[curve.model]
    points = getattr(curve, quantity)
    means, errors = [one.mean for one in points.values()], [2 * one.standard_error for one in points.values()]
    axis.errorbar(list(points), means, yerr=errors, fmt=marker, color=color, label=curve.label, capsize=2, markersize=4)


def _draw_shares(axis, rule: str, chosen: list[Curve], trained: int) -> None:
    """The guess, and how far the paper's ARMT recalls beyond its training."""
    axis.axhline(CHANCE, color="gray", linestyle=":", label="guess")
    axis.set_ylim(0, 1.04)
    if rule == "rewrite":
        reach = [trained, RECALLS_BEYOND_TRAINING * trained]
        label = f"paper: ARMT recalls to {RECALLS_BEYOND_TRAINING} x"
        axis.plot(reach, [1.015, 1.015], color="tab:blue", linestyle="--", linewidth=2, label=label)


def _draw_bound(axis, rule: str, chosen: list[Curve], trained: int) -> None:
    """All pairs that were read."""
    longest = max(pairs for curve in chosen for pairs in curve.capacity)
    axis.plot([1, longest], [1, longest], ":", color="gray", label="all pairs")
    axis.set_yscale("symlog", linthresh=1)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=0)


def _legends(figure, axes, models: set[str]) -> None:
    """One legend of the models under all panels, and in each panel what is its own."""
    shared: dict[str, Any] = {}
    for axis in axes:
        named = dict(zip(*reversed(axis.get_legend_handles_labels())))
        shared |= {label: handle for label, handle in named.items() if label in models}
        own = {label: handle for label, handle in named.items() if label not in models}
        axis.legend(own.values(), own.keys(), fontsize=8)
    title = "bars: 2 standard errors"
    figure.legend(shared.values(), shared.keys(), loc="outside lower center", ncols=len(models) or 1, title=title)
