"""RegBench in the papers: accuracy and total variation distance (half the L1 distance), both in per cent."""

from typing import Any

# Names of rows, in the order of tables and figures; the last ones are not in the papers' tables.
NAMES = {
    "mosaic gaussian": "Gaussian",
    "mosaic gaussian_knn": "Gaussian kNN, k = 16",
    "mosaic uniform_knn": "uniform kNN, k = 16",
    "mosaic normalized_relu": "Epanechnikov (normalised ReLU)",
    "mosaic relumax": "Epanechnikov (ReLUmax)",
    "mosaic sparsemax": "Epanechnikov (sparsemax)",
    "mosaic biweight": "Biweight",
    "mosaic triweight": "Triweight",
    "transformer": "Transformer",
    "mamba": "Mamba",
    "lstm": "LSTM",
    "linear_transformer": "Linear transformer",
    "retnet": "RetNet",
    "gla": "Gated linear attention (GLA)",
    "mosaic_v2 gaussian": "Memory Mosaic v2",
}
# Of the best setting of the kernels paper's search (table 5), which alone can be started here; table 1's test problems.
SETTING: dict[str, Any] = {
    "width": 128,
    "layers": 2,
    "heads": 8,
    "batch": 32,
    "epochs": "up to 200",
    "peak learning rate": 5e-4,
    "weight decay": 0.01,
    "test problems": 1000,
}

SPARSE_SIZES = (1000, 2500, 5000, 10000, 20000, 40000)

# Sparse Attention as Compact Kernel Regression, table 1: (accuracy, TVD) for each of SPARSE_SIZES training problems.
SPARSE_TABLE_1: dict[str, tuple[tuple[float, float], ...]] = {
    "retnet": ((51.3, 67.4), (50.5, 63.9), (81.5, 33.3), (88.4, 25.7), (90.8, 22.5), (92.6, 18.9)),
    "h3": ((51.5, 65.1), (58.0, 57.0), (70.9, 47.4), (76.9, 41.4), (80.7, 36.3), (87.7, 25.4)),
    "gla": ((51.8, 65.3), (51.1, 62.2), (82.1, 31.0), (90.2, 24.5), (91.2, 21.2), (92.9, 19.0)),
    "s4": ((52.1, 62.8), (51.7, 62.2), (54.5, 59.0), (63.3, 52.9), (72.1, 45.8), (82.5, 33.8)),
    "mamba": ((69.4, 51.0), (79.4, 41.0), (88.7, 30.6), (90.5, 28.4), (91.3, 27.0), (91.5, 27.0)),
    "transformer": ((54.5, 62.6), (92.4, 20.5), (92.7, 18.9), (94.8, 15.7), (95.1, 15.0), (95.5, 13.9)),
    "mosaic gaussian": ((93.9, 34.1), (93.7, 20.8), (94.6, 17.7), (95.0, 15.9), (95.4, 15.3), (95.4, 14.2)),
    "mosaic gaussian_knn": ((93.4, 33.3), (93.7, 19.8), (94.4, 17.2), (94.8, 16.0), (94.8, 16.0), (95.0, 14.9)),
    "mosaic uniform_knn": ((84.6, 41.1), (85.6, 28.3), (86.1, 27.2), (86.2, 26.4), (86.5, 26.4), (86.4, 26.4)),
    "mosaic normalized_relu": ((84.3, 43.6), (87.0, 29.6), (90.1, 24.6), (91.6, 21.7), (93.1, 19.4), (93.3, 18.6)),
    "mosaic relumax": ((93.8, 36.8), (94.2, 20.4), (94.3, 17.8), (94.9, 15.7), (95.4, 15.0), (95.4, 14.1)),
    "mosaic sparsemax": ((94.2, 32.5), (94.0, 19.3), (94.4, 17.1), (94.9, 15.9), (95.0, 15.0), (95.4, 14.0)),
    "mosaic biweight": ((93.8, 33.0), (94.3, 19.2), (94.7, 16.6), (95.2, 15.7), (95.0, 15.8), (95.5, 13.8)),
    "mosaic triweight": ((93.9, 32.9), (94.3, 19.0), (94.8, 16.2), (94.9, 16.1), (95.1, 15.3), (95.3, 14.4)),
}

# Memory Mosaics, table 3: (accuracy, TVD) on fresh strings of the 100 training automata.
IN_DISTRIBUTION_100: dict[str, tuple[float, float]] = {
    "mosaic gaussian": (95.9, 41.7),
    "transformer": (85.6, 30.8),
    "mamba": (92.9, 26.8),
    "s4": (84.6, 35.0),
    "rwkv": (96.7, 18.3),
    "linear_transformer": (81.6, 34.8),
    "h3": (79.4, 42.5),
    "gla": (87.0, 28.4),
    "hyena": (95.3, 24.4),
    "lstm": (84.9, 34.3),
    "retnet": (87.6, 29.6),
}
