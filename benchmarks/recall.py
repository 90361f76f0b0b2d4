"""Exact recall through an index beside the scan of all pairs, on the keys of a trained Memory Mosaic.

    tessera demo language
    OMP_NUM_THREADS=1 python -m benchmarks.recall runs/demo/mosaic book.txt ... --out results/recall/cpu.json

The model reads the texts in pieces of `--context` tokens; the keys and values that a head stored are one memory, and
the queries are keys of the last text, which it did not store, with the bandwidths that the model has learned. Each case
answers the same queries by the index and by `kernel_regression` over all pairs, one token at a time, in turn: the query
of the first head of a layer alone, then those of `--heads` heads in one call, as a model asks them. With `faiss-cpu`
installed, FAISS's exact range search stands beside them (flat, and Panorama's), head by head: it is given the threshold
that the index found, which it could not know. Then: keys drawn by chance, pairs that are appended, and with
`--file-pairs` an index that is written, put out of the system's cache, opened and asked. Shares of pairs do not depend
on the machine; times do.
"""

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._pytree import tree_leaves

import tessera.recall
from tessera.base.files import write_text_atomically
from tessera.data.text_files import text_of_file
from tessera.evaluation.provenance import provenance
from tessera.kernels import kernel_from_config
from tessera.memories.pair_memory import PairMemory
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.ops.kernel_regression import kernel_regression
from tessera.recall.pair_store import PairStore

KERNELS = ("sparsemax", "biweight", "triweight", "relumax", "gaussian_knn", "gaussian")
APPENDED_ALONE, TOGETHER = 1 << 18, 256
Pairs = tuple[Tensor, Tensor, Tensor]  # keys (H, N, K), values (H, N, V), queries (H, Q, K)


