"""What the ARMT paper says of associative retrieval. Its figures are curves without numbers."""

# Names of rows, in the order of tables and figures; the mosaic and the model without correction are ours to compare.
NAMES = {
    "armt": "ARMT",
    "armt_no_correction": "ARMT, no correction",
    "rmt": "RMT",
    "prmt": "PRMT",
    "mamba": "Mamba",
    "mosaic": "Memory Mosaic",
}

# Section 3, the appendices on training details and curriculum, and the scripts of the paper's repository.
_FIRST = ((1, 1, 2000), (2, 1, 10_000), (3, 1, 10_000), (5, 1, 10_000), (10, 1, 10_000))
# Of each stage the pairs, the symbols of a key, and the steps.
STAGES: dict[str, tuple[tuple[int, int, int], ...]] = {
    "remember": (*_FIRST, *((pairs, 2, 10_000) for pairs in (20, 40, 50)), (50, 3, 10_000), (200, 3, 15_000)),
    "rewrite": (*_FIRST, *((pairs, 1, 10_000) for pairs in (20, 40, 50))),
}
SETTING = {
    "layers": 4,
    "width": 128,
    "memory tokens": 4,
    "memory width": 32,
    "batch": 512,
    "questions to each context": 1,
    "peak learning rate": 3e-4,
    "standard deviation of initial weights": 0.02,
    "steps in all": "72,000 (rewrite), 97,000 (remember)",
    **{f"pairs in the stages of {rule}": ", ".join(str(pairs) for pairs, *_ in STAGES[rule]) for rule in STAGES},
    "seeds": 3,
}
# "Perfect memory recall on lengths exceeding 10 times those used in training."
RECALLS_BEYOND_TRAINING = 10
