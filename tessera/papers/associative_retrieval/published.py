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
    "pairs in the stages of rewrite": "1, 2, 3, 5, 10, 20, 40, 50",
    "pairs in the stages of remember": "1, 2, 3, 5, 10, 20, 40, 50, 50, 200",
    "seeds": 3,
}
# "Perfect memory recall on lengths exceeding 10 times those used in training."
RECALLS_BEYOND_TRAINING = 10
