"""Tables and figure of BABILong: exact match by tokens beside the paper's, time per token, trainings."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.papers.babilong.published import EXACT_MATCH, SETTING, TOKENS
from tessera.papers.babilong.settings import GATED, MODELS, THRESHOLD
from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record
from tessera.papers.tables import markdown, over_seeds, settings_table, spread, with_error
from tessera.tasks.task import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.container import ErrorbarContainer

FURTHEST = (THRESHOLD, GATED, "armt_mosaic")  # first the one that reads furthest


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Every table; those without a row are left out."""
    parts = {}
    for kind in EXACT_MATCH:
        chosen = {key: one for key, one in records.items() if one.configuration.kind == kind}
        if chosen:
            parts[f"{kind.upper()}, exact match in per cent"] = _by_length(chosen)
            parts[f"{kind.upper()}, the paper"] = _published(kind)
    if records:
        parts["Microseconds per token read"] = _speed(records)
        measured = {key: one for key, one in records.items() if "written_noise" in one.outcome}
        if measured:
            parts["Segments of noise that are written, per cent"] = _written_noise(measured)
        measured = {key: one for key, one in records.items() if "written_facts" in one.outcome}
        if measured:
            parts["Facts that are written, per cent"] = _written_facts(measured)
        parts["Trainings"] = _trainings(records)
        parts["Settings"] = _settings(records)
    return parts


def draw(records: Mapping[str, Record], path: Path) -> None:
    """Exact match by tokens, means over seeds: QA1 of every model, and every kind beside the paper's ARMT."""
    figure = new_figure(8, 10)
    by_model, by_kind = figure.subplots(2, height_ratios=(3, 2))
    _draw_models(by_model, {key: one for key, one in records.items() if one.configuration.kind == "qa1"})
    _draw_kinds(by_kind, records)
    figure.savefig(path, dpi=130)


