"""A memory's own reading of its pairs through an index: where it pays, and only where it is exact."""

from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.devices import device_type
from tessera.base.shapes import Float, Int
from tessera.kernels import Gaussian, Kernel, RowKernel
from tessera.ops.kernel_regression import Window, interception
from tessera.recall.index import SMALL_BLOCK, PairIndex
from tessera.recall.pair_store import PairStore

SHORTEST = 131_072  # pairs; with fewer the scan is faster (`python -m benchmarks.recall RUN TEXT... --most N`)
PATIENCE = 256  # queries that are scanned after pruning did not win, before it is tried again


def recall_through_index(
    pairs: PairStore,
    query: Float[Tensor, "B H T K"],
    *,
    kernel: Kernel,
    slope: Float[Tensor, "..."],
    intercept: Float[Tensor, "..."] | None,
    window: Window,
    query_offset: int,
    query_documents: Int[Tensor, "B T"] | None,
) -> Float[Tensor, "B H T V"] | None:
    """What `kernel_regression` over all `pairs` gives, up to rounding, or None where it should do so itself.

    That is where gradients are wanted, weights are looked at, the kernel has no threshold (Gaussian), there are fewer
    than `SHORTEST` pairs, or the keys are such that most of them have to be read: then it is tried again only after
    `PATIENCE` queries. The index is made as the pairs come and belongs to their buffers, not to the state: it takes a
    little more memory than the keys, is not saved, and is built again after loading.
    """
    batch, heads, count, _ = query.shape
    of_rows = kernel.row_parameter if isinstance(kernel, RowKernel) else None
    sources = (query, pairs.key_buffer, pairs.value_buffer, slope, intercept, of_rows)
    wants_gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in sources)
    is_plain = device_type(query) == "cpu" and not torch.compiler.is_compiling() and not interception.is_active()
    if wants_gradients or isinstance(kernel, Gaussian) or not is_plain or pairs.length < SHORTEST:
        return None
    cache = pairs.tip
    if cache.queries_to_scan > 0:
        cache.queries_to_scan -= count
        return None
    slopes = slope.expand(batch, heads, count)
    intercepts = slope.new_zeros(()) if intercept is None else intercept
    intercepts = intercepts.expand(batch, heads, count)
    rows, num_read = [], 0
    for row in range(batch):
        delay = window.delay if isinstance(window.delay, int) else int(window.delay[row])
        recalled = _index_of_row(pairs, row).recall(
            query[row],
            kernel=kernel,
            slope=slopes[row],
            intercept=intercepts[row],
            window=replace(window, delay=delay),
            query_offset=query_offset,
            query_documents=None if query_documents is None else query_documents[row],
        )
        rows.append(recalled.output)
        num_read += int(recalled.certificate.pairs_read.sum())
    if num_read > pairs.length * batch * heads * count // 2:
        cache.queries_to_scan = PATIENCE
    return torch.stack(rows)


def _index_of_row(pairs: PairStore, row: int) -> PairIndex:
    """The index of one sequence. What was filed of these buffers before is taken again."""
    one_sequence = PairStore.of(
        pairs.keys[row : row + 1],
        pairs.values[row : row + 1],
        None if pairs.documents is None else pairs.documents[row : row + 1],
    )
    filed: dict[int, PairIndex] = pairs.tip.filed
    index = replace(filed.get(row, PairIndex(one_sequence)), pairs=one_sequence)
    if not 0 <= len(index) - index.filed < SMALL_BLOCK:
        index = index.with_all_filed()
        if row not in filed or index.filed > filed[row].filed:
            filed[row] = index
    return index
