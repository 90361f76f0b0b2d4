"""The figure of associative retrieval: exact match and capacity against the number of pairs."""

from pathlib import Path

NAMES = {"armt": "ARMT", "armt_no_correction": "ARMT, no correction", "rmt": "RMT", "prmt": "PRMT"}
MARKS = {"armt": "o-", "armt_no_correction": "s--", "rmt": "^-", "prmt": "v-"}


def draw(results: dict, path: Path) -> None:
    """Draw the runs of a result file: rewrite, remember, and the capacity that remember implies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2), constrained_layout=True)
    _curves(axes[0], results, "rewrite", "exact_match", "Rewrite: latest value of a key", "exact match")
    axes[0].set_xscale("log")
    _curves(axes[1], results, "remember", "exact_match", "Remember: all pairs, unique keys", "exact match")
    _curves(axes[2], results, "remember", "capacity", "Remember: estimated capacity", "pairs in memory")
    limit = max((int(n) for run in results["runs"].values() for n in run["capacity"]), default=1)
    top = max(
        (int(n) for key, run in results["runs"].items() if key.endswith("remember") for n in run["capacity"]),
        default=limit,
    )
    axes[2].plot([1, top], [1, top], ":", color="gray", label="all pairs")
    for axis in axes[:2]:
        axis.axhline(results["chance"], color="gray", linestyle=":", label="guess")
        axis.set_ylim(0, 1.03)
    for axis in axes:
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _curves(axis, results: dict, task: str, field: str, title: str, label: str) -> None:
    trained = None
    for name, words in NAMES.items():
        run = results["runs"].get(f"{name}/{task}")
        if run is None:
            continue
        pairs = [int(n) for n in run[field]]
        trained = run["stages"][-1]["max_pairs"]
        if field == "exact_match":
            error = [2 * e for e in run["standard_error"].values()]
            axis.errorbar(pairs, list(run[field].values()), yerr=error, fmt=MARKS[name], label=words, capsize=2)
        else:
            axis.plot(pairs, list(run[field].values()), MARKS[name], label=words)
    if trained is not None:
        axis.axvline(trained, color="black", linewidth=0.8, linestyle="--", label="longest in training")
    axis.set_title(title)
    axis.set_xlabel("pairs")
    axis.set_ylabel(label)