def _draw_models(axis: "Axes", of_qa1: Mapping[str, Record]) -> None:
    """A curve of each model, and where its training ended."""
    trained = {MODELS[record.configuration.model].label: _longest_in_training(record) for record in of_qa1.values()}
    for place, (label, points) in enumerate(_curves(of_qa1).items()):
        curve = _draw_curve(axis, points, f"C{place % 10}", "os^"[place // 10], label)
        axis.axvline(trained[label], color=curve.lines[0].get_color(), lw=0.8, ls="--")
    axis.plot([], [], color="black", lw=0.8, ls="--", label="longest text in training")
    axis.axhline(1 / 6, color="gray", ls=":", label="guess")
    axis.set(xscale="log", ylabel="exact match", ylim=(0, 1.04), title="QA1; bars: 2 standard errors")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, fontsize=8, frameon=False)


def _draw_kinds(axis: "Axes", records: Mapping[str, Record]) -> None:
    """A curve of each kind, of the model that reads furthest among those that learned it."""
    for place, (kind, published) in enumerate(EXACT_MATCH.items()):
        of_kind = {key: one for key, one in records.items() if one.configuration.kind == kind}
        for model in FURTHEST:
            chosen = {key: one for key, one in of_kind.items() if one.configuration.model == model}
            if chosen:
                (points,) = _curves(chosen).values()
                _draw_curve(axis, points, f"C{place}", "o", kind.upper())
                paper = [share / 100 for share in published["ARMT"]]
                axis.plot([*TOKENS.values()][: len(paper)], paper, f"C{place}:", marker="o", mfc="white")
                break
    axis.plot([], [], "k:", marker="o", mfc="white", label="the paper's ARMT")
    title = "each kind of question, by the ARMT that reads furthest"
    axis.set(xscale="log", xlabel="tokens", ylabel="exact match", ylim=(0, 1.04), title=title)
    axis.legend(loc="lower left", ncols=2, fontsize=8, frameon=False)


def _draw_curve(
    axis: "Axes", points: Mapping[int, Estimate], color: str, marker: str, label: str
) -> "ErrorbarContainer":
    errors = [0.0 if one.standard_error != one.standard_error else 2 * one.standard_error for one in points.values()]
    means = [one.mean for one in points.values()]
    style = f"{marker}-"
    return axis.errorbar(list(points), means, yerr=errors, fmt=style, color=color, label=label, capsize=2)


def _longest_in_training(record: Record) -> int:
    """Tokens."""
    stages = record.configuration.recipe["training"]["curriculum"]
    return max(stage["length"] for stage in stages) * record.configuration.context


def _curves(records: Mapping[str, Record]) -> dict[str, dict[int, Estimate]]:
    """Label -> tokens -> exact match over seeds, in the order of `MODELS`."""
    curves: dict[str, dict[int, Estimate]] = {}
    for name, (label, *_) in MODELS.items():
        chosen = [one for one in records.values() if one.configuration.model == name]
        lengths = sorted({int(n) for one in chosen for n in one.outcome["exact_match"]})
        for n in lengths:
            values = [one.outcome["exact_match"][str(n)] for one in chosen if str(n) in one.outcome["exact_match"]]
            curves.setdefault(label, {})[n * chosen[0].configuration.context] = over_seeds(values)
    return curves


def _by_length(records: Mapping[str, Record]) -> str:
    curves = _curves(records)
    lengths = sorted({tokens for points in curves.values() for tokens in points})
    rows = []
    for label, points in curves.items():
        scaled = {n: Estimate(100 * one.mean, 100 * one.standard_error, one.count) for n, one in points.items()}
        rows.append([label, *(with_error(scaled[n], ".1f") if n in scaled else "" for n in lengths)])
    return markdown(["tokens", *(f"{n:,}" for n in lengths)], rows)


def _published(kind: str) -> str:
    rows = [[name, *values, *[""] * (len(TOKENS) - len(values))] for name, values in EXACT_MATCH[kind].items()]
    return markdown(["tokens", *TOKENS], rows)


def _speed(records: Mapping[str, Record]) -> str:
    lengths = sorted({int(n) for one in records.values() for n in one.outcome["seconds_per_token"]})
    segment = next(iter(records.values())).configuration.context
    rows = []
    for key, record in records.items():
        seconds = record.outcome["seconds_per_token"]
        rows.append([key, *(f"{1e6 * seconds[str(n)]:.1f}" if str(n) in seconds else "" for n in lengths)])
    return markdown(["run", *(f"{n * segment:,}" for n in lengths)], rows)


def _written_noise(records: Mapping[str, Record]) -> str:
    shares = {key: record.outcome["written_noise"] for key, record in records.items()}
    rows = [[key, f"{100 * one['in_text']:.1f}", f"{100 * one['alone']:.1f}"] for key, one in shares.items()]
    return markdown(["run", "after the text before them", "with an empty memory"], rows)


def _written_facts(records: Mapping[str, Record]) -> str:
    parts = {"whole": "in one segment", "first_part": "first part of a split fact", "second_part": "second part"}
    rows = []
    for key, record in records.items():
        shares = record.outcome["written_facts"]
        rows.append([key, *(f"{100 * shares[part]:.1f}" if part in shares else "" for part in parts)])
    return markdown(["run", *parts.values()], rows)


def _trainings(records: Mapping[str, Record]) -> str:
    rows: list[list[Any]] = []
    for key, record in records.items():
        stages = record.outcome["stages"]
        steps = "; ".join(f"{one['length']}: {one['steps_done']} of {one['steps']}" for one in stages)
        best = "; ".join(f"{one['best']:.3f}" for one in stages)
        minutes = sum(one["seconds"] for one in stages) / 60
        rows.append([key, f"{record.outcome['parameters']:,}", steps, best, f"{minutes:.1f}"])
    return markdown(["run", "parameters", "stages: segments: steps", "best score of each", "minutes"], rows)


def _settings(records: Mapping[str, Record]) -> str:
    configurations = [one.configuration for one in records.values()]
    recipes = [one.recipe for one in configurations]
    stages = [recipe["training"]["curriculum"] for recipe in recipes]
    bases = sorted({recipe["model"].get("base", recipe["model"])["type"] for recipe in recipes})
    memories = [recipe["model"] for recipe in recipes if "num_memory_tokens" in recipe["model"]]
    ours = {
        "base": ", ".join(bases) + ", from scratch",
        "tokens of a segment": configurations[0].context,
        "segments in the stages": ", ".join(str(stage["length"]) for stage in max(stages, key=len)),
        "contexts per step": spread(recipe["training"]["batch_size"] for recipe in recipes),
        "questions to each context": spread(recipe["data"]["questions"] for recipe in recipes),
        "most steps": spread(sum(stage["steps"] for stage in one) for one in stages),
        "peak learning rate": spread(stage["learning_rate"] for one in stages for stage in one),
        "seeds": len({one.seed for one in configurations}),
    }
    if memories:
        ours["memory tokens"] = spread(one["num_memory_tokens"] for one in memories)
        widths = [one["memory_dim"] for one in memories if "memory_dim" in one]
        if widths:
            ours["memory width"] = spread(widths)
    return settings_table(ours, SETTING)
