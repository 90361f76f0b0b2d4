"""The published language models: Memory Mosaics, section 7; Sparse Attention as Compact Kernel Regression, table 3."""

# Settings of both papers; of the second, those of one and eight blocks.
SETTINGS = {
    "text": "BabiStories",
    "vocabulary": 50257,
    "width": 768,
    "heads": 12,
    "slots": 2688,
    "context": 512,
    "batch": 512,
    "steps": 80000,
    "tokens": 80000 * 512 * 512,
    "warm-up": 2000,
    "peak rate": 5e-3,
    "last rate": 1e-4,
    "weight decay": 0.1,
    "dropout": 0.05,
    "clip": 1.0,
    "precision": "bf16",
    "seeds": 1,
}

# Names of rows, in the order of tables and figures.
NAMES = {
    "mosaic gaussian": "Mosaic, Gaussian",
    "mosaic sparsemax": "Mosaic, Epanechnikov (sparsemax)",
    "mosaic biweight": "Mosaic, biweight",
    "mosaic triweight": "Mosaic, triweight",
    "mosaic relumax": "Mosaic, Epanechnikov (ReLUmax)",
    "mosaic normalized_relu": "Mosaic, Epanechnikov (normalised ReLU)",
    "mosaic gaussian_knn": "Mosaic, Gaussian kNN, k = 16",
    "mosaic uniform_knn": "Mosaic, uniform kNN, k = 16",
    "transformer": "Transformer, learned positions",
    "transformer_rope": "Transformer, RoPE",
    "transformer_alibi": "Transformer, ALiBi",
}
