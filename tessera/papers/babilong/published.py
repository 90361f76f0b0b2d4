"""ARMT's figure and table on BABILong: exact match in per cent by kind of question, model and tokens."""

TOKENS = {"64k": 64_000, "128k": 128_000, "500k": 500_000, "1M": 1_000_000, "10M": 10_000_000, "50M": 50_000_000}
EXACT_MATCH = {
    "qa1": {
        "ARMT": (100, 99.9, 99.3, 98.5, 89.4, 49.6),
        "RMT": (99.6, 99.1, 96.4, 94.2, 76.4, 64.8),
        "Mamba": (100, 99.5, 92.3),
    },
    "qa2": {
        "ARMT": (100, 99.8, 99.4, 99.4, 84.4),
        "RMT": (72.7, 56.3, 32.0, 25.5, 16.2),
        "Mamba": (95.0, 86.7),
    },
    "qa3": {
        "ARMT": (90.4, 86.0, 79.7, 72.1, 37.0),
        "RMT": (51.9, 42.9, 25.9, 24.8, 21.0),
        "Mamba": (91.8, 81.4),
    },
    "qa4": {
        "ARMT": (100, 100, 99.9, 99.8, 91.5),
        "RMT": (51.2, 40.0, 29.4, 27.3, 17.2),
        "Mamba": (99.7, 97.6),
    },
    "qa5": {
        "ARMT": (99.0, 98.7, 98.4, 97.3, 80.9),
        "RMT": (88.5, 78.1, 56.4, 48.0, 27.3),
        "Mamba": (98.7, 97.5),
    },
}
SETTING = {
    "base": "GPT-2, pretrained",
    "tokens of a segment": 512,
    "memory tokens": 10,
    "memory width": 64,
    "segments in the stages": "2, 3, 5, 8, 16, 32",
    "contexts per step": 64,
    "questions to each context": 1,
    "most steps": 80_000,
    "peak learning rate": 1e-4,
}
