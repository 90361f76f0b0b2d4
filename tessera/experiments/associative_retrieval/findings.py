"""What follows from the numbers, in sentences that are only written where the numbers bear them out."""

from collections.abc import Mapping
from typing import Any

from tessera.experiments.associative_retrieval.curves import Curve
from tessera.experiments.associative_retrieval.published import GENERALIZATION

GOAL = 0.99
# Shares of its size after the trained length by which a norm may change and still be called constant.
CONSTANT = 0.05


def findings(found: list[Curve], norms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A list in Markdown. `norms`: what `memory_norms` says of ARMT's models on rewrite, by model."""
    curve = {(one.model, one.rule): one for one in found if one.variant is None}
    lines = []
    for model in ("armt", "armt_no_correction"):
        if (model, "rewrite") in curve:
            lines += _rewrite(curve[model, "rewrite"], norms.get(model, {}))
    lines += _relatives(curve)
    if ("mosaic", "rewrite") in curve:
        lines += _mosaic(curve["mosaic", "rewrite"])
    return [f"- {line}" for line in lines]


def unfinished(runs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A list in Markdown of the outcomes in which a stage before the last missed its target."""
    lines = []
    for key, outcome in runs.items():
        missed = [stage for stage in outcome["stages"][:-1] if stage["best"] < stage["target"]]
        if missed:
            stage = missed[0]
            lines.append(
                f"- {key}: the stage of {stage['length']} pairs ended after its {stage['steps']} steps at "
                f"{stage['best']:.2f} (target {stage['target']:g}), and the longer ones went on from there: it "
                "shows what this budget teaches the model, not what the model can hold."
            )
    return lines


def _rewrite(one: Curve, norms: Mapping[str, Any]) -> list[str]:
    near, far = one.trained_pairs, GENERALIZATION["factor"] * one.trained_pairs
    if near not in one.exact_match:
        return []
    share = one.exact_match[near][0]
    lines = [f"{one.label} {_verb(share)} {GOAL:.2f} exact match at its training length ({near} pairs: {share:.3f})."]
    if far in one.exact_match and (beyond := one.exact_match[far][0]) < GOAL:
        lines[0] += f" At {far} pairs it falls to {beyond:.3f}" + ", where the paper's holds." * (one.model == "armt")
        lines[0] = lines[0].rstrip(".") + "."
    if str(near) in norms.get("normaliser", {}) and str(far) in norms["normaliser"]:
        z, a = (norms[name][str(far)] / norms[name][str(near)] for name in ("normaliser", "matrix"))
        lines.append(f"{one.label}, from {near} to {far} pairs: the normaliser {_change(z)}; the matrix {_change(a)}.")
        if z > 1 + CONSTANT:
            lines[-1] += " The keys of erased values stay in the normaliser, which the correction is there to prevent."
        elif a > 1 + CONSTANT:
            lines[-1] += " Rewriting leaves a rest of old values in the matrix."
    return lines


def _change(ratio: float) -> str:
    if abs(ratio - 1) <= CONSTANT:
        return "stays as it is"
    return f"{'grows' if ratio > 1 else 'shrinks'} to {ratio:.1f} x its norm"


def _verb(share: float) -> str:
    return "reaches" if share >= GOAL else "does not reach"


def _relatives(curve: Mapping[tuple[str, str], Curve]) -> list[str]:
    """The memory tokens of RMT and PRMT against ARMT's matrices."""
    lines = []
    for rule in ("rewrite", "remember"):
        names = [name for name in ("armt", "rmt", "prmt", "mamba") if (name, rule) in curve]
        pairs = curve["armt", rule].trained_pairs if names[:1] == ["armt"] else None
        names = [name for name in names if pairs in curve[name, rule].exact_match]
        if len(names) < 2:
            continue
        shares = "; ".join(
            f"{curve[name, rule].label} {curve[name, rule].exact_match[pairs][0]:.3f}"
            + (f" (trained to {curve[name, rule].trained_pairs})" * (curve[name, rule].trained_pairs != pairs))
            for name in names
        )
        lines.append(f"{rule.capitalize()}, {pairs} pairs: {shares}.")
    return lines


def _mosaic(one: Curve) -> list[str]:
    longest = max(one.exact_match)
    near, far = one.exact_match.get(one.trained_pairs, (0.0, 0.0))[0], one.exact_match[longest][0]
    if near - far < 0.1:
        return []
    return [
        f"{one.label} stores every pair, which bounds remember from above but not rewrite: it has to tell the latest "
        f"of a key's values from the older ones, and falls from {near:.3f} at {one.trained_pairs} to {far:.3f} at "
        f"{longest} pairs, where a key was rewritten {longest / 16:.0f} times."
    ]
