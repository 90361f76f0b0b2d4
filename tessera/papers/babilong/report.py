"""Tables and figure of BABILong: exact match by tokens beside the paper's, what is written, trainings."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tessera.papers.babilong import run as babilong
from tessera.papers.babilong.run import LAST_SEGMENT, MODELS, SHUT, THRESHOLD, UNSEEN, WHOLE_UNSEEN
from tessera.papers.curves import draw_curve, panels, styles
from tessera.papers.experiment import LIBRARY, PAPER_KERNELS, Experiment, Record
from tessera.papers.records import Curve, by_model, having, num_seeds, points_of, spread
from tessera.papers.tables import SettingsRows, curves_table, markdown, settings_of, stages_table

TOKENS = {"64k": 64_000, "128k": 128_000, "500k": 500_000, "1M": 1_000_000, "10M": 10_000_000, "50M": 50_000_000}
EXACT_MATCH = {
    "qa1": {
        "ARMT": (100, 99.9, 99.3, 98.5, 89.4, 49.6),
        "RMT": (99.6, 99.1, 96.4, 94.2, 76.4, 64.8),
        "Mamba": (100, 99.5, 92.3),
    },
    "qa2": {"ARMT": (100, 99.8, 99.4, 99.4, 84.4), "RMT": (72.7, 56.3, 32.0, 25.5, 16.2), "Mamba": (95.0, 86.7)},
    "qa3": {"ARMT": (90.4, 86.0, 79.7, 72.1, 37.0), "RMT": (51.9, 42.9, 25.9, 24.8, 21.0), "Mamba": (91.8, 81.4)},
    "qa4": {"ARMT": (100, 100, 99.9, 99.8, 91.5), "RMT": (51.2, 40.0, 29.4, 27.3, 17.2), "Mamba": (99.7, 97.6)},
    "qa5": {"ARMT": (99.0, 98.7, 98.4, 97.3, 80.9), "RMT": (88.5, 78.1, 56.4, 48.0, 27.3), "Mamba": (98.7, 97.5)},
}
# Here, and in the paper's section 4.
SETTINGS: SettingsRows = {
    "base": (lambda records: f"{', '.join(_bases(records))}, from scratch", "GPT-2, pretrained"),
    "tokens of a segment": ("context", 512),
    "segments in the stages": (
        lambda records: ", ".join(str(stage["length"]) for stage in max(_curricula(records), key=len)),
        "2, 3, 5, 8, 16, 32",
    ),
    "contexts per step": ("recipe.training.batch_size", 64),
    "questions to each context": ("recipe.data.questions", 1),
    "most steps": (
        lambda records: spread(sum(stage["steps"] for stage in stages) for stages in _curricula(records)),
        80_000,
    ),
    "peak learning rate": (
        lambda records: spread(stage["learning_rate"] for stages in _curricula(records) for stage in stages),
        1e-4,
    ),
    "seeds": (num_seeds, None),
    "memory tokens": ("recipe.model.num_memory_tokens", 10),
    "memory width": ("recipe.model.memory_dim", 64),
}
# What the figure sets side by side on QA1, first the one that reads furthest; bars are two standard errors.
GATES = {
    "armt_mosaic_uncut": "uncut facts, unseen books",
    "armt_mosaic_sentences": "ends at sentences, unseen books",
    "armt_mosaic_longer": "longer first stages, unseen books",
    UNSEEN: "cost of writes, unseen books",
    SHUT: "shut gates, unseen books",
    THRESHOLD: "cost of writes, one book",
    "armt_mosaic": "published gates, one book",
}
GROUPS = {
    "gates of ARMT": GATES,
    "what ARMT is around": {
        "armt_mosaic": "Memory Mosaic",
        "armt_mosaic_v2": "Memory Mosaic v2",
        "armt": "GPT-NeoX",
        "armt_no_correction": "Memory Mosaic, no correction",
    },
    "other memories": {
        "armt_mosaic": "ARMT",
        "rmt": "RMT",
        "prmt": "PRMT",
        LAST_SEGMENT: "none: a transformer, last segment",
    },
    "models that read whole texts": {
        "armt_mosaic": "ARMT, in segments",
        "mamba": "Mamba",
        "mosaic": "Memory Mosaic",
        "mosaic_v2": "Memory Mosaic v2",
        **{name: f"{PAPER_KERNELS[kernel]}, unseen" for name, kernel in babilong.WHOLE_UNSEEN_KERNELS.items()},
        babilong.WHOLE_UNSEEN_V2: "Memory Mosaic v2, unseen",
    },
}
KEEP_PAIRS = [model for model in babilong.WHOLE_TEXT if model != "mamba"]  # whose memories grow with the text
PARTS = {"whole": "in one segment", "first_part": "first part of a split fact", "second_part": "second part"}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Every table; those without a row are empty."""
    curves = {(kind, model): curve for kind in EXACT_MATCH for model, curve in _curves(records, kind).items()}
    labelled = {key: curve._replace(label=f"{key[0].upper()}: {curve.label}") for key, curve in curves.items()}
    parts = {}
    for title, keep_pairs in {"A memory of constant size": False, "Every pair kept": True}.items():
        rows = [curve for (_, model), curve in labelled.items() if (model in KEEP_PAIRS) == keep_pairs]
        parts[f"{title}, exact match in per cent"] = curves_table(["tokens", "seeds"], rows) if rows else ""
    published = [
        [f"{kind.upper()}: {name}", *values, *[""] * (len(TOKENS) - len(values))]
        for kind, models in EXACT_MATCH.items()
        if any(kind == trained for trained, _ in curves)
        for name, values in models.items()
    ]
    parts["The paper, exact match in per cent"] = markdown(["tokens", *TOKENS], published)
    noise, facts = [], []
    for key, record in records.items():
        if written := record.outcome.get("written_noise"):
            sizes = written.get("normaliser", {})
            sizes = [f"{sizes[segments]:.3g}" for segments in ("1", "16", "256", "1024") if segments in sizes]
            noise.append([key, f"{100 * written['in_text']:.2f}", ", ".join(sizes)])
        if written := record.outcome.get("written_facts"):
            facts.append([key, *(f"{100 * written[part]:.1f}" if part in written else "" for part in PARTS)])
    headings = ["run", "written", "mean size of z after 1, 16, 256, 1,024 of them"]
    parts["Segments of noise that are written, per cent"] = markdown(headings, noise)
    parts["Facts that are written, per cent"] = markdown(["run", *PARTS.values()], facts)
    parts["Trainings"] = stages_table(
        records, {"stages: segments: steps": "{length}: {steps_done} of {steps}", "best score of each": "{best:.3f}"}
    )
    return parts | {"Settings": settings_of(records.values(), SETTINGS)}


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Exact match by tokens, means over seeds: QA1 by groups of models, and every kind beside the paper's ARMT."""
    with panels(path, 12, 12, rows=3, columns=3, legend="none") as axes:
        trained = [run.configuration for run in having(records, kind="qa1").values()]
        for axis, (title, labels) in zip(axes, GROUPS.items()):
            curves = {model: curve for model, curve in _curves(records, "qa1").items() if model in labels}
            for model, look in styles(labels).items():
                if model in curves:
                    draw_curve(axis, curves[model].points, labels[model], bars=2, **look)
            for tokens in {settings.longest for settings in trained if settings.model in curves}:
                axis.axvline(tokens, color="gray", lw=0.8, ls="--")
            if curves:
                axis.axhline(1 / 6, color="gray", ls=":", label="guess")
                axis.set_title(f"QA1: {title}")
        for axis, (kind, published) in zip(axes[len(GROUPS) :], EXACT_MATCH.items()):
            curves = _curves(records, kind)
            best = next((model for model in GATES if model in curves), None)
            if best is not None:
                draw_curve(axis, curves[best].points, f"ARMT here ({GATES[best]})", bars=2)
                if WHOLE_UNSEEN in curves:
                    draw_curve(axis, curves[WHOLE_UNSEEN].points, "mosaic, whole text", bars=2)
                paper = [share / 100 for share in published["ARMT"]]
                style = {"marker": "o", "mfc": "white", "label": "ARMT, the paper"}
                axis.plot([*TOKENS.values()][: len(paper)], paper, "k:", **style)
                axis.set_title(f"{kind.upper()} beside the paper")
        for axis in axes:
            axis.set(xscale="log", xlim=(80, 1e8), ylim=(-0.02, 1.04), xlabel="tokens", ylabel="exact match")
            if axis.has_data():
                columns = 1 if len(axis.get_legend_handles_labels()[1]) <= 3 else 2
                axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=7, frameon=False)


def _curves(records: Mapping[str, Record], kind: str) -> dict[str, Curve]:
    """Model -> its exact match by tokens, in the order of `MODELS`."""
    curves = {}
    for model, seeds in by_model(having(records, kind=kind), MODELS).items():
        points = points_of([record.outcome["exact_match"] for record in seeds])
        exact_match = {n * seeds[0].configuration.context: estimate for n, estimate in points.items()}
        curves[model] = Curve(MODELS[model].label, exact_match, notes=(len(seeds),))
    return curves


def _curricula(records: Iterable[Record]) -> list[list[dict[str, Any]]]:
    return [record.configuration.recipe["training"]["curriculum"] for record in records]


def _bases(records: Iterable[Record]) -> list[str]:
    """The types of the models that read, inside a memory or alone."""
    sections = [record.configuration.recipe["model"] for record in records]
    return sorted({section.get("base", section)["type"] for section in sections})


EXPERIMENT = Experiment(
    LIBRARY["babilong"], babilong.BabilongSettings, babilong.plan, babilong.execute, tables, plot, tuple(MODELS)
)
