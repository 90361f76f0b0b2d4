"""Why exact match falls with length: the parts of the report that look inside the errors."""

from collections.abc import Mapping

from tessera.experiments.experiment import Record

WORDS = {
    "gaussian": "Gaussian",
    "sparsemax": "Epanechnikov (sparsemax)",
    "biweight": "Biweight",
    "triweight": "Triweight",
    "relumax": "Epanechnikov (ReLUmax)",
    "normalized_relu": "Epanechnikov (normReLU)",
    "gaussian_knn_16": "Gaussian kNN, k = 16",
    "gaussian_knn_32": "Gaussian kNN, k = 32",
    "uniform_knn_16": "Uniform kNN, k = 16",
    "uniform_knn_32": "Uniform kNN, k = 32",
    "transformer": "Transformer (rotary)",
}
TITLES = {"mqmtar": "MQMTAR", "sort": "Sort", "reverse": "Reverse", "sort_long": "Sort, trained longer"}


def failures(runs: Mapping[str, Record]) -> list[str]:
    """What fails far beyond training: the table of `sharper` (see evaluate.py)."""
    rows = []
    for record in runs.values():
        task, name, seed = (record.configuration[key] for key in ("task", "name", "seed"))
        for factor, sharp in record.outcome.get("sharper", {}).items():
            if record.outcome["scores"][factor]["exact_match"][0] + sharp["exact_match"][0] == 0:
                continue  # nothing to see
            cells = [
                f"{record.outcome['scores'][factor][score][0]:.2f} -> {sharp[score][0]:.2f}" if score in sharp else ""
                for score in ("exact_match", "token_accuracy", "first_symbol", "second_symbol")
            ]
            place = (list(TITLES).index(task), list(WORDS).index(name), seed)
            rows.append((place, f"| {TITLES[task]} | {WORDS[name]} | {factor}x | " + " | ".join(cells) + " |"))
    if not rows:
        return []
    return [
        "**What fails**: the model as trained -> with the inverse bandwidth of every contextual memory doubled, at the "
        "longest length at which half of the symbols are right (left out where no example is right). What comes back "
        "was lost to weight that spreads over more pairs. What does not come back, or gets worse, has another cause.",
        "",
        "| task | kernel | length | exact match | all symbols | first symbol | second symbol |",
        "|---|---|---|---|---|---|---|",
        *(text for _, text in sorted(rows)),
        "",
    ]


def ambiguities(runs: Mapping[str, Record]) -> list[str]:
    """MQMTAR at the middle length: right second symbols, where the first says which value it is and where not."""
    rows = []
    for record in runs.values():
        factor = list(record.outcome["scores"])[len(record.outcome["scores"]) // 2]
        scores, name = record.outcome["scores"][factor], record.configuration["name"]
        if "second_alone" in scores and "second_shared" in scores:
            alone, shared = (
                f"{scores[key][0]:.2f} ± {scores[key][1]:.2f}" for key in ("second_alone", "second_shared")
            )
            first = f"{scores['first_symbol'][0]:.2f} ± {scores['first_symbol'][1]:.2f}"
            place = (list(WORDS).index(name), record.configuration["seed"])
            rows.append((place, f"| {WORDS[name]} | {factor}x | {first} | {alone} | {shared} |"))
    if not rows:
        return []
    return [
        "**Why MQMTAR falls before the kernel fails**: a value's first symbol is found by the key, its second by what "
        "precedes it. Where the first symbol occurs once among the stored pairs it says which value it is; where other "
        "pairs share it, only a model that still holds the key can tell. Sharing grows with length, in the paper too, "
        "and trainings at one length have seen little of it.",
        "",
        "| kernel | length | first symbol | second, first occurs once | second, first shared |",
        "|---|---|---|---|---|",
        *(text for _, text in sorted(rows)),
        "",
    ]