@torch.inference_mode()
def stored_pairs(run: str, files: list[str], options: argparse.Namespace) -> Iterator[tuple[int, Tensor, Pairs]]:
    """(layer, inverse bandwidths (H, 1), pairs and queries) of the first heads of every layer."""
    model, tokenizer = load_model(run).eval(), load_tokenizer(run)
    ids = [torch.tensor(tokenizer("".join(text_of_file(Path(file))))["input_ids"]) for file in files]
    stored, asking = torch.cat(ids[:-1])[: options.most], ids[-1][: options.context]
    memories = [memory for memory in model.modules() if isinstance(memory, PairMemory)]
    pieces = [pairs_of(model, piece, options.heads) for piece in stored.split(options.context) if len(piece) > 1]
    queried = pairs_of(model, asking, options.heads)
    for layer, memory in enumerate(memories):
        betas = memory.bandwidth.log_inverse_bandwidth.exp().flatten()[: options.heads, None]
        of_layer = [piece.pop(0) for piece in pieces]  # let go when it is copied
        keys, values = (torch.cat([of_piece[side] for of_piece in of_layer], 1) for side in (0, 1))
        del of_layer
        queries = queried[layer][0]
        step = max(1, queries.shape[1] // options.queries)
        yield layer, betas, (keys, values, queries[:, ::step][:, : options.queries].contiguous())


def pairs_of(model: Any, ids: Tensor, heads: int) -> list[tuple[Tensor, Tensor]]:
    """What the first heads of each memory store of one piece of text: keys (H, N, K), values (H, N, V)."""
    state = model(ids[None], use_cache=True).past_key_values
    parts = tree_leaves(state, is_leaf=lambda part: isinstance(part, PairStore))
    stores = [part for part in parts if isinstance(part, PairStore)]
    return [(store.keys[0, :heads].float().clone(), store.values[0, :heads].float().clone()) for store in stores]


def seconds(action: Callable[[], Any]) -> float:
    """The time of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def case(index: Any, pairs: Pairs, betas: Tensor, name: str) -> dict[str, Any]:
    """Shares of pairs, and the times of scan, index and FAISS, medians over tokens."""
    keys, values, queries = pairs
    kernel = kernel_from_config(name)
    slope, intercept = (betas.new_zeros(()).expand_as(betas) if x is None else x for x in kernel.affine(betas))
    rivals, rows = [range_searches(of_head) for of_head in keys], []
    for query in queries.split(1, 1):
        recall = partial(index.recall, query, kernel=kernel, slope=slope, intercept=intercept)
        scan = partial(kernel_regression, query[None], keys[None], values[None], kernel=kernel, slope=slope[None])
        if intercept.any():
            scan = partial(scan, intercept=intercept[None])
        found, expected = recall(), scan()
        certificate = found.certificate
        assert certificate.is_exact or name == "gaussian"
        thresholds = ((certificate.threshold - intercept) / slope).flatten().tolist()
        row = {"scan": seconds(scan), "index": seconds(recall)}
        for rival in rivals[0]:
            searches = zip(rivals, query.numpy(), thresholds)
            row[rival] = sum(seconds(partial(of_head[rival], vector, above)) for of_head, vector, above in searches)
        row |= {"read": certificate.pairs_read.double().mean().item() / len(index)}
        row |= {"in_support": certificate.pairs_in_support.double().mean().item() / len(index)}
        rows.append(row | {"error": (found.output - expected[0]).abs().max().item()})
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    ratios = [row["scan"] / row["index"] for row in rows]
    slowest = {"slowest_ratio": min(ratios), "largest_read": max(row["read"] for row in rows)}
    return {"kernel": name, "betas": betas.flatten().tolist(), "ratio": statistics.median(ratios), **slowest, **medians}


def range_searches(keys: Tensor) -> dict[str, Callable[..., Any]]:
    """FAISS's exact searches of all keys (N, K) above a similarity; none without faiss."""
    if importlib.util.find_spec("faiss") is None:
        return {}
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    width, searches = keys.shape[1], {}
    for name, flat in (
        ("faiss_flat", faiss.IndexFlatIP(width)),
        ("faiss_panorama", faiss.IndexFlatIPPanorama(width, 8)),
    ):
        flat.add(keys.numpy())
        searches[name] = flat.range_search
    return searches


def appending(pairs: Pairs) -> dict[str, float]:
    """Microseconds a pair that comes with 255 others, of as many as are there, and of one that comes alone behind them.

    So every cost comes as often as it does in the long run: buffers grow once, and pairs are filed twice.
    """
    keys, values, _ = pairs
    index = tessera.recall.build(keys, values)

    def append_all(together: int, most: int) -> float:
        nonlocal index
        began, count = time.perf_counter(), min(most, keys.shape[1])
        for first in range(0, count, together):
            last = min(first + together, count)
            index = index.append(keys[:, first:last], values[:, first:last])
        return 1e6 * (time.perf_counter() - began) / count

    return {"together": append_all(TOGETHER, keys.shape[1]), "alone": append_all(1, APPENDED_ALONE)}


def from_file(pairs: Pairs, count: int, beta: float) -> dict[str, Any]:
    """Seconds until an index of `count` pairs, the given ones and others near them, is open and has answered."""
    keys, values, queries = pairs
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(keys.shape[1], (count,), generator=generator)
    noise = torch.randn(count, keys.shape[2], generator=generator).mul_(0.01)
    keys = normalize(keys[:, drawn] + noise, dim=-1)
    del noise
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.index"
        building = time.perf_counter()
        index = tessera.recall.build(keys, values[:, drawn])
        building = time.perf_counter() - building
        tessera.recall.save(index, path)
        del index, keys
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        answers = []
        began = time.perf_counter()
        opened = tessera.recall.open(path)
        opening = time.perf_counter() - began
        slope, _ = kernel_from_config("sparsemax").affine(torch.tensor(beta))
        for query in queries[0].split(1):
            answers.append(seconds(partial(opened.recall, query[None], kernel="sparsemax", slope=float(slope))))
        size = path.stat().st_size
    first = {"opening": opening, "first_answer": answers[0], "median_answer": statistics.median(answers)}
    return {"pairs": count, "bytes": size, "building": building, **first}


def by_chance(count: int, width: int) -> Pairs:
    """Keys in which nothing can be left out: the index has to see it, and scan."""
    generator = torch.Generator().manual_seed(0)
    keys, queries = (normalize(torch.randn(1, n, width, generator=generator), dim=-1) for n in (count, 8))
    return keys, torch.randn(1, count, width, generator=generator), queries


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a trained Memory Mosaic")
    parser.add_argument("texts", nargs="+", help="books to store (text or .gz); the last one asks")
    parser.add_argument("--context", type=int, default=1024, help="tokens that are read at once (default: 1024)")
    parser.add_argument("--most", type=int, default=1 << 20, help="pairs of a head (default: 1,048,576)")
    parser.add_argument("--heads", type=int, default=4, help="of each layer, asked in one call (default: 4)")
    parser.add_argument("--queries", type=int, default=8, help="of each head (default: 8)")
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), choices=KERNELS)
    parser.add_argument(
        "--file-pairs", type=int, default=0, help="of an index that is read from a file (default: none)"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the measurements")
    arguments = parser.parse_args()
    began, cases, last = time.perf_counter(), [], None
    print("layer heads kernel       pairs      scan/index  read      support   flat/index  Panorama/index")
    for layer, betas, pairs in stored_pairs(arguments.run, arguments.texts, arguments):
        last = (betas[:1], tuple(part[:1] for part in pairs))
        for of_heads in sorted({1, len(betas)}):
            some = tuple(part[:of_heads] for part in pairs)
            cases += measured(some, betas[:of_heads], arguments.kernels, layer)
    assert last is not None, "the model has memories"
    betas, pairs = last
    drawn = by_chance(pairs[0].shape[1], pairs[0].shape[2])
    cases += measured(drawn, betas, arguments.kernels, -1)
    record: dict[str, Any] = {"cases": cases, "appending": appending(pairs)}
    print(
        f"a pair appended: {record['appending']['together']:.1f} us of 256, {record['appending']['alone']:.0f} us alone"
    )
    if arguments.file_pairs:
        record["file"] = from_file(pairs, arguments.file_pairs, betas[0, 0].item())
        print(f"from a file: {record['file']}")
    if arguments.out:
        record["provenance"] = provenance(wall_seconds=time.perf_counter() - began)
        write_text_atomically(arguments.out, json.dumps(record, indent=1) + "\n")


def measured(pairs: Pairs, betas: Tensor, kernels: list[str], layer: int) -> list[dict[str, Any]]:
    """All kernels on the pairs of some heads."""
    building, heads = time.perf_counter(), len(betas)
    index = tessera.recall.build(pairs[0], pairs[1])
    building = (time.perf_counter() - building) / heads
    cases = []
    for name in kernels:
        about = {"layer": layer, "heads": heads, "pairs": len(index), "building": building}
        found = {**about, **case(index, pairs, betas, name)}
        cases.append(found)
        rivals = [found.get(rival, float("nan")) / found["index"] for rival in ("faiss_flat", "faiss_panorama")]
        print(
            f"{layer:5} {heads:5} {name:12} {len(index):9,} {found['ratio']:10.1f} x "
            f"{found['read']:8.2%} {found['in_support']:9.4%} {rivals[0]:8.1f} x {rivals[1]:8.1f} x",
            flush=True,
        )
    return cases


if __name__ == "__main__":
    main()
