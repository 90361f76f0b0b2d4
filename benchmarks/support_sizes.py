"""How many pairs have weight in the memories of a trained mosaic, by layer and by how much it has read.

    python -m benchmarks.support_sizes NAME=RUN [NAME=RUN ...] --text FILE [--out results/support/cpu.json]

A RUN is a folder of a trained Memory Mosaic, NAME what the figure calls it. It reads the text once; behind 64, 128, ...
tokens the next `--queries` queries of every contextual memory are looked at: how many pairs have weight, and how many
of the heaviest hold `--share` of it (top-p, where every kernel can be compared; softmax gives weight to all). Medians
over queries and heads. The figure is written beside the JSON.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.base.files import write_text_atomically
from tessera.data.text_files import text_of_file
from tessera.evaluation.provenance import provenance
from tessera.inspection.recall import recall_weights
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.papers.curves import doubling, panels

FIRST = 64


@torch.inference_mode()
def support_sizes(run: str, text: str, longest: int, num_queries: int, share: float) -> list[dict[str, Any]]:
    """A row for each layer and length."""
    model, tokenizer = load_model(run).eval(), load_tokenizer(run)
    ids = tokenizer(text, return_tensors="pt")["input_ids"][:, : longest + num_queries]
    assert ids.shape[1] == longest + num_queries, f"the text has {ids.shape[1]:,} tokens"
    lengths = [FIRST << doublings for doublings in range((longest // FIRST).bit_length())]
    queries = [length + query for length in lengths for query in range(num_queries)]
    recalls = [recall for recall in recall_weights(model, ids, queries) if recall.site.kind == "contextual"]
    rows = []
    for layer, recall in enumerate(recalls, 1):
        for number, length in enumerate(lengths):
            weights = recall.weights[:, number * num_queries : (number + 1) * num_queries]
            rows.append({"layer": layer, "tokens": length} | quantiles(weights, share))
    return rows


def quantiles(weights: Tensor, share: float) -> dict[str, float]:
    """Over queries: how many pairs have weight, how many of the heaviest hold `share` of it; medians, and 9 of 10."""
    sizes = {"with_weight": (weights > 0).sum(-1), "with_share": heaviest(weights, share)}
    return {
        name + suffix: float(size.double().quantile(at))
        for suffix, at in (("", 0.5), ("_90", 0.9))
        for name, size in sizes.items()
    }


def heaviest(weights: Tensor, share: float) -> Tensor:
    """How many of the heaviest pairs (..., N) hold `share` of the weight."""
    held = weights.sort(dim=-1, descending=True)[0].cumsum(-1)
    return (held < share * held[..., -1:]).sum(-1) + 1


def draw(kernels: dict[str, list[dict[str, Any]]], share: float, path: Path) -> None:
    """A panel for each kernel: solid, the pairs with weight; dotted, the heaviest ones with a share of it."""
    with panels(path, 4.6 * len(kernels), 3.8, columns=len(kernels), title="pairs of a memory, median query") as axes:
        for axis, (name, rows) in zip(axes, kernels.items(), strict=True):
            for layer in sorted({row["layer"] for row in rows}):
                of_layer = [row for row in rows if row["layer"] == layer]
                lengths = [row["tokens"] for row in of_layer]
                for size, style in (("with_weight", "-"), ("with_share", ":")):
                    label = f"layer {layer}" if size == "with_weight" else None
                    axis.plot(lengths, [row[size] for row in of_layer], style, color=f"C{layer - 1}", label=label)
            axis.plot(lengths, lengths, "--", color="gray", linewidth=0.8, label="all pairs")
            axis.plot([], [], ":", color="black", label=f"of {share:.0%} of the weight")
            axis.set(yscale="log", xlabel="tokens read", title=name)
            doubling(axis, lengths)


def main() -> None:
    """Measure, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--text", type=Path, required=True, help="a text file (or .gz)")
    parser.add_argument("--longest", type=int, default=8192, help="tokens: 64 times a power of two")
    parser.add_argument("--queries", type=int, default=16, help="of each length (default: 16)")
    parser.add_argument("--share", type=float, default=0.9, help="of the weight (default: 0.9)")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    began, text, kernels = time.perf_counter(), "".join(text_of_file(arguments.text)), {}
    for name, run in (each.split("=", 1) for each in arguments.runs):
        kernels[name] = support_sizes(run, text, arguments.longest, arguments.queries, arguments.share)
        last = kernels[name][-1]
        print(f"{name}, last layer, {last['tokens']:,} tokens: {last['with_weight']:g} pairs with weight", flush=True)
    settings = {name: getattr(arguments, name) for name in ("longest", "queries", "share")}
    record = provenance(
        configuration={**settings, "text": arguments.text.name}, wall_seconds=time.perf_counter() - began
    )
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(arguments.out, json.dumps({"provenance": record, "kernels": kernels}, indent=1) + "\n")
    draw(kernels, arguments.share, arguments.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
