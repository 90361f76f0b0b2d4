"""What Memory Mosaics v2 says of many-shot classification. Its figures 3 to 6, 10 and 11 are curves without numbers."""

# Names of rows, in the order of tables and figures.
NAMES = {
    "mosaic_v2": "Memory Mosaic v2",
    "mosaic": "Memory Mosaic v1",
    "llama": "Llama twin",
}
WITHOUT_LONG_TERM = "Memory Mosaic v2, long-term memories off"

# Section 4 and 5.3, appendices D and G.
SETTING = {
    "parameters": "9.9 billion (v2 large), 8.8 billion (transformer)",
    "layers": 32,
    "width": 4096,
    "heads": 32,
    "trained on": "1,000 billion tokens of text",
    "short-term span": 256,
    "long-term delay in training": "64 to 256",
    "long-term delay in tests": 64,
    "classes of a context": "77, 41, 28 (Banking77, Tacred, GoEmotions)",
    "delimiters": "newline, space",
    "orders": "fixed, shuffled",
}
