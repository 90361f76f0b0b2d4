"""Numbers of Memory Mosaics v2 on RULER's questions about documents (tables 3, 4 and 7; accuracy in percent)."""

# Names of rows, in the order of tables and figures.
NAMES = {
    "mosaic_v2": "Memory Mosaic v2",
    "llama": "Llama twin (RoPE)",
    "transformer_alibi": "Transformer (ALiBi)",
    "lstm": "LSTM",
}
WITHOUT_LONG_TERM = "Memory Mosaic v2, long-term memories off"

# Table 3: trained at 4k, asked at 4k, 8k, 16k, 32k. None: the model fails.
TRAINED = {
    "small": {"mosaic_v2": (45.0, 35.0, 34.1, 31.7), "llama": (39.4, None, None, None)},
    "large": {"mosaic_v2": (59.3, 48.8, 46.4, 26.5), "llama": (57.7, None, None, None)},
}
# Table 4: then tuned at 32k, asked at 4k, 8k, 16k, 32k, 64k.
TUNED = {
    "small": {"mosaic_v2": (44.3, 39.3, 39.4, 36.9, 25.3), "llama": (37.0, 29.3, 29.0, 22.1, None)},
    "large": {"mosaic_v2": (58.9, 55.5, 54.9, 53.4, 46.4), "llama": (51.2, 48.8, 44.7, 41.1, None)},
}
# Table 7: the large one, tuned at 32k, with its long-term memories off.
TUNED_WITHOUT_LONG_TERM = (38.5, 22.2, 20.0, 20.2)
# Table 6: six benchmarks, then with the long-term memories off. Table 2: the other thirteen.
BENCHMARKS = {"squad": (78.2, 69.4), "bbh": (47.8, 24.6), "math": (8.8, 5.4), "mbpp": (9.6, 6.8),
              "race middle": (61.6, 59.5), "race high": (46.5, 43.6), "13 others, mean": (56.8, 56.6)}  # fmt: skip

SETTING = {
    "parameters": "9.9 billion (v2 large), 8.8 billion (transformer)",
    "trained length": "4,096",
    "tuned length": "32,768",
    "short-term span": 256,
    "long-term delay in training": "64 to 256",
    "long-term delay in tests": 64,
    "documents": "SQuAD and HotpotQA paragraphs",
}
