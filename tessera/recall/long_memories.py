"""A memory's own reading of its pairs through an index: where it pays, and only where it is exact."""

from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.devices import device_type
from tessera.base.shapes import Float, Int
from tessera.kernels import Kernel, RowKernel
from tessera.ops.kernel_regression import Window, interception
from tessera.recall.index import SMALL_BLOCK, PairIndex
from tessera.recall.pair_store import PairStore

SHORTEST = 131_072  # pairs; with fewer the scan is faster (`python -m benchmarks.recall RUN TEXT... --most N`)
LARGEST_SHARE = 0.25  # of the pairs; where more are read, the scan is as fast (the same benchmark)
LARGEST_ALONE = 0.75  # for fewer than `TRIED` queries: all keys are read for a scan of these, however few they are
SCANNED_HEAD = 1.2  # what a head costs of which the index reads all pairs, in scans of it (0.8 to 1.3 on such keys)
TRIED = 16  # queries that tell how many pairs those of a call read
PATIENCE = 256  # queries that are scanned after pruning did not win, before it is tried again; twice as many each time
MOST_PATIENCE = 1 << 16


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
    than `SHORTEST` pairs, or in most heads the last `TRIED` queries read so many that the scan is faster: then it is
    tried again only after `PATIENCE` queries, twice as many each time. The index is made as the pairs come and belongs
    to their buffers, not to the state: it takes a little more memory than the keys, is not saved, and is built again
    after loading.
    """
    batch, heads, count, _ = query.shape
    of_rows = kernel.row_parameter if isinstance(kernel, RowKernel) else None
    sources = (query, pairs.key_buffer, pairs.value_buffer, slope, intercept, of_rows)
    wants_gradients = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in sources)
    is_plain = device_type(query) == "cpu" and not torch.compiler.is_compiling() and not interception.is_active()
    if wants_gradients or not kernel.has_floor or not is_plain or pairs.length < SHORTEST:
        return None
    cache = pairs.tip
    if cache.queries_to_scan > 0:
        cache.queries_to_scan -= count
        return None
    slopes = slope.expand(batch, heads, count)
    intercepts = slope.new_zeros(()) if intercept is None else intercept
    intercepts = intercepts.expand(batch, heads, count)
    indices = [_index_of_row(pairs, row) for row in range(batch)]

    def recalled(first: int, last: int) -> tuple[Tensor, Tensor]:
        """What these queries recall (B, H, n, V), and the share of the pairs that they read (B, H)."""
        outputs, shares = [], []
        for row, index in enumerate(indices):
            answer = index.recall(
                query[row, :, first:last],
                kernel=kernel,
                slope=slopes[row, :, first:last],
                intercept=intercepts[row, :, first:last],
                window=replace(window, delay=window.delay if isinstance(window.delay, int) else int(window.delay[row])),
                query_offset=query_offset + first,
                query_documents=None if query_documents is None else query_documents[row, first:last],
            )
            outputs.append(answer.output)
            shares.append(answer.certificate.pairs_read.double().mean(1) / pairs.length)
        return torch.stack(outputs), torch.stack(shares)

    tried = min(count, TRIED)
    output, shares = recalled(count - tried, count)  # the last ones see most pairs
    largest = LARGEST_SHARE if count >= TRIED else LARGEST_ALONE
    if (shares / largest).masked_fill(shares > largest, SCANNED_HEAD).mean() > 1:  # a scan of all heads
        cache.patience = min(MOST_PATIENCE, 2 * cache.patience or PATIENCE)
        cache.queries_to_scan = cache.patience
        return output if tried == count else None
    cache.patience = 0
    return output if tried == count else torch.cat([recalled(0, count - tried)[0], output], 2)


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
