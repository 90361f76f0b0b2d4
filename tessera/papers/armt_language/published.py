"""Settings of ARMT's figure on Wikitext-103, which draws the bits per byte of each segment; no number is printed."""

SETTINGS = {
    "base": "GPT-2, tuned on Wikitext-103",
    "text": "Wikitext-103",
    "tokens of a segment": 128,
    "memory tokens": 16,
    "memory width of ARMT": 96,
    "segments in training": 8,
    "segments in tests": 15,
    "texts per step": 32,
    "steps": 36_000,
    "peak learning rate": 1e-4,
    "weight decay": 0.01,
    "seeds": 1,
}

# Names of rows, in the order of tables and figures. The first two are readings of one model, the base.
READINGS = {
    "one_segment": "base, one segment",
    "whole_context": "base, whole context",
    "continued": "base, trained on, one segment",
    "rmt": "RMT",
    "armt": "ARMT",
}
BASES = {"transformer": "GPT-NeoX", "memory_mosaic": "Memory Mosaic"}
TEXTS = {"stories": "held-out stories", "novels": "novels"}
