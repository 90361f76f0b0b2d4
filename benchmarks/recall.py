"""Exact recall through an index beside the scan of all pairs, on the keys of a trained Memory Mosaic.

    tessera train stories-mosaic model.num_heads=2 --output runs/mosaic
    OMP_NUM_THREADS=1 python -m benchmarks.recall runs/mosaic book.txt ... --out results/recall/cpu.json

The model reads the texts in pieces of `--context` tokens; the keys and values that each head stored are one memory, and
the queries are keys of text that it did not store, with the bandwidths that the model has learned. Each case answers
the same queries twice, in turn: by the index and by `kernel_regression` over all pairs, one query at a time. With
`faiss-cpu` installed, FAISS's exact range search stands beside them: it is given the threshold that the index found,
which it could not know. Shares of pairs do not depend on the machine; times do.
"""

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import tessera.recall
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.kernels import kernel_from_config
from tessera.memories.pair_memory import PairMemory
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.ops.kernel_regression import kernel_regression
from tessera.recall.index import PairIndex
from tessera.recall.pair_store import PairStore

KERNELS = ("sparsemax", "biweight", "triweight", "relumax", "gaussian_knn", "gaussian")
Pairs = tuple[Tensor, Tensor, Tensor]  # keys (H, N, K), values (H, N, V), queries (H, Q, K)


@torch.inference_mode()
def stored_pairs(run: str, files: list[str], context: int, most: int, queries: int) -> dict[int, tuple[Pairs, Tensor]]:
    """Layer -> (pairs and queries, inverse bandwidths (H,)): the last text gives the queries."""
    model, tokenizer = load_model(run).eval(), load_tokenizer(run)
    texts = [Path(file).read_text(encoding="utf-8") for file in files]
    ids = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    stored, asked = torch.cat(ids[:-1])[:most], ids[-1][:context]
    memories = [memory for memory in model.modules() if isinstance(memory, PairMemory)]
    kept: list[list[tuple[Tensor, Tensor]]] = [[] for _ in memories]
    for piece in stored.split(context):
        if len(piece) > 1:
            for layer, pairs in enumerate(pairs_of(model, piece)):
                kept[layer].append(pairs)
    layers = {}
    for layer, (memory, queried) in enumerate(zip(memories, pairs_of(model, asked))):
        keys, values = (torch.cat([pairs[side] for pairs in kept[layer]], 1).contiguous() for side in (0, 1))
        step = max(1, queried[0].shape[1] // queries)
        beta = memory.bandwidth.log_inverse_bandwidth.exp().flatten()
        layers[layer] = (keys, values, queried[0][:, ::step][:, :queries].contiguous()), beta
    return layers


def pairs_of(model: Any, ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    """What each memory stores of one piece of text: keys (H, N, K), values (H, N, V)."""
    state = model(ids[None], use_cache=True).past_key_values
    leaves = tree_leaves(state, is_leaf=lambda part: isinstance(part, PairStore))
    return [(part.keys[0].float(), part.values[0].float()) for part in leaves if isinstance(part, PairStore)]


def seconds(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def measure(index: PairIndex, pairs: Pairs, head: int, beta: float, name: str) -> dict[str, Any]:
    """Shares of pairs, and the ratio of the scan's time to the index's, the median over queries."""
    keys, values, queries = pairs
    kernel = kernel_from_config(name)
    slope, intercept = (0.0 if x is None else float(x) for x in kernel.affine(torch.tensor(beta)))
    ratios, shares, supports, errors = [], [], [], []
    for query in queries[0].split(1):
        recall = partial(index.recall, query[None], kernel=kernel, slope=slope, intercept=intercept)
        scan = partial(kernel_regression, query[None, None], keys[None], values[None], kernel=kernel, slope=slope)
        ours, theirs = seconds(recall), seconds(scan)
        ratios.append(theirs / ours)
        found = recall()
        shares.append(found.certificate.pairs_read.item() / len(index))
        supports.append(found.certificate.pairs_in_support.item() / len(index))
        errors.append((found.output - scan()[0]).abs().max().item())
        assert found.certificate.is_exact or name == "gaussian"
    return {
        "head": head,
        "kernel": name,
        "beta": beta,
        "ratio": statistics.median(ratios),
        "slowest_ratio": min(ratios),
        "share_read": statistics.median(shares),
        "largest_share_read": max(shares),
        "share_in_support": statistics.median(supports),
        "largest_error": max(errors),
        **faiss_ratio(index, pairs, kernel, slope),
    }


def faiss_ratio(index: PairIndex, pairs: Pairs, kernel: Any, slope: float) -> dict[str, float]:
    """The time of FAISS's flat range search above the known threshold, over ours; {} without faiss."""
    if importlib.util.find_spec("faiss") is None:
        return {}
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    flat = faiss.IndexFlatIP(pairs[0].shape[2])
    flat.add(pairs[0][0].numpy())
    ratios = []
    for query in pairs[2][0].split(1):
        recall = partial(index.recall, query[None], kernel=kernel, slope=slope)
        threshold = float(recall().certificate.threshold) / slope
        search = partial(flat.range_search, query.numpy(), threshold)
        ours, theirs = seconds(recall), seconds(search)
        ratios.append(theirs / ours)
    return {"faiss_ratio": statistics.median(ratios)}


def main() -> None:
    """Measure every head of every layer, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained Memory Mosaic")
    parser.add_argument("texts", nargs="+", help="books to store; the last one asks")
    parser.add_argument("--context", type=int, default=1024, help="tokens that are read at once (default: 1024)")
    parser.add_argument("--most", type=int, default=1 << 20, help="pairs of a head (default: 1,048,576)")
    parser.add_argument("--queries", type=int, default=8, help="of each head (default: 8)")
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    parser.add_argument("--out", type=Path, help="a JSON file for the measurements")
    arguments = parser.parse_args()
    began, cases = time.perf_counter(), []
    layers = stored_pairs(arguments.run, arguments.texts, arguments.context, arguments.most, arguments.queries)
    print("layer head kernel        pairs      scan/index  read      support   faiss/index")
    for layer, (pairs, betas) in layers.items():
        for head, beta in enumerate(betas.tolist()):
            of_head: Pairs = tuple(x[head : head + 1] for x in pairs)  # type: ignore[assignment]
            building = time.perf_counter()
            index = tessera.recall.build(of_head[0], of_head[1])
            building = time.perf_counter() - building
            for name in arguments.kernels:
                case = {"layer": layer, **measure(index, of_head, head, beta, name), "building_seconds": building}
                cases.append({**case, "pairs": len(index)})
                print(
                    f"{layer:5} {head:4} {name:12} {len(index):9,} {case['ratio']:10.1f} x {case['share_read']:8.2%} "
                    f"{case['share_in_support']:9.4%} {case.get('faiss_ratio', float('nan')):8.1f} x",
                    flush=True,
                )
    if arguments.out:
        record = {"cases": cases, "provenance": provenance(wall_seconds=time.perf_counter() - began)}
        write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
