"""The tables of associative retrieval: exact match by number of pairs, capacity, and the paper's words beside ours."""

from collections.abc import Mapping

from tessera.experiments.associative_retrieval.curves import Curve, curves
from tessera.experiments.associative_retrieval.findings import findings, unfinished
from tessera.experiments.associative_retrieval.published import CLAIMS, GENERALIZATION, SETTING
from tessera.experiments.experiment import Record

HEADINGS = {
    ("rewrite", "exact_match"): "Rewrite, exact match in percent (guess: 6.2)",
    ("remember", "exact_match"): "Remember, exact match in percent (guess: 6.2)",
    ("remember", "capacity"): "Remember, estimated number of pairs in memory",
}


def table(runs: Mapping[str, Record]) -> str:
    """Markdown: three tables by number of pairs, what each training took, and the paper's claims."""
    found = curves([(record.configuration, record.outcome) for record in runs.values()])
    parts = [*_setting(runs), ""]
    for (rule, field), heading in HEADINGS.items():
        chosen = [one for one in found if one.rule == rule]
        if chosen:
            parts += [f"**{heading}**", "", *_by_pairs(chosen, field), ""]
    rewrite = [
        one for one in runs.values() if one.configuration["rule"] == "rewrite" and not one.configuration["ablation"]
    ]
    norms = {one.configuration["model"]: one.outcome.get("norms", {}) for one in rewrite}
    missed = unfinished({key: record.outcome for key, record in runs.items()})
    return "\n".join(
        [*parts, *_claims(found), "", *findings(found, norms), *missed, "", *_norms(runs), *_trainings(runs)]
    )


def _setting(runs: Mapping[str, Record]) -> list[str]:
    """Where the setting leaves the published one, in words made from the configurations."""
    if not runs:
        return ["No run yet."]
    given = next(iter(runs.values())).configuration
    sizes = given["sizes"]
    stages = [stage for run in runs.values() for stage in run.configuration["curriculum"]["stages"]]
    rates = " to ".join(f"{rate:g}" for rate in sorted({stage["learning_rate"] for stage in stages}))
    steps = max(sum(one["steps"] for one in run.configuration["curriculum"]["stages"]) for run in runs.values())
    seeds = len({run.configuration["seed"] for run in runs.values()})
    shape = f"{sizes['num_layers']} layers of width {sizes['hidden_size']} around GPT-NeoX"
    shape += f", {sizes['num_memory_tokens']} memory tokens"
    published = f"{SETTING['layers']} of {SETTING['width']}, {SETTING['memory_tokens']}, {SETTING['memory_width']}"
    return [
        f"Segmented models: {shape}, memory width {sizes['memory_dim']} (published: {published}). Batches of "
        f"{given['batch_size']} contexts with {given['questions']} questions to each ({SETTING['batch']} with "
        f"{SETTING['questions']}), peak learning rate {rates} ({SETTING['learning_rate']:g}), weights drawn with "
        f"standard deviation {sizes['initializer_range']} ({SETTING['start']}), at most {steps:,} steps in all "
        f"({SETTING['steps']}), seeds: {seeds} ({SETTING['seeds']}).",
        "",
        "A stage ends at its target or after its steps, and the next starts from its best weights. ± is the standard "
        "error over held-out contexts (one seed) or over seeds (several).",
    ]


def _by_pairs(found: list[Curve], field: str) -> list[str]:
    pairs = sorted({n for one in found for n in getattr(one, field)})
    scale = 100 if field == "exact_match" else 1
    lines = ["| pairs | trained to | " + " | ".join(str(n) for n in pairs) + " |", "|---|---|" + "---|" * len(pairs)]
    for one in found:
        values = getattr(one, field)
        cells = [f"{scale * values[n][0]:.1f} ± {scale * values[n][1]:.1f}" if n in values else "" for n in pairs]
        lines.append(f"| {one.label} | {one.trained_pairs} | " + " | ".join(cells) + " |")
    return lines


def _claims(found: list[Curve]) -> list[str]:
    """The paper gives curves without numbers, so its words stand beside our numbers."""
    curve = {(one.model, one.rule): one for one in found if one.variant is None}
    lines = ["| | paper | here |", "|---|---|---|"]
    rewrite = [name for name in ("armt", "armt_no_correction", "rmt", "prmt", "mamba") if (name, "rewrite") in curve]
    for factor, claim in ((1, "rewrite, trained length"), (GENERALIZATION["factor"], None)):
        claim = claim or f"rewrite, {factor} x the trained length"
        if rewrite:
            shown = [_at(curve[name, "rewrite"], factor) for name in rewrite if name != "armt_no_correction"]
            lines.append(f"| {claim} | {CLAIMS[claim]} | {'; '.join(shown)} |")
    if ("armt_no_correction", "rewrite") in curve:
        one = curve["armt_no_correction", "rewrite"]
        shown = "; ".join(_at(one, factor) for factor in (1, GENERALIZATION["factor"]))
        lines.append(f"| rewrite, no correction | {CLAIMS['rewrite, no correction']} | {shown} |")
    held = [one for one in found if one.rule == "remember" and one.variant is None]
    if held:
        shown = "; ".join(f"{one.label} {max(mean for mean, _ in one.capacity.values()):.1f}" for one in held)
        lines.append(f"| remember, most pairs held | {CLAIMS['remember, capacity']} | {shown} |")
    return lines


def _at(one: Curve, factor: int) -> str:
    pairs = factor * one.trained_pairs
    if pairs not in one.exact_match:
        return f"{one.label} not measured at {pairs} pairs"
    mean, error = one.exact_match[pairs]
    return f"{one.label} {100 * mean:.1f} ± {100 * error:.1f} ({pairs} pairs)"


def _norms(runs: Mapping[str, Record]) -> list[str]:
    """The memory's size after n rewritten pairs: the correction is there to keep the normaliser from growing."""
    lines: list[str] = []
    for key, record in runs.items():
        norms = record.outcome.get("norms")
        if not norms or record.configuration["rule"] != "rewrite":
            continue
        if not lines:
            heads = " | ".join(norms["normaliser"])
            lines = ["**Rewrite, mean norm of the normaliser z (of the matrix A) after so many pairs**", ""]
            lines += [f"| run | {heads} |", "|---|" + "---|" * len(norms["normaliser"])]
        cells = " | ".join(f"{z:.0f} ({norms['matrix'][n]:.0f})" for n, z in norms["normaliser"].items())
        lines.append(f"| {key} | {cells} |")
    return [*lines, ""] if lines else []


def _trainings(runs: Mapping[str, Record]) -> list[str]:
    """What was spent: the errors above are of the held-out contexts of one seed, or over seeds where there are more."""
    lines = ["| run | parameters | stages: pairs (key size), steps done of at most, best exact match | minutes |"]
    lines.append("|---|---|---|---|")
    for key, record in runs.items():
        stages = "; ".join(
            f"{one['length']} ({one['settings']['key_size']}), {one['steps_done']} of {one['steps']}, {one['best']:.3f}"
            for one in record.outcome["stages"]
        )
        minutes = sum(one["seconds"] for one in record.outcome["stages"]) / 60
        lines.append(f"| {key} | {record.outcome['parameters']:,} | {stages} | {minutes:.1f} |")
    return lines
