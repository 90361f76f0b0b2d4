"""Figure 1 of "Sparse Attention as Compact Kernel Regression", redrawn with the library's kernels.

    python docs/figures/kernels.py --out docs/figures/kernels.png

Left: kernels over the distance |u| from the query. Right: the weight that each transformation gives to u_1 of the three
scores (0, u_1, 0.5) while u_1 grows.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

from tessera.kernels import Kernel, kernel_from_config

# Kernel in the library, its name on the left, its name on the right, colour, line style.
LINES = (
    ("gaussian", "Gaussian", "softmax", "#334155", "-"),
    ("triweight", "triweight, r = 3", "4/3-entmax", "#1d4ed8", "-"),
    ("biweight", "biweight, r = 2", "1.5-entmax", "#0891b2", "-"),
    ("epanechnikov", "Epanechnikov, r = 1", "sparsemax", "#15803d", "-"),
    ("relumax", "Epanechnikov, max-anchored", "ReLUmax, b = 1", "#ca8a04", "-"),
    ("normalized_relu", "Epanechnikov, fixed bandwidth", "normalised ReLU", "#c2410c", "-"),
    ({"name": "knn", "base": "gaussian", "k": 2}, "Gaussian, 2 neighbours", "top-2 softmax", "#7e22ce", "--"),
    ({"name": "knn", "base": "uniform", "k": 2}, "uniform, 2 neighbours", "top-2 average", "#be185d", "--"),
)
OTHERS = (0.0, 0.5)


def profile(kernel: Kernel, distance: torch.Tensor) -> torch.Tensor:
    """The kernel as a function of |u| with support (or, for the Gaussian, standard deviation) scaled to be comparable.

    Compact kernels are [1 - |u|^2]_+^r. The neighbour kernels are cut at |u| = 1, where the k-th neighbour stands.
    """
    squared = distance.square()
    if kernel.name == "gaussian":
        return torch.exp(-squared * 2)
    if kernel.name == "knn":
        inside = (squared <= 1).double()
        return inside if kernel.base == "uniform" else inside * torch.exp(-squared * 2)
    return (1 - squared).clamp_min(0) ** getattr(kernel, "order", 1.0)


def weight_of_the_second(kernel: Kernel, scores: torch.Tensor) -> torch.Tensor:
    """The weight of u_1 among (0, u_1, 0.5) for each u_1 of `scores`."""
    first, last = (torch.full_like(scores, other) for other in OTHERS)
    return kernel.weights(torch.stack([first, scores, last], dim=-1))[:, 1]


def draw(path: Path) -> None:
    """Both panels; one key below pairs each kernel with its attention."""
    figure = Figure(figsize=(11, 5), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    distance, scores = torch.linspace(-1.6, 1.6, 801).double(), torch.linspace(-1.5, 2.5, 801).double()
    lines, profiles = [], []
    for spec, kernel_name, weight_name, colour, style in LINES:
        kernel = kernel_from_config(spec)
        looks = {"color": colour, "linestyle": style, "linewidth": 2.2}
        curve = profile(kernel, distance)
        if not any(torch.equal(curve, other) for other in profiles):  # the Epanechnikov kernels differ in bandwidth
            left.plot(distance, curve, **looks)
            profiles.append(curve)
        weights = weight_of_the_second(kernel, scores)
        lines += right.plot(scores, weights, label=f"{kernel_name}\n{weight_name}", **looks)
    left.set(xlabel="distance from the query, in bandwidths", ylabel="kernel, relative to its top")
    left.set_title("Kernels: weight by distance", loc="left", fontsize=12, fontweight="bold")
    right.set(xlabel="score $u_1$", ylabel="weight of $u_1$ among the scores (0, $u_1$, 0.5)")
    right.set_title("Attention: the weight that follows", loc="left", fontsize=12, fontweight="bold")
    right.set_xticks([-1, 0, 1, 2])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e2e8f0", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_ylim(-0.03, 1.06)
        axes.margins(x=0)
    key = {"ncols": 4, "frameon": False, "fontsize": 9, "handlelength": 2.6, "columnspacing": 3, "labelspacing": 0.9}
    figure.legend(handles=lines, loc="outside lower center", **key)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw the kernels and the weights they give.")
    parser.add_argument("--out", type=Path, default=Path("docs/figures/kernels.png"))
    draw(parser.parse_args().out)
