"""Every kernel's weights written down again from the papers, row by row: slow, and sharing no code with the library."""

from collections.abc import Callable

import torch

from tessera.kernels import Kernel


def _softmax(scores):
    weights = [torch.exp(s - max(scores)) for s in scores]
    return [w / sum(weights) for w in weights]


def _normalized(responses):
    total = sum(responses)
    return [r / total if total > 0 else torch.tensor(1.0 / len(responses), dtype=torch.float64) for r in responses]


def _entmax(scores, order):
    """Bisection on tau over 200 halvings; the published definition, with alpha - 1 = 1 / order."""
    scaled = [float(s) / order for s in scores]
    low, high = max(scaled) - 1, max(scaled)
    for _ in range(200):
        tau = (low + high) / 2
        total = sum(max(s - tau, 0.0) ** order for s in scaled)
        low, high = (tau, high) if total >= 1 else (low, tau)
    return [torch.tensor(max(s - low, 0.0) ** order, dtype=torch.float64) for s in scaled]


def _neighbours(scores, kernel):
    ranked = sorted(range(len(scores)), key=lambda i: (-float(scores[i]), -i))[: kernel.k]
    chosen = _softmax([scores[i] for i in ranked])
    weights = [torch.tensor(0.0, dtype=torch.float64)] * len(scores)
    for i, weight in zip(ranked, chosen):
        weights[i] = weight if kernel.base == "gaussian" else torch.tensor(1.0 / len(ranked), dtype=torch.float64)
    return weights


# One entry per registered kernel: weights of a list of visible scores.
ORACLES: dict[str, Callable[[list, Kernel], list]] = {
    "gaussian": lambda scores, kernel: _softmax(scores),
    "epanechnikov": lambda scores, kernel: _entmax(scores, 1.0),
    "biweight": lambda scores, kernel: _entmax(scores, 2.0),
    "triweight": lambda scores, kernel: _entmax(scores, 3.0),
    "entmax": lambda scores, kernel: _entmax(scores, 1 / (kernel.alpha - 1)),
    "rectified_polynomial": lambda scores, kernel: _entmax(scores, kernel.order),
    "normalized_relu": lambda scores, kernel: _normalized([s.clamp_min(0) for s in scores]),
    "relumax": lambda scores, kernel: _normalized([(kernel.margin + s - max(scores)).clamp_min(0) for s in scores]),
    "knn": lambda scores, kernel: _neighbours(scores, kernel),
}

# Configurations beside each kernel's default that the suites run through.
VARIANTS: tuple[dict, ...] = (
    {"name": "entmax", "alpha": 1.77},
    {"name": "rectified_polynomial", "order": 40},
    {"name": "relumax", "margin": 0.3},
    {"name": "knn", "base": "gaussian", "k": 3},
    {"name": "knn", "base": "uniform", "k": 3},
)


def oracle(kernel: Kernel, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Weights (rows, N) of float64 scores (rows, N)."""
    weights = torch.zeros_like(scores)
    for row, (line, seen) in enumerate(zip(scores, visible)):
        chosen = seen.nonzero().flatten().tolist()
        if chosen:
            weights[row, chosen] = torch.stack(ORACLES[kernel.name]([line[i] for i in chosen], kernel))
    return weights
