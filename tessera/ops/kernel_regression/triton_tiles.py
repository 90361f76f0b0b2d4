"""What the Triton kernels of kernel regression share: addresses, which tiles a block meets, which pairs a query sees.

Every kernel works on one block of queries (or of pairs) of one head of one sequence, and walks over tiles of the other
side. Loads outside the tensors give 0, so that rows beyond the last query need no mask of their own.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Scope(NamedTuple):
    """Sizes, and which pairs the queries see; tensors that a call does not have are stood in for by any other."""

    heads: int
    num_queries: int
    num_pairs: int
    offset: int
    delay: int
    span: int
    delays: Tensor
    query_documents: Tensor
    pair_documents: Tensor
    ranges: Tensor


@triton.jit
def start_of(matrix, batch, head):
    """Address of the first row of one head."""
    return matrix.base + batch * matrix.batch + head * matrix.head


@triton.jit
def load_tile(start, stride, rows, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Rows (R, BLOCK) of a matrix with `count` rows of WIDTH entries, zeros outside."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < count)[:, None]
    if WIDTH != BLOCK:
        inside = inside & (columns < WIDTH)[None, :]
    return tl.load(start + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def store_tile(matrix, batch, head, rows, count, tile, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The inverse of `load_tile`, into one head of a `Matrix`."""
    columns = tl.arange(0, BLOCK)
    inside = (rows < count)[:, None]
    if WIDTH != BLOCK:
        inside = inside & (columns < WIDTH)[None, :]
    address = start_of(matrix, batch, head) + rows.to(tl.int64)[:, None] * matrix.row + columns[None, :]
    tl.store(address, tile.to(matrix.base.dtype.element_ty), mask=inside)


@triton.jit
def load_column(column, batch, head, rows, count):
    """One number per query, in float32; `column` is a `Matrix` without width."""
    return tl.load(start_of(column, batch, head) + rows * column.row, mask=rows < count, other=0.0).to(tl.float32)


@triton.jit
def place(scope, ROWS: tl.constexpr, WINDOW: tl.constexpr):
    """(block, index of the head among all heads, batch, head) of this program; the longest blocks start first.

    Behind them the rows and the positions of the block's queries, and the delay of the sequence. WINDOW: 0 none, 1 one
    delay for all, 2 one per sequence.
    """
    index = tl.program_id(1).to(tl.int64)
    block, batch = tl.num_programs(0) - 1 - tl.program_id(0), index // scope.heads
    rows = block * ROWS + tl.arange(0, ROWS)
    delay = tl.load(scope.delays + batch) if WINDOW == 2 else scope.delay + tl.zeros((), tl.int32)
    return block, index, batch, index % scope.heads, rows, rows + scope.offset, delay


@triton.jit
def store_statistics(statistics, scope, index, rows, center, tau, norm):
    """The three numbers of each query, into `statistics` (3, B, H, T)."""
    step = tl.num_programs(1).to(tl.int64) * scope.num_queries
    address = statistics + index * scope.num_queries + rows
    inside = rows < scope.num_queries
    tl.store(address, center, mask=inside)
    tl.store(address + step, tau, mask=inside)
    tl.store(address + 2 * step, norm, mask=inside)


@triton.jit
def load_statistics(statistics, scope, index, rows):
    """(center, tau, norm) of the queries; 0 beyond the last."""
    step = tl.num_programs(1).to(tl.int64) * scope.num_queries
    address = statistics + index * scope.num_queries + rows
    inside = rows < scope.num_queries
    center = tl.load(address, mask=inside, other=0.0)
    tau = tl.load(address + step, mask=inside, other=0.0)
    return center, tau, tl.load(address + 2 * step, mask=inside, other=0.0)


@triton.jit
def pairs_met(
    scope, batch, block, delay, ROWS: tl.constexpr, PAIRS: tl.constexpr, WINDOW: tl.constexpr,
    SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr
):  # fmt: skip
    """For a block of queries: (start, end) of the pairs that any of them may see, and (clear_start, clear_end) of those
    that all of them see as far as the window is concerned."""
    first = block * ROWS + scope.offset
    start = tl.zeros((), tl.int32)
    end = scope.num_pairs + tl.zeros((), tl.int32)
    clear_start, clear_end = start, end
    if WINDOW > 0:
        clear_end = tl.minimum(end, first - delay + 1)
        end = tl.minimum(end, first + ROWS - delay)
    if SPANNED:
        start = tl.maximum(start, first - scope.span + 1)
        clear_start = tl.maximum(clear_start, first + ROWS - scope.span)
    if DOCUMENTS:
        ranges = scope.ranges + (batch * tl.cdiv(scope.num_queries, ROWS) + block) * 2
        start = tl.maximum(start, tl.load(ranges))
        end = tl.minimum(end, tl.load(ranges + 1))
    return start // PAIRS * PAIRS, end, clear_start, clear_end


@triton.jit
def queries_met(
    scope, batch, block, delay, ROWS: tl.constexpr, PAIRS: tl.constexpr, WINDOW: tl.constexpr,
    SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr
):  # fmt: skip
    """The same from the side of a block of pairs: the rows that may, and those that all, see them."""
    first = block * PAIRS
    start = tl.zeros((), tl.int32)
    end = scope.num_queries + tl.zeros((), tl.int32)
    clear_start, clear_end = start, end
    if WINDOW > 0:
        start = tl.maximum(start, first + delay - scope.offset)
        clear_start = tl.maximum(clear_start, first + PAIRS - 1 + delay - scope.offset)
    if SPANNED:
        end = tl.minimum(end, first + PAIRS - 1 + scope.span - scope.offset)
        clear_end = tl.minimum(clear_end, first + scope.span - scope.offset)
    if DOCUMENTS:
        ranges = scope.ranges + (batch * tl.cdiv(scope.num_pairs, PAIRS) + block) * 2
        start = tl.maximum(start, tl.load(ranges))
        end = tl.minimum(end, tl.load(ranges + 1))
    return start // ROWS * ROWS, end, clear_start, clear_end


@triton.jit
def visible(
    scope, batch, positions, pairs, delay, WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr
):
    """Which pairs the queries see, for positions and pairs that broadcast against each other."""
    row = positions - scope.offset
    seen = (row < scope.num_queries) & (pairs < scope.num_pairs)
    if WINDOW > 0:
        seen = seen & (positions - pairs >= delay)
    if SPANNED:
        seen = seen & (positions - pairs < scope.span)
    if DOCUMENTS:
        asks = tl.load(scope.query_documents + batch * scope.num_queries + row, mask=row < scope.num_queries, other=-1)
        held = tl.load(scope.pair_documents + batch * scope.num_pairs + pairs, mask=pairs < scope.num_pairs, other=-1)
        seen = seen & (asks == held) & (held >= 0)
    return seen


@triton.jit
def inverse(total):
    """1 / total, 0 where total is 0."""
    return tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)


@triton.jit
def raised(base, EXPONENT: tl.constexpr):
    """`base ** EXPONENT` for base >= 0, with 0 ** 0 = 0: an entry at the threshold is outside the support."""
    if EXPONENT == 0:
        power = tl.where(base > 0, 1.0, 0.0)
    elif EXPONENT == 1:
        power = base
    elif EXPONENT == 2:
        power = base * base
    elif EXPONENT == 3:
        power = base * base * base
    else:
        power = tl.where(base > 0, tl.exp2(EXPONENT * tl.log2(tl.where(base > 0, base, 1.0))), 0.0 * base)
    return power
